"""What only an upstream server can do: tool calls and JSON schemas, passed through to it and back.

If a model cannot be held to a form here, `tools` and `response_format` need `--upstream` (or a model of engine
`openai`). The messages are sent as they came, with sampling and the thinking switch. `direct` streams the reply.
`majority` draws n times and returns the most frequent reply: replies are equal if they call the same tools with the
same arguments, hold the same JSON, or give the same final answer. A think block at the beginning of the content becomes
thought; one that the prompt opened does if the server says that it opens one (vLLM does). Cost: n requests, in tokens
as the server counts them, or else the operator's tokenizer. Left out: other strategies, and budgets on thinking, which
need token ids; with other servers, thought whose block the prompt opened is streamed as answer.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from serve.requests.errors import ApiError
from serve.requests.fields import ServeRequest
from serve.running.deltas import overlap
from serve.running.events import (
    AnswerDelta,
    Done,
    Finish,
    FinishReason,
    SearchProgress,
    ServeEvent,
    Started,
    ThinkingDelta,
    TokenCounts,
)
from serve.running.plan import RequestPlan
from serve.running.upstreams import Upstreams, home_of
from serve.running.watch import Board
from ttc import seeds
from ttc.answers.keys import classes
from ttc.answers.kinds import extract, same_form
from ttc.answers.kinds import key as answer_key
from ttc.concurrent import gather
from ttc.core import FILTERED, Answer, Event, Message, Sampling, ThinkState, Usage
from ttc.engines.openai.wire import (
    ServerUsage,
    as_mapping,
    as_mappings,
    as_text,
    count_thought,
    finish_of,
    finish_word,
    texts_of,
    usage_of,
)
from ttc.engines.shared.balance import Transient
from ttc.engines.shared.text import LONG_TEXT
from ttc.errors import EngineError
from ttc.session.thinking import CLOSE, OPEN, split_text

if TYPE_CHECKING:
    from ttc.engines.openai.wire import Features

TOKEN_FIELDS = ("stop_token_ids", "skip_special_tokens")
"""Fields that only make sense for text continued by ids."""
_REASONS: Mapping[str, FinishReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    FILTERED: "content_filter",
}
"""Finish reasons of replies that draws here do not have."""
_log = logging.getLogger("serve")


@dataclass(frozen=True, slots=True)
class _Reply:
    """One reply of an upstream server."""

    content: str
    reasoning: str
    tool_calls: tuple[Mapping[str, Any], ...]
    finish: FinishReason
    usage: Usage
    cut_call: str = ""
    stop: str | None = None
    """The stop string that ended it, where the server told."""

    @property
    def counts(self) -> TokenCounts:
        """The upstream server's own counts."""
        usage = self.usage
        return TokenCounts(usage.prompt, usage.cached, usage.generated, usage.thinking)

    def event(self, index: int) -> Event:
        """The event that the progress board gets for it."""
        ends = {"stop_reason": "eos" if self.finish in ("stop", "tool_calls") else None}
        data = {"num_tokens": self.usage.generated, "thinking": False, "injected": False, "text": self.content, **ends}
        return Event("generate", (index,), data)

    def final(self, kind: str) -> str | None:
        """Its calls or its JSON in one spelling, or the final answer of its words; None where it did not end."""
        if self.finish not in ("stop", "tool_calls"):
            return None
        calls = [_spelled(call["function"]) for call in self.tool_calls]
        return "; ".join(sorted(calls)) or same_form(self.content) or extract(self.content, kind).final

    def key(self, final: str | None, kind: str) -> str:
        """Equal keys are one class of a vote; empty when this reply has nothing to vote for."""
        if final is None:
            return ""
        is_form = bool(self.tool_calls) or same_form(self.content) is not None
        return f"form:{final}" if is_form else f"final:{answer_key(final, kind)}"


def _switch(request: ServeRequest) -> ThinkState:
    """The thinking switch of a request to an upstream server."""
    wish = request.thinking
    off = wish.budget == 0 or wish.enabled is False or wish.effort == "none"
    return "closed" if off else "open" if wish.enabled or wish.effort else "none"


