"""What only an upstream server can do: tool calls and JSON schemas, passed through to it and back.

If a model cannot be held to a form here, `tools` and `response_format` need `--upstream` (or a model of engine
`openai`). The messages are sent as they came, with sampling and the thinking switch. `direct` streams the reply.
`majority` draws n times and returns the most frequent reply: replies are equal if they call the same tools with the
same arguments, hold the same JSON, or give the same final answer. How a reply is read: `serve.running.upstream_reply`.
Cost: n requests, in tokens as the server counts them, or else the operator's tokenizer. Left out: other strategies, and
budgets on thinking, which need token ids.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from serve.requests.errors import ApiError
from serve.requests.fields import ServeRequest
from serve.running.events import (
    AnswerDelta,
    Done,
    Finish,
    SearchProgress,
    ServeEvent,
    Started,
    ThinkingDelta,
    TokenCounts,
)
from serve.running.plan import RequestPlan
from serve.running.upstream_reply import ReplyReader, UpstreamReply, counted_usage
from serve.running.upstreams import Upstreams, home_of
from serve.running.watch import Board
from ttc import seeds
from ttc.answers.keys import classes
from ttc.concurrent import gather
from ttc.core import Answer, Event, Sampling, ThinkState, Usage
from ttc.engines.shared.balance import Transient
from ttc.engines.shared.text import LONG_TEXT
from ttc.errors import EngineError

if TYPE_CHECKING:
    from ttc.engines.openai.wire import Features

TOKEN_FIELDS = ("stop_token_ids", "skip_special_tokens")
"""Fields that only make sense for text continued by ids."""


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

    async def one(index: int) -> UpstreamReply:
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


def _with_ids(reply: UpstreamReply, plan: RequestPlan, index: int) -> UpstreamReply:
    """The reply with an id for every call: some servers give none, and clients match results to calls by them."""
    rows = enumerate(reply.tool_calls)
    calls = tuple({**call, "id": call["id"] or call_id(plan, index, number)} for number, call in rows)
    return replace(reply, tool_calls=calls)


def _finish(
    index: int, reply: UpstreamReply, request: ServeRequest, emit: Callable[[ServeEvent], None], *, written: bool
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
) -> UpstreamReply:
    """Ask once and gather the reply; without `write` nothing is sent before its end, so the request may be repeated.

    Every attempt that has begun to answer is charged, also if it broke off or its client left. Long texts are counted
    in a thread; for a long prompt whose reply broke off, the reserved number is charged instead.
    """
    shown, messages = False, request.messages
    is_long = sum(len(message.content) for message in messages) > LONG_TEXT
    inside = _switch(request) in servers.features.opens

    async def read(chunks: AsyncIterator[Any]) -> UpstreamReply:
        nonlocal shown
        reading, reply = ReplyReader(write, inside), None
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
    count = functools.partial(counted_usage, reply, servers.count, messages)
    usage = await asyncio.to_thread(count) if is_long else count()
    charge(usage)
    return replace(reply, usage=usage)


def _vote(keys: Sequence[str]) -> int:
    """The first reply of the largest class; of equal classes, the earlier one. Replies without a key abstain."""
    counts = Counter(key for key in keys if key)
    return keys.index(counts.most_common(1)[0][0]) if counts else 0


def _candidate(plan: RequestPlan, index: int, reply: UpstreamReply, final: str | None) -> dict[str, Any]:
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
    plan: RequestPlan, replies: Sequence[UpstreamReply], finals: Sequence[str | None], keys: Sequence[str], chosen: int
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
