"""Step labels without people: a step is as good as what comes of going on from it.

Math-Shepherd (Wang et al. 2024, arXiv:2312.08935): solutions are sampled and cut into steps; from behind each step the
model goes on several times, and the label is the share of right answers (soft), or whether there is any (hard). The
solution itself counts as one continuation of each of its prefixes, and a whole solution needs none. Continuations go
where they tell most: in rounds, each round to the prefixes whose success rate is least certain (the variance of its
Beta posterior), so a prefix that always or never works out costs few. Cost: `continuations` completions per prefix on
average. Left out: binary search for the first error (OmegaPRM), which labels fewer steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evals.task import Item
from train.reward_models.step_model import StepRow, Steps
from ttc.answers import kind_of
from ttc.concurrent import gather
from ttc.core import Candidate, Completion, Engine, Prompt, Sampling, Submission, Target, Verifier
from ttc.errors import ConfigError
from ttc.session.session import Session

_UNKNOWN = ("timeout", "limit", "error")
"""Statuses that say nothing about a prefix."""


@dataclass(slots=True)
class Tried:
    """What became of one prefix: continuations judged right, judged at all, and drawn."""

    right: int = 0
    judged: int = 0
    drawn: int = 0

    def variance(self, more: int = 0) -> float:
        """Variance of the success rate's posterior, as it would shrink with `more` draws of the same kind."""
        rate, strength = (self.right + 1) / (self.judged + 2), self.judged + more + 3
        return rate * (1 - rate) / strength


@dataclass(slots=True)
class _Solution:
    """A sampled solution on its way to a row: its path, where its steps end, and what became of each."""

    item: Item
    session: Session
    root: Prompt
    path: Prompt
    reads: tuple[int, ...]
    verdict: float | None
    tried: list[Tried] = field(default_factory=list)


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

    def __post_init__(self) -> None:
        """Refuse numbers below 1, and draws that would all be the same."""
        for name in ("n", "continuations", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.sampling.temperature > 0:
            raise ConfigError("continuations must be sampled at a temperature above 0")

    async def rows(self, items: Sequence[Item]) -> tuple[list[StepRow], int]:
        """Label solutions of `items`; returns the rows, and how many continuations were drawn."""
        parts = await gather(self._solutions(item) for item in items)
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
        for solution in solutions:
            solution.session.close()
        return [self._row(solution) for solution in solutions], sum(state.drawn for s in solutions for state in s.tried)

    async def _solutions(self, item: Item) -> list[_Solution]:
        session = Session(
            item.problem, self.engine, answers=kind_of(item.problem.kind), seed=self.seed, sampling=self.sampling
        )
        root = session.render()
        solutions = []
        for completion in await session.generate(root, self.n):
            (verdict,) = await self._judge(session, root, [completion], item.target)
            path = root.then(completion)
            reads = self.steps.reads(path)
            if not reads:
                continue  # it ended at once: there is no step to judge
            solution = _Solution(item, session, root, path, reads, verdict)
            has_verdict = verdict is not None
            solution.tried = [Tried(int(verdict == 1.0), int(has_verdict)) for _ in reads[:-1]]
            solutions.append(solution)
        return solutions

    async def _continue(self, solution: _Solution, index: int, num: int) -> None:
        """Draw `num` more continuations from behind step `index`."""
        tried = solution.tried[index]
        ids = (solution.path.token_ids or ())[len(solution.root.token_ids or ()) : solution.reads[index] + 1]
        prefix = solution.root.extend(ids, self.engine.decode(ids))
        prefix = replace(prefix, path=(*solution.path.path, index))
        left = replace(self.sampling, max_tokens=max(self.sampling.max_tokens - len(ids), 1))  # the cap is the answer's
        draws = range(tried.drawn, tried.drawn + num)
        completions = await solution.session.generate(prefix, draws, sampling=left)
        tried.drawn += num
        verdicts = [
            v for v in await self._judge(solution.session, prefix, completions, solution.item.target) if v is not None
        ]
        tried.judged += len(verdicts)
        tried.right += sum(map(int, verdicts))

    async def _judge(
        self, session: Session, prompt: Prompt, completions: Sequence[Completion], target: Target
    ) -> list[float | None]:
        """1 or 0 per completion; None where the verifier cannot tell."""
        ends: list[Candidate] = [session.candidate(prompt, completion) for completion in completions]
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

    A prefix that was given a chunk becomes more certain by it before the next is given; ties go to the first. With
    `hard` labels a prefix from which a right answer was found is decided.
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