def forward_body(request: ServeRequest, sampling: Sampling, features: Features, seed: int) -> dict[str, Any]:
    """The body of the request to the upstream server, in the fields that it was found to accept."""
    from ttc.engines.openai.chat import switch_fields
    from ttc.engines.openai.wire import shared_fields

    body = {**shared_fields(sampling, seed, features), **switch_fields(features, _switch(request)), **request.forward}
    body |= {"reasoning_effort": request.thinking.effort} if request.thinking.effort else {}
    body |= {"verbosity": request.verbosity} if request.verbosity else {}
    body |= request.sampling.penalties
    biases = {str(token): value for token, value in request.sampling.logit_bias.items()}
    body |= {"logit_bias": biases} if biases else {}
    return {name: value for name, value in body.items() if name not in TOKEN_FIELDS}


async def execute_forward(
    plan: RequestPlan,
    started: Started,
    emit: Callable[[ServeEvent], None],
    charge: Callable[[Usage], None],
    interval_s: float,
) -> None:
    """Ask the upstream server and emit events, `Done` last; raises ApiError (it broke off) or TTCError (it refused)."""
    forward = plan.model.forward
    if forward is None:
        raise ApiError(400, "unsupported_parameter", f"model {plan.model.name} runs here")
    emit(started)
    request, gate, share = plan.request, plan.model.gate, plan.model.gate.share(wide=plan.sequences > 1)
    num_draws = request.num_choices if plan.direct else plan.sequences
    is_shown = plan.direct and request.stream
    level = plan.progress if request.stream else "off"
    board = Board(level, lambda data: emit(SearchProgress(data)), interval_s, show=request.thinking.show)

    async def one(index: int) -> _Reply:
        seed = seeds.derive(plan.seed, "choice", index) >> (64 - forward.features.seed_bits)
        body = forward_body(request, plan.sampling, forward.features, seed)
        async with gate.slot(share):
            write = _writer(index, request, emit) if is_shown else None
            reply = await _ask(forward, body, request, write, charge)
        board.take(reply.event(index))
        return reply

    replies = await gather(one(index) for index in range(num_draws))
    finals = [None if plan.direct else reply.final(plan.answer_kind) for reply in replies]
    keys = [reply.key(final, plan.answer_kind) for reply, final in zip(replies, finals, strict=True)]
    class_of = classes(keys)
    keys = [class_of[key] for key in keys]
    winner = 0 if plan.direct else _vote(keys)
    board.take(Event("select", (winner,)))
    board.finish(Answer("", None))
    choices = replies if plan.direct else [replies[winner]]
    counts = [reply.counts for reply in choices]
    for index, reply in enumerate(choices):
        _finish(index, _with_ids(reply, plan, index), request, emit, written=is_shown)
    written = sum(counts, TokenCounts())
    price = sum((reply.counts for reply in replies), TokenCounts())  # as often as the upstream server was asked
    rejected = price.completion - written.completion
    result = {**_result(plan, replies, finals, keys, winner), "returned": TokenCounts.joined(counts).returned()}
    emit(Done(replace(price, rejected=rejected), result))


def _writer(index: int, request: ServeRequest, emit: Callable[[ServeEvent], None]) -> Callable[[str, str], None]:
    def write(reasoning: str, content: str) -> None:
        if reasoning and request.thinking.show:
            emit(ThinkingDelta(index, reasoning))
        if content:
            emit(AnswerDelta(index, content))

    return write


def call_id(plan: RequestPlan, *place: int) -> str:
    """The id of a call, made of its conversation and draw, in the nine characters that Mistral's template wants.

    Clients match results to calls by it, so it differs between turns that are asked with one seed.
    """
    return f"{seeds.derive(plan.seed, 'call', repr(plan.request.messages), *place):016x}"[:9]


def _with_ids(reply: _Reply, plan: RequestPlan, index: int) -> _Reply:
    """The reply with an id for every call: some servers give none, and clients match results to calls by them."""
    rows = enumerate(reply.tool_calls)
    calls = tuple({**call, "id": call["id"] or call_id(plan, index, number)} for number, call in rows)
    return replace(reply, tool_calls=calls)


