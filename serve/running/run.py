"""Running a plan: its choices at once, as a stream of events; cancelling the task aborts every branch in the engine.

A `direct` choice is written while it is sampled; a search tells how it stands, and writes the chosen answer once it is
chosen. Texts are the same either way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serve.running import events
from serve.running.admission import FairShare
from serve.running.deltas import Deltas, Markers, cut_at_stop
from serve.running.forward import execute_forward
from serve.running.plan import RequestPlan
from serve.running.watch import Board, RequestEngine, WatchedSession
from ttc.concurrent import gather
from ttc.core import Answer, Candidate, Completion, Problem, Top, Usage
from ttc.session.solve import attempt
from ttc.session.thinking import split

Emit = Callable[[events.ServeEvent], None]
Charge = Callable[[Usage], None]
_log = logging.getLogger("serve")


@dataclass(frozen=True, slots=True)
class _Choice:
    """A finished choice: what is sent, counted and told of it."""

    finish: events.Finish
    counts: events.TokenCounts
    answer: Answer
    thought: str
    thinking: dict[str, Any]
    prompt_token_ids: tuple[int, ...] | None


async def execute(plan: RequestPlan, started: events.Started, emit: Emit, charge: Charge, interval_s: float) -> None:
    """Run `plan` and emit its events, `Done` last; `charge` is told what each choice cost, however it ended.

    Raises:
        TTCError: the engine or a scorer failed.
    """
    if plan.request.forward:
        await execute_forward(plan, started, emit, charge)
        return
    emit(started)
    share = plan.model.gate.share()
    choices = await gather(
        _choice(plan, started.id, index, share, emit, charge, interval_s) for index in range(plan.request.num_choices)
    )
    counts = events.TokenCounts.joined([choice.counts for choice in choices])
    emit(events.Done(counts, _result(plan, choices), choices[0].prompt_token_ids))


async def _choice(
    plan: RequestPlan, name: str, index: int, share: FairShare, emit: Emit, charge: Charge, interval_s: float
) -> _Choice:
    """Run one choice from its first token to its `Finish`."""
    request, engine = plan.request, plan.model.engine
    show, chat = request.thinking.show, request.text is None
    stop = plan.sampling.stop

    def write_thinking(text: str) -> None:
        if show:
            emit(events.ThinkingDelta(index, text))

    deltas = Deltas(
        engine.decode,
        engine.capabilities,
        write_thinking,
        lambda text: emit(events.AnswerDelta(index, text)),
        control=plan.settled.control,
        stop=stop,
        strip=chat,
    )
    streams = plan.direct and request.stream and engine.capabilities.token_ids
    board = Board(
        plan.progress if request.stream else "off", lambda data: emit(events.SearchProgress(data)), interval_s
    )
    own = RequestEngine(engine, plan.model.gate, share, deltas if streams else None)
    session = WatchedSession(
        Problem(f"{name}/{index}", request.messages, plan.answer_kind),
        own,
        seed=plan.seed,
        index=index,
        sampling=plan.sampling,
        thinking=plan.settled.control,
        budget=plan.budget,
        text=request.text,
        logprobs=request.logprobs or not plan.direct,
        listen=board.take,
    )
    try:
        answer = await attempt(session.problem, session, plan.call)
    finally:
        session.close()
        charge(session.usage)
    answer = replace(answer, usage=session.usage, trace=session.trace)
    board.finish(answer)
    choice = _close(plan, index, session, own, answer)
    if not deltas.finish(choice.thought, choice.finish.answer):
        _log.error("streamed text differs from the final text", extra={"request_id": name})
    emit(choice.finish)
    return choice


def _close(plan: RequestPlan, index: int, session: WatchedSession, own: RequestEngine, answer: Answer) -> _Choice:
    """Count a finished choice and build what is sent of it."""
    request, chat = plan.request, plan.request.text is None
    path = next((event.path for event in reversed(answer.trace) if event.kind == "select"), None)
    completions = [] if path is None else session.along(path)
    winner = next((candidate for candidate in answer.candidates if candidate.path == path), None)
    thinking = answer.thinking.lstrip() if chat else answer.thinking
    text, stop = cut_at_stop(answer.text, plan.sampling.stop)
    text = text.lstrip() if chat else text
    tokens = _Tokens(plan, session, completions, own.tops)
    prompt = plan.prompt
    generated = sum(completion.usage.generated for completion in completions)
    show = request.thinking.show
    finish = events.Finish(
        index=index,
        reason="stop" if answer.finish_reason == "stop" else "length",
        thinking=thinking if show else "",
        answer=text,
        stop=stop,
        logprobs=tokens.logprobs() if request.logprobs else None,
        token_ids=tokens.ids(show) if request.return_token_ids else None,
    )
    counts = events.TokenCounts(
        prompt=0 if prompt.token_ids is None else len(prompt.token_ids),
        cached=0 if path is None else own.cached.get(path[:1], 0),
        completion=generated if completions else (winner.num_tokens if winner else 0),
        reasoning=tokens.num_reasoning,
    )
    if prompt.token_ids is None:  # counted by the server behind
        counts = replace(counts, prompt=max((c.usage.prompt for c in completions), default=answer.usage.prompt))
    control = plan.settled.control
    thinking_report = {
        "mode": "off" if control.template is False else control.mode,
        "effort": plan.settled.effort,
        "budget": 0 if control.template is False else control.max_tokens,
        "requested": plan.settled.requested,
        "reserve": plan.settled.reserve,
        "used": tokens.num_thinking,
        "forced_end": tokens.forced_end,
        "ended_inside": tokens.inside and answer.finish_reason == "stop",
        "enforced": answer.enforced,
    }
    ids = prompt.token_ids if request.return_token_ids else None
    return _Choice(finish, counts, answer, thinking, thinking_report, ids)


class _Tokens:
    """The ids along the chosen path, thought and answer told apart."""

    def __init__(
        self, plan: RequestPlan, session: WatchedSession, completions: Sequence[Completion], tops: Mapping[int, Top]
    ) -> None:
        self._engine, self._tops = plan.model.engine, tops
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        capabilities = self._engine.capabilities
        self.forced_end, handover = False, 0
        starts_inside = bool(session.roots) and session.roots[0].think_state == "open"
        self._start = len(session.roots[0].token_ids or ()) if session.roots else 0
        for completion in completions:
            length = len(completion.token_ids) - completion.num_eos
            for start, end in completion.injected:
                words = _before_marker(completion.token_ids[start:end], capabilities.think_close)
                if words is not None:
                    self.forced_end, handover = True, handover + words
            self._ids += completion.token_ids[:length]
            self._logprobs += (completion.logprobs or (None,) * len(completion.token_ids))[:length]
        parts = split(self._ids, starts_inside, capabilities)
        self.num_thinking, self.inside = len(parts.thinking) - handover, parts.inside
        self.num_reasoning = sum(
            int(event.data["num_thinking"])
            for event in session.trace
            if event.kind == "generate" and any(event.path == completion.path for completion in completions)
        )
        if not capabilities.token_ids:
            self.num_thinking = self.num_reasoning
        self._starts_inside = starts_inside

    def ids(self, show: bool) -> tuple[int, ...]:
        """All ids, or those of the answer where the thought is hidden."""
        return tuple(self._ids) if show else tuple(token for _, token in self._answer())

    def logprobs(self) -> tuple[events.TokenLogprob, ...]:
        """Log-probabilities of the sampled tokens of the answer."""
        rows = []
        for position, token in self._answer():
            value = self._logprobs[position]
            if value is not None:
                top = self._tops.get(self._start + position, ())
                likeliest = tuple(events.TokenLogprob(self._engine.decode([other]), logprob) for other, logprob in top)
                rows.append(events.TokenLogprob(self._engine.decode([token]), value, likeliest))
        return tuple(rows)

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
    path = next((event.path for event in reversed(first.answer.trace) if event.kind == "select"), None)
    result = plan.report(
        final=first.answer.final,
        candidates=[_candidate(candidate, plan) for candidate in candidates],
        chosen=next((i for i, candidate in enumerate(candidates) if candidate.path == path), None),
        thinking=first.thinking,
        usage=sum((choice.answer.usage for choice in choices), Usage()),
        stop_cause=first.answer.stop_cause,
    )
    if len(choices) > 1:
        result["choices"] = [{"index": i, "thinking": choice.thinking} for i, choice in enumerate(choices)]
    return result


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
