"""Label steps without people (`MonteCarlo`): a step is as good as the answers that continue from it.

Math-Shepherd (Wang et al. 2024, arXiv:2312.08935). Solutions are sampled and cut into steps. The model continues
several times after each step, and the step's label is the share of these continuations that reach the right answer
(soft), or whether any does (hard). The solution itself counts as one continuation of each of its prefixes; a whole
solution needs none. Continuations are drawn in rounds: each round goes to the prefixes whose success rate is least
certain (the variance of its Beta posterior), so a prefix that always or never succeeds costs few.

Draws are written to disk as they are judged (`DrawJournal`): an interrupted labelling resumes after the last judged
draw and gives the same labels. Cost: `continuations` completions per prefix on average. Left out: binary search for the
first error (OmegaPRM), which labels fewer steps.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

from evals.task import Item
from train.reward_models.step_model import StepRow, Steps
from ttc.answers import kind_of
from ttc.concurrent import gather
from ttc.core import Completion, Engine, Prompt, Sampling, Submission, TargetLike, Verifier
from ttc.records import LineFile, decode, encode, iterate
from ttc.session.session import Session

_UNKNOWN = ("timeout", "limit", "error")
"""Statuses of a verdict that say nothing about a prefix."""


@dataclass(slots=True)
class Tried:
    """The continuations of one prefix: how many were right, judged, and drawn."""

    right: int = 0
    judged: int = 0
    drawn: int = 0

    def variance(self, more: int = 0) -> float:
        """Variance of the success rate's posterior, as it would shrink with `more` draws of the same kind."""
        rate, strength = (self.right + 1) / (self.judged + 2), self.judged + more + 3
        return rate * (1 - rate) / strength


Place: TypeAlias = tuple[str | int, ...]
"""A problem's id for its solutions; or that, a path in its tree, and the numbers of the draws there."""