def _finish(
    index: int, reply: _Reply, request: ServeRequest, emit: Callable[[ServeEvent], None], *, written: bool
) -> None:
    if not written:
        _writer(index, request, emit)(reply.reasoning, reply.content)
    emit(
        Finish(
            index=index,
            reason=reply.finish,
            thinking=reply.reasoning if request.thinking.show else "",
            answer=reply.content,
            stop=reply.stop,
            tool_calls=reply.tool_calls,
        )
    )


async def _ask(
    servers: Upstreams,
    body: Mapping[str, Any],
    request: ServeRequest,
    write: Callable[[str, str], None] | None,
    charge: Callable[[Usage], None],
) -> _Reply:
    """Ask once and gather the reply; without `write` nothing is sent before its end, so the request may be repeated.

    Every attempt that has begun to answer is charged, also if it broke off or its client left. Long texts are counted
    in a thread; for a long prompt whose reply broke off, the reserved number is charged instead.
    """
    shown, messages = False, request.messages
    is_long = sum(len(message.content) for message in messages) > LONG_TEXT
    inside = _switch(request) in servers.features.opens

    async def read(chunks: AsyncIterator[Any]) -> _Reply:
        nonlocal shown
        reading, reply = _Reading(write, inside), None
        try:
            async for chunk in chunks:
                try:
                    reading.add(chunk)
                except ValueError as exc:
                    raise Transient(EngineError(f"the upstream server sent something unreadable: {exc}")) from exc
                shown = shown or reading.shown
            reply = reading.reply()
            return reply
        finally:
            if reply is None:
                charge(reading.lost(servers.count, () if is_long else messages))

    home = home_of(body.get("messages") or ())
    reply = await servers.stream(home, "/chat/completions", body, read, lambda: shown)
    is_long = is_long or len(reply.reasoning + reply.content) > LONG_TEXT
    count = functools.partial(_counted, reply, servers.count, messages)
    usage = await asyncio.to_thread(count) if is_long else count()
    charge(usage)
    return replace(reply, usage=usage)


def _counted(
    reply: _Reply, count: Callable[[Sequence[Message], str], Usage] | None, messages: Sequence[Message]
) -> Usage:
    """The usage of a reply, with what the upstream server has not counted."""
    usage = reply.usage
    if count is not None and not (usage.prompt and usage.generated):
        ours = count(messages, reply.reasoning + reply.content)
        usage = replace(usage, prompt=usage.prompt or ours.prompt, generated=usage.generated or ours.generated)
    return _with_thought(replace(reply, usage=usage), count)


def _with_thought(reply: _Reply, count: Callable[[Sequence[Message], str], Usage] | None) -> Usage:
    """The usage of a reply, its thought counted where the upstream server does not count it apart."""

    def counted(text: str) -> int:
        return 0 if count is None else count((), text).generated

    functions = [call["function"] for call in reply.tool_calls]
    said = reply.content + "".join(text for each in functions for text in (each["name"], each["arguments"]))
    usage = reply.usage
    return replace(usage, thinking=count_thought(usage.thinking, usage.generated, reply.reasoning, said, counted))


