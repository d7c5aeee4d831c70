"""Running a plan: its choices at once, as a stream of events; cancelling the task aborts every branch in the engine.

A `direct` choice is written while it is sampled; a search tells how it stands, and writes the chosen answer once it is
chosen. Texts are the same either way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from serve.requests.errors import ApiError
from serve.requests.fields import ServeRequest
from serve.running.admission import FairShare
from serve.running.deltas import Deltas, Markers, cut_at_stop, pieces_of
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
    TokenLogprob,
)
from serve.running.forward import call_id, execute_forward
from serve.running.plan import RequestPlan
from serve.running.quotas import MINUTE_S, too_many
from serve.running.watch import Board, DrawnPiece, RequestEngine, WatchedSession
from ttc.concurrent import gather
from ttc.core import (
    FILTERED,
    Answer,
    Candidate,
    Event,
    LogprobEngine,
    Path,
    Problem,
    Prompt,
    ToolCall,
    Top,
    TopLogprobEngine,
    Usage,
    extras_of,
)
from ttc.session.thinking import split

Emit = Callable[[ServeEvent], None]
Charge = Callable[[Usage], None]
_NOTHING = Answer("", None, finish_reason="length")
"""The answer if only the prompt is requested."""
_log = logging.getLogger("serve")


@dataclass(frozen=True, slots=True)
class _Choice:
    """A finished choice: what is sent, counted and told of it; `roots` are the prompts it read, each with its cache."""

    finish: Finish
    returned: TokenCounts
    written: TokenCounts
    roots: Mapping[tuple[int, ...], int]
    answer: Answer
    thought: str
    thinking: dict[str, Any]
    cut_call: str


async def execute(plan: RequestPlan, started: Started, emit: Emit, charge: Charge, interval_s: float) -> None:
    """Run `plan` and emit its events, `Done` last; `charge` is told what each choice cost, however it ended.

    Raises:
        TTCError: the engine or a scorer failed.
    """
    if plan.request.forward:
        await execute_forward(plan, started, emit, charge, interval_s)
        return
    emit(started)
    share = plan.model.gate.share(wide=plan.at_once > 1)
    choices = await gather(
        _choice(plan, started.id, index, share, emit, charge, interval_s) for index in range(plan.request.num_replies)
    )
    ids = plan.prompts[0].token_ids if plan.request.return_token_ids else None
    emit(Done(_price(plan, choices), _result(plan, choices), ids))


def _price(plan: RequestPlan, choices: Sequence[_Choice]) -> TokenCounts:
    """What the whole request cost: choices of one prompt read it once."""
    total = sum((choice.written for choice in choices[1:]), choices[0].written)
    prompts: dict[tuple[int, tuple[int, ...]], int] = {}
    for index, choice in enumerate(choices):
        for ids, cached in choice.roots.items():
            place = (index // plan.request.num_choices, ids)
            prompts[place] = min(prompts.get(place, cached), cached)
    read = sum(len(ids) for _, ids in prompts)
    return replace(total, prompt=total.prompt + read, cached=total.cached + sum(prompts.values()))


async def _choice(
    plan: RequestPlan, name: str, index: int, share: FairShare, emit: Emit, charge: Charge, interval_s: float
) -> _Choice:
    """Run one choice from its first token to its `Finish`."""
    request, engine = plan.request, plan.model.engine
    prompt = plan.prompts[index // request.num_choices]
    deltas = _deltas(plan, index, emit)
    streams = plan.direct and request.stream and engine.capabilities.token_ids
    level = plan.progress if request.stream else "off"
    board = Board(level, lambda data: emit(SearchProgress(data)), interval_s, show=request.thinking.show)
    own = RequestEngine(engine, plan.model.gate, share, deltas if streams else None)
    session = _session(plan, name, index, prompt, own, board)
    echo: tuple[TokenLogprob, ...] = ()
    reading = Usage()

    def charge_reading(usage: Usage) -> None:
        nonlocal reading
        reading += usage
        charge(usage)

    try:
        if request.echo:
            emit(AnswerDelta(index, prompt.text))
        answer = await session.attempt(plan.call) if request.draws else _NOTHING
        if request.echo and request.logprobs:
            async with plan.model.gate.slot(share):
                echo, tops = await _echoed(plan, prompt, _untold(plan, session, prompt), charge_reading)
            own.tops.update(tops)
    finally:
        session.close()
        charge(session.usage)
    if not session.usage.calls and answer.stop_cause == "budget":
        raise _unpaid(plan, plan.prepaid_for(index))
    answer = replace(answer, usage=session.usage + reading, trace=session.trace)
    board.finish(answer)
    choice, pieces = _close(plan, index, session, own, answer)
    if not deltas.finish(choice.thought, choice.finish.answer):
        _log.error("streamed text differs from the final text", extra={"reply_id": name})
    for piece in pieces if _in_pieces(request) else ():
        emit(piece)
    if request.echo:
        rows = None if choice.finish.logprobs is None else echo + choice.finish.logprobs
        choice = replace(
            choice, finish=replace(choice.finish, answer=prompt.text + choice.finish.answer, logprobs=rows)
        )
    emit(choice.finish)
    return choice


def _in_pieces(request: ServeRequest) -> bool:
    """Whether the answer is streamed token by token once it is whole: each waits for its log-probabilities."""
    return request.stream and request.logprobs


def _deltas(plan: RequestPlan, index: int, emit: Emit) -> Deltas:
    """What sends a choice while it is sampled."""
    request, engine = plan.request, plan.model.engine
    form = plan.model.tools if request.form is not None and request.form.offer else None
    is_json = plan.model.tools is not None and request.form is not None and request.form.schema is not None

    def write_thinking(text: str) -> None:
        if request.thinking.show:
            emit(ThinkingDelta(index, text))

    return Deltas(
        engine.decode,
        engine.capabilities,
        write_thinking,
        (lambda text: None) if _in_pieces(request) else (lambda text: emit(AnswerDelta(index, text))),
        control=plan.settled.control,
        stop=(*([] if is_json else request.sampling.stop), *(form.marks if form else ())),
        strip=_strips(request),
        waits=form.may_begin if form and not form.trigger else None,  # only the whole answer tells whether it calls
    )


def _session(
    plan: RequestPlan, name: str, index: int, prompt: Prompt, own: RequestEngine, board: Board
) -> WatchedSession:
    """The session of a choice."""
    request = plan.request
    return WatchedSession(
        Problem(f"{name}/{index}", request.messages or prompt.messages, plan.answer_kind),
        own,
        answers=plan.answers,
        seed=plan.seed,
        index=index,
        sampling=plan.sampling,
        thinking=plan.settled.control,
        budget=plan.budget,
        start=prompt,
        fixed=request.raw or request.prefill is not None or (request.form is not None and request.form.held),
        max_ids=plan.max_ids,
        prepaid=plan.prepaid_for(index),
        logprobs=request.logprobs or not plan.direct,
        listen=board.take,
    )


def _unpaid(plan: RequestPlan, prepaid: int | None) -> ApiError:
    """The refusal of a budget that ended before anything was drawn: the request's own, or what its key has left."""
    limit, asked = plan.budget.tokens or 0, plan.request.search.max_total_tokens
    why = f"not pay for one draw of strategy {plan.strategy}"
    if prepaid is None or (asked is not None and limit >= asked // plan.request.num_replies):
        text = f"ttc.max_total_tokens = {limit} does {why}: raise it"
        return ApiError(400, "budget_exceeded", text, param="ttc.max_total_tokens")
    left, per_minute = limit + prepaid, plan.key.limits.tokens_per_minute
    text = (
        f"the {left} tokens that the key {plan.key.name} has left do {why}, whose prompt is longer than the request's"
    )
    if per_minute is not None and left < per_minute:
        return too_many("token_limit_exceeded", text, MINUTE_S)
    return ApiError(400, "token_limit_exceeded", text)


def _strips(request: ServeRequest) -> bool:
    """Whether white space before the first word goes: in a chat whose answer the model begins itself."""
    return not request.raw and request.prefill is None


def _untold(plan: RequestPlan, session: WatchedSession, prompt: Prompt) -> tuple[int, ...]:
    """The ids of the draw that was chosen, where the engine has not told their likeliest ones while it sampled.

    One less than the context has room for: to read ids, a server must sample one more.
    """
    capabilities = plan.model.engine.capabilities
    pieces = session.along(_chosen(session.trace) or ())
    if not pieces or "top_logprobs" in extras_of(capabilities):
        return ()
    return pieces[-1].ids[: max(capabilities.max_context - len(prompt.token_ids or ()) - 1, 0)]


async def _echoed(
    plan: RequestPlan, prompt: Prompt, drawn: tuple[int, ...], charge: Charge
) -> tuple[tuple[TokenLogprob, ...], Mapping[int, Top]]:
    """Every token of the prompt with its log-probability, the first has none; by position, the likeliest tokens.

    Those of `drawn`, which come behind it, too.
    """
    engine, ids, k = plan.model.engine, prompt.token_ids or (), plan.request.top_logprobs
    values: tuple[float, ...] = ()
    tops: Mapping[int, Top] = {}
    if k:
        if not isinstance(engine, TopLogprobEngine):
            raise TypeError(f"{engine.capabilities.model} does not report the likeliest tokens of a prompt")
        rows = await engine.top_logprobs((*ids, *drawn), 1, k, charge)
        values = tuple(row[token] for row, token in zip(rows, ids[1:], strict=False))
        tops = {position: _best(row, k) for position, row in enumerate(rows, 1)}
    elif len(ids) > 1:
        if not isinstance(engine, LogprobEngine):
            raise TypeError(f"{engine.capabilities.model} does not report the log-probabilities of a prompt")
        values = await engine.logprobs(ids, 1, charge)
    texts = pieces_of(engine.decode, ids)
    return tuple(
        TokenLogprob(text, value, _likeliest(engine.decode, tops.get(position, ())))
        for position, (text, value) in enumerate(zip(texts, (None, *values), strict=True))
    ), tops


def _best(row: Mapping[int, float], k: int) -> Top:
    return tuple(sorted(row.items(), key=lambda pair: (-pair[1], pair[0]))[:k])


def _likeliest(decode: Callable[[Sequence[int]], str], top: Top) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(decode([token]), logprob) for token, logprob in top)


