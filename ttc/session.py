"""A session: one problem's view of an engine, and all that a strategy may touch.

Through it every request is seeded by path, held to the thinking control and the budget, charged to the meter and
written to the trace. Strategies and scorers never see the engine itself, other problems, or a target. Cancelling the
awaiting task aborts the requests in the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from ttc import seeds
from ttc.closing import close_path
from ttc.concurrent import gather
from ttc.core import (
    Answer,
    Budget,
    Candidate,
    Capabilities,
    Completion,
    Enforced,
    Engine,
    Event,
    Message,
    Path,
    Problem,
    Prompt,
    Sampling,
    Score,
    Scorer,
    Usage,
)
from ttc.errors import BudgetExceeded, ConfigError
from ttc.meter import FREE, Lease, Meter
from ttc.thinking import OUT_OF_CALLS, Thinking, controlled, count_sampled_thinking

T = TypeVar("T")
Shared: TypeAlias = dict[Callable[[], Any], Any]
"""What the sessions of one run have in common, by the factory that made it."""


def _shortened(completion: Completion, lease: Lease, sampling: Sampling) -> bool:
    """Whether the budget, and not the request, ended a draw."""
    if completion.finish_reason != "length":
        return False
    return lease.max_tokens < sampling.max_tokens or completion.stop_reason == OUT_OF_CALLS


_UNPAID = Score(None, note="budget.tokens does not cover its scoring")


class Session:
    """What a strategy receives besides the problem."""

    def __init__(
        self,
        problem: Problem,
        engine: Engine,
        *,
        seed: int,
        sampling: Sampling,
        thinking: Thinking | None = None,
        budget: Budget | None = None,
        shared: Shared | None = None,
    ) -> None:
        """Bind `engine` to `problem`; `seed` is the run's, `sampling` the run-level defaults of each draw.

        `shared` is one dictionary for all sessions of a run; without it, this session is a run of its own.
        """
        self.problem = problem
        self.thinking = thinking or Thinking()
        self.thinking.check(engine.capabilities)
        if budget is not None and budget.flops is not None and engine.capabilities.shape is None:
            raise ConfigError(
                f"budget.flops: the size of {engine.capabilities.model} is not known, so set budget.tokens"
            )
        self.sampling = replace(sampling, seed=seeds.derive(seed, problem.id), logprobs=engine.capabilities.logprobs)
        self.seed = seed
        self._engine = engine
        self._meter = Meter(budget)
        self._events: list[Event] = []
        self._scorers: list[Scorer] = []
        self._shared: Shared = {} if shared is None else shared
        self._held: list[Enforced] = []

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can honour."""
        return self._engine.capabilities

    @property
    def usage(self) -> Usage:
        """Everything charged so far."""
        return self._meter.usage

    @property
    def trace(self) -> tuple[Event, ...]:
        """The events in tree order, independent of the schedule (stable within one path)."""
        return tuple(sorted(self._events, key=lambda event: event.path))

    @property
    def enforced(self) -> Enforced:
        """How the thinking budget was held."""
        if not self.thinking.active:
            return "none"
        return "native" if self._held and set(self._held) == {"native"} else "ids"

    def render(self, thinking: Thinking | None = None) -> Prompt:
        """Render the problem as the root of the tree; `thinking` overrides the session's."""
        prompt = self._engine.render(self.problem.messages, (thinking or self.thinking).template)
        return replace(prompt, problem_id=self.problem.id, messages=self.problem.messages)

    def ask(self, messages: Sequence[Message], path: Path) -> Prompt:
        """Render a question of the strategy's own (to compare, to revise), at a `path` that no other draw has."""
        prompt = self._engine.render(messages, self.thinking.template)
        return replace(prompt, problem_id=self.problem.id, messages=tuple(messages), path=path)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` that a strategy injects, without any special token added."""
        return self._engine.encode(text)

    def chance(self, *purpose: int | str) -> float:
        """Return the uniform number in [0, 1) that belongs to `purpose`: a strategy's own dice, keyed like a draw."""
        return seeds.uniform(seeds.derive(self.sampling.seed or 0, "strategy", *purpose), 0)

    def subtree(self, parts: int, index: int) -> Session:
        """Return a view of this session that may spend share `index` of `parts` equal ones of what is left."""
        view = copy.copy(self)
        view._meter = self._meter.share(parts, index)
        return view

    @property
    def exhausted(self) -> bool:
        """Whether the budget has ended some of the work."""
        return self._meter.exhausted

    @property
    def rationed(self) -> bool:
        """Whether tokens are limited: then whoever asks first may get the last ones, so the order must be kept."""
        return self._meter.budget.tokens is not None

    @property
    def limited(self) -> bool:
        """Whether there is a budget of any kind: then what is asked for together may come back in part."""
        return self._meter.limited

    def shared(self, factory: Callable[[], T]) -> T:
        """Return the one object of `factory` that all sessions of this run share; made at the first call.

        For what concerns the schedule or a budget of the whole run; nothing that decides a draw may live here.
        """
        if factory not in self._shared:
            self._shared[factory] = factory()
        found: T = self._shared[factory]
        return found

    def note(self, kind: str, path: tuple[int, ...], **data: object) -> None:
        """Add an event to the trace."""
        self._events.append(Event(kind, path, data))

    async def generate(
        self,
        prompt: Prompt,
        draws: range | int,
        *,
        sampling: Sampling | None = None,
        thinking: Thinking | None = None,
        scorer: Scorer | None = None,
        resumed: bool = False,
    ) -> list[Completion]:
        """Continue `prompt` once per draw; fewer completions come back when the budget ends first.

        `scorer` is the one that every draw will be scored by: where it can tell its price, a token budget keeps room
        for that. `resumed`: `prompt` is itself a draw that was to be scored and will now only be as part of these.

        Raises:
            BudgetExceeded: nothing at all could be drawn.
        """
        numbers = range(draws) if isinstance(draws, int) else draws
        sampling = sampling or self.sampling
        thinking = thinking or self.thinking
        done: list[Completion] = []
        while numbers:
            try:
                price = self._meter.price(prompt, scorer)
                lease = self._meter.lease(
                    len(numbers),
                    sampling.max_tokens,
                    price,
                    prompt.path,
                    thinking.calls_each,
                    thinking.count_injected(self._engine) if price.per_token else 0,
                )
            except BudgetExceeded:
                self._meter.exhaust()
                if done:
                    break
                raise
            if resumed:
                self._meter.release(prompt.path)
            now, numbers = numbers[: lease.num_draws], numbers[lease.num_draws :]
            try:
                leased = lease.hold(sampling, self.sampling)
                drawn = await self._meter.in_time(self._draw(prompt, leased, now, thinking, lease.max_calls))
            finally:
                self._meter.settle(lease)
            if any(_shortened(completion, lease, sampling) for completion in drawn):
                self._meter.exhaust()
            if lease.price != FREE:
                before = self._meter.price(prompt, scorer).fixed
                wanted = [self._meter.price(prompt.then(completion), scorer).fixed - before for completion in drawn]
                self._meter.keep(lease, drawn, wanted)
            done += drawn
        return done

    async def _draw(
        self, prompt: Prompt, sampling: Sampling, draws: range, thinking: Thinking, max_calls: int | None
    ) -> list[Completion]:
        """Run draws in the engine; charge their thinking tokens; write the trace."""
        if thinking.active and thinking.template is not False:
            completions = await gather(
                controlled(
                    self._engine, prompt, sampling, draw, thinking, self._meter.add, max_calls, self._held.append
                )
                for draw in draws
            )
        else:
            completions = await self._engine.generate(prompt, sampling, draws, self._meter.add)
        counts = count_sampled_thinking(prompt, completions, self.capabilities)
        if any(counts):
            self._meter.add(Usage(thinking=sum(counts)))
        for completion, count in zip(completions, counts, strict=True):
            # Without ids the engine has charged what its server counted.
            num_thinking = count if completion.token_ids else completion.usage.thinking
            self.note(
                "generate",
                completion.path,
                text=completion.text,
                num_tokens=completion.usage.generated,
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
                thinking=num_thinking > 0,
                num_thinking=num_thinking,
                injected=[list(span) for span in completion.injected],
            )
        return completions

    async def score(self, scorer: Scorer, prompts: Sequence[Prompt]) -> list[Score]:
        """Score the generated part of each prompt; the scorer's tokens and FLOPs are charged here.

        A prompt whose scoring the token budget does not cover has no verdict.
        """
        if not any(known is scorer for known in self._scorers):
            self._scorers.append(scorer)
        affordable = [prompt for prompt in prompts if self._meter.affords(prompt.path)]
        if len(affordable) < len(prompts):
            self._meter.exhaust()
        try:
            told = iter(await self._meter.in_time(scorer.score(affordable, self._meter.add)))
        finally:
            for prompt in affordable:
                self._meter.release(prompt.path)
        scores = [next(told) if self._meter.affords(prompt.path) else _UNPAID for prompt in prompts]
        for prompt, score in zip(prompts, scores, strict=True):
            self.note("score", prompt.path, value=score.value, steps=list(score.steps), note=score.note)
        return scores

    def candidate(self, prompt: Prompt, completion: Completion, score: float | None = None) -> Candidate:
        """Close a path (`ttc.closing`): split thinking from answer and extract the final answer."""
        whole = prompt.then(completion)
        return self.candidate_at(whole, completion.finish_reason, score, completion.usage.generated)

    def candidate_at(
        self, whole: Prompt, finish_reason: str, score: float | None = None, num_tokens: int = 0
    ) -> Candidate:
        """`candidate` for a prompt that already ends the path; `num_tokens` is its length where there are no ids."""
        return close_path(whole, self._engine, self.problem.kind, finish_reason, score, num_tokens)

    def answer(self, chosen: Candidate | None, candidates: Sequence[Candidate], stop_cause: str = "done") -> Answer:
        """Build the strategy's answer from the chosen candidate (None: nothing was found)."""
        if chosen is not None:
            self.note("select", chosen.path)
        return Answer(
            text=chosen.text if chosen else "",
            final=chosen.final if chosen else None,
            thinking=chosen.thinking if chosen else "",
            finish_reason=chosen.finish_reason if chosen else "length",
            candidates=tuple(sorted(candidates, key=lambda candidate: candidate.path)),
            stop_cause="budget" if self._meter.exhausted else stop_cause,
            enforced=self.enforced,
        )

    def close(self) -> None:
        """Free what scorers keep for this problem."""
        for scorer in self._scorers:
            scorer.release(self.problem.id)