class _Reading:
    """Gathers one reply; `write` gets what is new of its thought and of its answer.

    `inside` says that its prompt had opened a thought, which comes as content.
    """

    def __init__(self, write: Callable[[str, str], None] | None, inside: bool) -> None:
        self._write, self._apart = write, _Apart(inside)
        self._thought: list[str] = []
        self._answer: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._counts, self._finish = ServerUsage(), ""
        self._stop: str | None = None
        self._num_parts = 0
        self._refused = False
        self.shown = False

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk, or a whole answer; raises ValueError where it has not the shape of one."""
        self._counts = self._counts.then(usage_of(as_mapping(chunk.get("usage"), "usage")))
        for choice in as_mappings(chunk.get("choices"), "choices"):
            message = as_mapping(choice.get("delta") or choice.get("message"), "delta")
            reasoning, content = texts_of(message)
            refusal = as_text(message.get("refusal"), "refusal")  # OpenAI's, in place of an answer held to a form
            self._refused, content = self._refused or bool(refusal), content + refusal
            deltas, finish = as_mappings(message.get("tool_calls"), "tool_calls"), choice.get("finish_reason")
            _gather_calls(self._calls, deltas)
            self._finish = as_text(finish, "finish_reason") or self._finish
            stop = choice.get("stop_reason")  # vLLM's; the id of a token, where one ended it
            self._stop = stop if isinstance(stop, str) else self._stop
            self._num_parts += bool(reasoning or content or deltas)
            thought, answer = self._apart.add(content)
            self._take(reasoning + thought, answer)

    def lost(self, count: Callable[[Sequence[Message], str], Usage] | None, messages: Sequence[Message]) -> Usage:
        """What a reply that broke off cost, none of which is kept: in tokens if they are counted, else in chunks."""
        usage = _usage(self._counts)
        if not usage.generated and count is not None:
            usage = count(messages, "".join([*self._thought, *self._answer, *self._apart.end()]))
        return Usage(prompt=usage.prompt, cached=usage.cached, overrun=usage.generated or self._num_parts, attempts=1)

    def reply(self) -> _Reply:
        """The reply; raises Transient where the server did not end it."""
        word = finish_word(self._finish or None)
        self._take(*self._apart.end())
        reason = "content_filter" if self._refused else _reason(word)
        calls, rest = _whole_calls([self._calls[index] for index in sorted(self._calls)], is_cut=reason == "length")
        if rest and not calls:  # as with models that run here, a call that was cut is text
            self._take("", rest)
            rest = ""
        thought, answer = "".join(self._thought), "".join(self._answer)
        if self._write is None and not thought:  # a block that the prompt had opened
            parts = split_text(answer, False)
            thought, answer = parts.thinking, parts.answer.lstrip() if parts.thinking else parts.answer
        reason = "tool_calls" if calls and reason == "stop" else reason  # some servers say stop of both
        usage, stop = _usage(self._counts), self._stop if reason == "stop" else None
        return _Reply(answer, thought, calls, reason, usage, rest, stop)

    def _take(self, thought: str, answer: str) -> None:
        self._thought.append(thought)
        self._answer.append(answer)
        if self._write is not None and (thought or answer):
            self.shown = True
            self._write(thought, answer)


def _reason(word: str) -> FinishReason:
    """A server's finish reason as ours; an unknown one counts as cut."""
    if word in _REASONS:
        return _REASONS[word]
    if finish_of(word) is None:
        _log.warning("the upstream server ended with an unknown finish reason", extra={"finish_reason": word})
    return "stop" if finish_of(word) == "stop" else "length"


class _Apart:
    """Splits content that begins with a think block, or inside one, into thought and answer while it arrives."""

    def __init__(self, inside: bool) -> None:
        self._held = ""
        self._inside = self._lead = inside
        self._past = False

    def add(self, text: str) -> tuple[str, str]:
        """Take new text; return what is now certain of the thought and of the answer."""
        self._held += text
        begun = self._held.lstrip()
        if not (self._past or self._inside):
            if OPEN.startswith(begun[: len(OPEN)]) and len(begun) < len(OPEN):
                return "", ""
            self._inside = self._lead = begun.startswith(OPEN)
            self._past = not self._inside
            self._held = begun.removeprefix(OPEN) if self._inside else self._held
        thought = self._thought() if self._inside else ""
        return thought, self._rest() if self._past else ""

    def end(self) -> tuple[str, str]:
        """What was still held back."""
        held, self._held = self._held, ""
        return (held, "") if self._inside else ("", held)

    def _thought(self) -> str:
        run, marker, rest = self._taken().partition(CLOSE)
        if marker:
            self._inside, self._past, self._lead, self._held = False, True, True, rest
            return run
        keep = overlap(run, CLOSE)
        self._held = run[len(run) - keep :]
        return run[: len(run) - keep]

    def _rest(self) -> str:
        text, self._held = self._taken(), ""
        return text

    def _taken(self) -> str:
        """What is held, from its first word on at the beginning of a thought and of an answer behind one."""
        text = self._held.lstrip() if self._lead else self._held
        self._lead = self._lead and not text
        return text