def _chosen(trace: Sequence[Event]) -> Path | None:
    """The path of the draw that was returned."""
    return next((event.path for event in reversed(trace) if event.kind == "select"), None)


def _close(
    plan: RequestPlan, index: int, session: WatchedSession, own: RequestEngine, answer: Answer
) -> tuple[_Choice, list[AnswerDelta]]:
    """Count a finished choice and build what is sent of it; the pieces of its answer, with their log-probabilities."""
    request = plan.request
    path = _chosen(answer.trace)
    winner = next((candidate for candidate in answer.candidates if candidate.path == path), None)
    thinking = answer.thinking.lstrip() if _strips(request) else answer.thinking
    tokens = _Tokens(plan, session, [] if path is None else session.along(path), own.tops)
    shown = _shown(plan, answer.text, behind_thought=tokens.has_block)
    finish = Finish(
        index=index,
        reason=_reason(answer, path, has_calls=bool(shown.calls)),
        thinking=thinking if request.thinking.show else "",
        answer=shown.text,
        stop=shown.stop,
        logprobs=tuple(row for _, row in tokens.rows() if row is not None) if request.logprobs else None,
        token_ids=tokens.ids(request.thinking.show) if request.return_token_ids else None,
        tool_calls=tuple(_call(call, plan, index, number) for number, call in enumerate(shown.calls)),
    )
    root = tokens.root or plan.prompts[index // request.num_choices].token_ids
    roots = {ids: own.cached.get(ids, 0) for ids in session.roots if ids in own.cached}
    returned, written = _counts(session, own, root, tokens, winner)
    choice = _Choice(
        finish,
        returned,
        written,
        roots=roots if request.draws else {root or (): 0},
        answer=answer,
        thought=thinking,
        thinking=_thinking(plan, tokens, answer),
        cut_call=shown.cut_call,
    )
    return choice, tokens.pieces(index, shown.lead, shown.text) if request.logprobs else []


class _Shown(NamedTuple):
    """What is sent of an answer; `lead` characters before it are not, and `cut_call` is a call without its end."""

    text: str
    lead: int
    stop: str | None
    calls: tuple[ToolCall, ...]
    cut_call: str


def _shown(plan: RequestPlan, answer: str, *, behind_thought: bool) -> _Shown:
    """Cut an answer at the user's stop strings and read the calls in it; what a grammar has written is not cut.

    `behind_thought`: it follows a think block, be that empty.
    """
    request, tools, strip = plan.request, plan.model.tools, _strips(plan.request)
    form = None if tools is None else request.form
    free = len(answer) if form is None or tools is None else form.free(tools, answer)
    text, stop = cut_at_stop(answer[:free], request.sampling.stop, lead=strip or behind_thought)
    text += "" if stop is not None else answer[free:]
    lead = len(text) - len(text.lstrip()) if strip else 0
    text = text[lead:]
    if form is None or tools is None:
        return _Shown(text, lead, stop, (), "")
    cut_call = form.cut(tools, text)
    text, calls = form.read(tools, text)
    return _Shown(text, lead, stop, calls, cut_call)


def _counts(
    session: WatchedSession,
    own: RequestEngine,
    root: tuple[int, ...] | None,
    tokens: _Tokens,
    winner: Candidate | None,
) -> tuple[TokenCounts, TokenCounts]:
    """What the returned draw has, and what the whole choice cost but for the prompts it read."""
    usage = session.usage
    num_written = tokens.num_ids if root is not None else winner.num_tokens if winner else 0
    returned = TokenCounts(
        prompt=len(root or ()),
        cached=own.cached.get(root or (), 0),
        completion=num_written,
        reasoning=tokens.num_reasoning,
    )
    completion = usage.generated + usage.judged + session.num_injected
    written = TokenCounts(
        prompt=usage.scored,
        completion=completion,
        reasoning=usage.thinking,
        rejected=max(completion - usage.judged - num_written, 0),
        scored=usage.scored,
        judged=usage.judged,
    )
    if root is not None:
        return returned, written
    # Counted by the upstream server, as often as it was asked.
    return (
        replace(returned, prompt=tokens.num_prompt or usage.prompt),
        replace(written, prompt=usage.scored + usage.prompt, cached=usage.cached),
    )


def _thinking(plan: RequestPlan, tokens: _Tokens, answer: Answer) -> dict[str, Any]:
    """What the reply reports about a choice's thinking."""
    control = plan.settled.control
    is_off = control.template is False
    return {
        "mode": "off" if is_off else control.mode,
        "effort": plan.settled.effort,
        "budget": 0 if is_off else control.max_tokens,
        "requested": plan.settled.requested,
        "reserve": plan.settled.reserve,
        "used": tokens.num_thinking,
        "forced_end": tokens.forced_end,
        "ended_inside": tokens.inside and answer.finish_reason == "stop",
        "enforced": answer.enforced,
    }


def _reason(answer: Answer, path: Path | None, *, has_calls: bool) -> FinishReason:
    """How the chosen draw ended."""
    if answer.finish_reason == "stop":
        return "tool_calls" if has_calls else "stop"
    draws = (event.data for event in answer.trace if event.kind == "generate" and event.path == path)
    is_filtered = any(data["finish_reason"] == "abort" and data["stop_reason"] == FILTERED for data in draws)
    return "content_filter" if is_filtered else "length"


def _call(call: ToolCall, plan: RequestPlan, *place: int) -> dict[str, Any]:
    """A call as OpenAI's API has it."""
    return {
        "id": call_id(plan, *place),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


class _Tokens:
    """The ids of the draw that was chosen, from its own root on, thought and answer told apart."""

    def __init__(
        self, plan: RequestPlan, session: WatchedSession, pieces: Sequence[DrawnPiece], tops: Mapping[int, Top]
    ) -> None:
        self._engine, self._tops = plan.model.engine, tops
        capabilities = self._engine.capabilities
        last = pieces[-1] if pieces else None
        first = pieces[0].prompt if pieces else None
        self.root = None if first is None or first.token_ids is None else first.token_ids[: first.rendered_len]
        self._ids = () if last is None else last.ids
        self.num_ids = len(self._ids) + (0 if last is None else last.completion.num_eos)
        self._logprobs: list[float | None] = [None] * len(self._ids)
        self._start = len(self.root or ())
        self.forced_end, handover = False, 0
        for piece in pieces:
            begin = len(piece.prompt.generated_ids)
            for start, end in piece.completion.injected:
                words = _before_marker(piece.completion.token_ids[start:end], capabilities.think_close)
                if words is not None:
                    self.forced_end, handover = True, handover + words
            known = (piece.completion.logprobs or ())[: len(self._ids) - begin]
            self._logprobs[begin : begin + len(known)] = known
        self._starts_inside = first is not None and first.think_state == "open"
        parts = split(self._ids, self._starts_inside, capabilities)
        self.num_thinking, self.inside = len(parts.thinking) - handover, parts.inside
        self.has_block = self._starts_inside or len(parts.answer) < len(self._ids)
        paths = {piece.completion.path for piece in pieces}
        self.num_reasoning = sum(
            int(event.data["num_thinking"])
            for event in session.trace
            if event.kind == "generate" and event.path in paths
        )
        self.num_prompt = max((piece.completion.usage.prompt for piece in pieces), default=0)
        if not capabilities.token_ids:
            self.num_thinking = self.num_reasoning

    def ids(self, show: bool) -> tuple[int, ...]:
        """All ids, or only the answer's if the thought is hidden."""
        return self._ids if show else tuple(token for _, token in self._answer())

    def rows(self) -> list[tuple[int, TokenLogprob | None]]:
        """The ids of the answer, each with its log-probability; None if it was not sampled but inserted."""
        rows: list[tuple[int, TokenLogprob | None]] = []
        for position, token in self._answer():
            value = self._logprobs[position]
            top = self._tops.get(self._start + position, ())
            value = dict(top).get(token, value)  # of the same reading as its neighbours
            row = TokenLogprob(self._engine.decode([token]), value, _likeliest(self._engine.decode, top))
            rows.append((token, None if value is None else row))
        return rows

    def pieces(self, index: int, lead: int, answer: str) -> list[AnswerDelta]:
        """The answer of choice `index` token by token; `lead` characters before it are not shown."""
        rows = self.rows()
        texts = pieces_of(self._engine.decode, [token for token, _ in rows])
        pieces, begin = [], -lead
        for text, (_, row) in zip(texts, rows, strict=True):
            end = begin + len(text)
            shown = answer[max(begin, 0) : max(end, 0)]
            pieces.append(AnswerDelta(index, shown, () if row is None else (row,)))
            begin = end
        return [*pieces, AnswerDelta(index, answer[max(begin, 0) :], ())]

    def _answer(self) -> list[tuple[int, int]]:
        markers = Markers(self._starts_inside, self._engine.capabilities)
        return [(position, token) for position, token, inside in markers.settle(self._ids) if not inside]


def _before_marker(ids: Sequence[int], marker: Sequence[int]) -> int | None:
    """Ids before `marker` in an injected text; None when it is not there (a wait)."""
    size = len(marker)
    spots = range(len(ids) - size + 1) if size else ()
    return next((at for at in spots if tuple(ids[at : at + size]) == tuple(marker)), None)


def _result(plan: RequestPlan, choices: Sequence[_Choice]) -> dict[str, Any]:
    """The `ttc` object of the reply: of its first choice, with the usage of all."""
    first = choices[0]
    candidates = first.answer.candidates
    path = _chosen(first.answer.trace)
    result = plan.report(
        final=first.answer.final,
        candidates=[_candidate(candidate, plan) for candidate in candidates],
        chosen=next((i for i, candidate in enumerate(candidates) if candidate.path == path), None),
        thinking=first.thinking,
        usage=sum((choice.answer.usage for choice in choices), Usage()),
        stop_cause=first.answer.stop_cause,
    )
    returned = [choice.returned for choice in choices]
    result["returned"] = TokenCounts.joined(returned).returned()
    result |= _cut(first)
    if len(choices) > 1:
        result["choices"] = [{"index": i, "thinking": one.thinking, **_cut(one)} for i, one in enumerate(choices)]
    return result


def _cut(choice: _Choice) -> dict[str, str]:
    """The beginning of a call that the token limit cut, if whole calls precede it."""
    return {"cut_call": choice.cut_call} if choice.cut_call else {}


def _candidate(candidate: Candidate, plan: RequestPlan) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": list(candidate.path),
        "final": candidate.final,
        "score": candidate.score,
        "tokens": candidate.num_tokens,
        "finish_reason": candidate.finish_reason,
    }
    if plan.request.search.return_candidates:
        row["text"] = candidate.text
        if plan.request.thinking.show:
            row["thinking"] = candidate.thinking
    return row