class DrawJournal:
    """The draws of a labelling on disk: a line per place, with its verdicts. One process has it open at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, and read what an earlier process wrote; raises RecordError for a broken line."""
        self._file = LineFile(path)
        self._lines: dict[str, Any] = {json.dumps(row["place"]): row["outcome"] for _, row in iterate(path)}

    def earlier(self, place: Place) -> Any:
        """What an earlier process wrote for a place; None if nothing."""
        return self._lines.get(json.dumps(place))

    def add(self, place: Place, outcome: object) -> None:
        """Write the outcome of a place."""
        self._file.write({"place": place, "outcome": outcome}, sync=False)

    def __enter__(self) -> Self:
        """Return the open journal."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self._file.close()


@dataclass(slots=True)
class _Solution:
    """A sampled solution that is being labelled: its path, where its steps end, and the continuations of each."""

    item: Item
    session: Session
    root: Prompt
    path: Prompt
    reads: tuple[int, ...]
    verdict: float | None
    tried: list[Tried]


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """How labels are made: `n` solutions per problem, `continuations` per prefix on average, in `rounds`."""

    engine: Engine
    verifier: Verifier
    sampling: Sampling
    seed: int
    steps: Steps
    n: int = 4
    continuations: int = 8
    rounds: int = 4
    hard: bool = False
    journal: DrawJournal | None = None

    async def rows(self, items: Sequence[Item]) -> tuple[list[StepRow], int]:
        """Label solutions of `items`; returns the rows, and how many continuations were drawn."""
        with ExitStack() as sessions:
            return await self._labelled(items, sessions)

    async def _labelled(self, items: Sequence[Item], sessions: ExitStack) -> tuple[list[StepRow], int]:
        parts = await gather(self._solutions(item, sessions) for item in items)
        solutions = [solution for part in parts for solution in part]
        open_ = [(solution, index) for solution in solutions for index in range(len(solution.tried))]
        size = -(-self.continuations // self.rounds)
        left = self.continuations * len(open_)
        while left > 0 and open_:
            states = [solution.tried[index] for solution, index in open_]
            chunks = most_uncertain(states, min(-(-left // size), len(open_)), size, self.hard)
            if not chunks:
                break
            await gather(self._continue(*open_[place], num) for place, num in chunks)
            left -= sum(num for _, num in chunks)
        return [self._row(solution) for solution in solutions], sum(state.drawn for s in solutions for state in s.tried)

    async def _solutions(self, item: Item, sessions: ExitStack) -> list[_Solution]:
        session = Session(
            item.problem, self.engine, answers=kind_of(item.problem.kind), seed=self.seed, sampling=self.sampling
        )
        sessions.enter_context(closing(session))
        root = session.render()
        solutions = []
        for completion, verdict in await self._sampled(item, session, root):
            path = root.then(completion)
            reads = self.steps.reads(path)
            if not reads:
                continue  # it ended at once: there is no step to judge
            tried = [Tried(int(verdict == 1.0), int(verdict is not None)) for _ in reads[:-1]]
            solutions.append(_Solution(item, session, root, path, reads, verdict, tried))
        return solutions

    async def _sampled(self, item: Item, session: Session, root: Prompt) -> list[tuple[Completion, float | None]]:
        """The problem's solutions with their verdicts, drawn now or by an earlier process."""
        place: Place = (item.problem.id,)
        kept = None if self.journal is None else self.journal.earlier(place)
        if kept is not None:
            return [(decode(Completion, completion), verdict) for completion, verdict in kept]
        completions = await session.generate(root, self.n)
        verdicts = await self._judge(session, root, completions, item.target)
        pairs = list(zip(completions, verdicts, strict=True))
        if self.journal is not None:
            self.journal.add(place, [[encode(completion), verdict] for completion, verdict in pairs])
        return pairs

    async def _continue(self, solution: _Solution, index: int, num: int) -> None:
        """Draw `num` more continuations after step `index`."""
        tried = solution.tried[index]
        draws = range(tried.drawn, tried.drawn + num)
        place: Place = (solution.item.problem.id, *solution.path.path, index, draws.start, draws.stop)
        verdicts = None if self.journal is None else self.journal.earlier(place)
        if verdicts is None:
            verdicts = await self._drawn(solution, index, draws)
            if self.journal is not None:
                self.journal.add(place, verdicts)
        tried.drawn += num
        known = [verdict for verdict in verdicts if verdict is not None]
        tried.judged += len(known)
        tried.right += sum(map(int, known))

    async def _drawn(self, solution: _Solution, index: int, draws: range) -> list[float | None]:
        """The verdicts of continuations after step `index`."""
        ids = (solution.path.token_ids or ())[len(solution.root.token_ids or ()) : solution.reads[index] + 1]
        prefix = solution.root.extend(ids, self.engine.decode(ids))
        prefix = replace(prefix, path=(*solution.path.path, index))
        left = replace(self.sampling, max_tokens=max(self.sampling.max_tokens - len(ids), 1))  # the cap is the answer's
        completions = await solution.session.generate(prefix, draws, sampling=left)
        verdicts = await self._judge(solution.session, prefix, completions, solution.item.target)
        for completion in completions:
            solution.session.prune(completion.path)  # nothing continues it, so the engine need not keep it
        return verdicts

    async def _judge(
        self, session: Session, prompt: Prompt, completions: Sequence[Completion], target: TargetLike
    ) -> list[float | None]:
        """1 or 0 per completion; None where the verifier cannot tell."""
        ends = [session.candidate(prompt, completion) for completion in completions]
        verdicts = await gather(
            self.verifier.verify(target, Submission(end.text, end.thinking, end.finish_reason)) for end in ends
        )
        return [None if verdict.status in _UNKNOWN else float(verdict.correct) for verdict in verdicts]

    def _row(self, solution: _Solution) -> StepRow:
        labels = [self._label(tried) for tried in solution.tried]
        ids = solution.path.token_ids or ()
        return StepRow(solution.item.problem.id, ids, solution.reads, (*labels, solution.verdict))

    def _label(self, tried: Tried) -> float | None:
        if not tried.judged:
            return None
        return float(tried.right > 0) if self.hard else tried.right / tried.judged


def most_uncertain(states: Sequence[Tried], num: int, size: int, hard: bool) -> list[tuple[int, int]]:
    """The next `num` chunks of `size` draws: (place, draws) of each prefix that gets any, the least certain first.

    A prefix counts as more certain once it has a chunk; ties go to the first. With `hard` labels, a prefix is decided
    as soon as one continuation is right.
    """
    heap = [(-state.variance(), place) for place, state in enumerate(states) if not (hard and state.right)]
    heapq.heapify(heap)
    draws: dict[int, int] = {}
    for _ in range(num):
        if not heap:
            break
        _, place = heapq.heappop(heap)
        draws[place] = draws.get(place, 0) + size
        heapq.heappush(heap, (-states[place].variance(draws[place]), place))
    return sorted(draws.items())