def _gather_calls(calls: dict[int, dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    """Add the new part of each call; without an index, a name begins the next call.

    Raises:
        ValueError: it has not the shape of a call.
    """
    for delta in deltas:
        function = as_mapping(delta.get("function"), "function")
        name, arguments = as_text(function.get("name"), "name"), function.get("arguments")
        index = delta.get("index")
        if index is None:
            index = max(calls, default=-1) + bool(name or not calls)
        if not isinstance(index, int):
            raise ValueError("index is no number")
        call = calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = call["id"] or as_text(delta.get("id"), "id")
        call["function"]["name"] += name
        is_whole = isinstance(arguments, Mapping)  # as some servers give them
        call["function"]["arguments"] += json.dumps(arguments) if is_whole else as_text(arguments, "arguments")


def _whole_calls(calls: Sequence[dict[str, Any]], *, is_cut: bool) -> tuple[tuple[dict[str, Any], ...], str]:
    """The whole calls, and the beginning of a last one that the token limit cut.

    Some servers write nothing if there are no arguments.
    """
    last = calls[-1]["function"] if calls and is_cut else None
    if last is not None and not _is_json(last["arguments"]):
        text = f'{{"name": {json.dumps(last["name"])}, "arguments": {last["arguments"]}'
        return _whole_calls(calls[:-1], is_cut=False)[0], text
    functions = [{**call["function"], "arguments": call["function"]["arguments"] or "{}"} for call in calls]
    return tuple({**call, "function": function} for call, function in zip(calls, functions, strict=True)), ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _usage(counts: ServerUsage) -> Usage:
    return Usage(
        prompt=counts.prompt or 0,
        cached=min(counts.cached or 0, counts.prompt or 0),
        generated=counts.generated or 0,
        thinking=counts.thinking or 0,
        calls=1,
        attempts=1,
    )


def _spelled(function: Mapping[str, Any]) -> str:
    """A call in one spelling; arguments that are no JSON are text."""
    arguments = function["arguments"]
    value = json.loads(arguments) if _is_json(arguments) else arguments
    return json.dumps({"name": function["name"], "arguments": value}, sort_keys=True, separators=(",", ":"))


def _vote(keys: Sequence[str]) -> int:
    """The first reply of the largest class; of equal classes, the earlier one. Replies without a key abstain."""
    counts = Counter(key for key in keys if key)
    return keys.index(counts.most_common(1)[0][0]) if counts else 0


def _candidate(plan: RequestPlan, index: int, reply: _Reply, final: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": [index],
        "final": final,
        "score": None,
        "tokens": reply.usage.generated,
        "finish_reason": reply.finish,
    }
    if plan.request.search.return_candidates:
        row |= {"text": reply.content} | ({"tool_calls": list(reply.tool_calls)} if reply.tool_calls else {})
        row |= {"thinking": reply.reasoning} if plan.request.thinking.show else {}
    return row


def _result(
    plan: RequestPlan, replies: Sequence[_Reply], finals: Sequence[str | None], keys: Sequence[str], chosen: int
) -> dict[str, Any]:
    """The `ttc` object; `votes`, where one was held, are those of a candidate's class."""
    votes = Counter(key for key in keys if key)
    candidates = [
        _candidate(plan, index, reply, final) | ({} if plan.direct else {"votes": votes.get(key, 0)})
        for index, (reply, final, key) in enumerate(zip(replies, finals, keys, strict=True))
    ]
    thinking = {
        "mode": "auto",
        "effort": plan.request.thinking.effort,
        "budget": None,
        "requested": None,
        "reserve": 0,
        "used": replies[chosen].usage.thinking,
        "forced_end": False,
        "ended_inside": False,
        "enforced": "none",
    }
    usage = sum((reply.usage for reply in replies), Usage())
    is_held = plan.sampling.max_tokens == (plan.budget.tokens or 0) // max(
        plan.sequences // plan.request.num_replies, 1
    )
    is_cut = is_held and any(reply.finish == "length" for reply in replies)
    report = plan.report(
        final=finals[chosen],
        candidates=candidates,
        chosen=chosen,
        thinking=thinking,
        usage=usage,
        stop_cause="budget" if is_cut else "done",
    )
    rest = replies[chosen].cut_call
    return report | ({"cut_call": rest} if rest else {})
