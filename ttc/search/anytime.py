"""Search under a budget: first get one answer, then search as wide as the rest pays for.

A search at full width under too small a budget finishes no path and has no answer. So here the first path is drawn
whole and unscored, like any single sample: that gives an answer at the price of one sample and shows what a path costs.
The rest of the budget pays for a search as wide as that cost allows, narrowing as it goes, and for another one after it
as long as that is at least three paths wide. What then remains scores finished paths without a score and draws plain
samples. A budget for fewer than three guided paths is spent on plain samples; one that certainly covers the whole
search does not change the search. Related: budget-aware tree search (arXiv 2602.09574, arXiv 2603.12634).

The length of the first path is the estimate for all. At each level a search compares the rest of the budget with what
its live paths need to finish: it continues with all of them, or with fewer, or stops scoring and finishes the best.

Under a budget in seconds only, the first path is drawn in parallel to the search; on a CPU it has the session's head
start. Cost: at most the budget. Left out: sharing the first path's steps with the search, lengths by depth, later
paths.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ttc.choosing.selection import aggregate
from ttc.concurrent import gather
from ttc.core import Completion, Price, Prompt
from ttc.search.tree import NO_VERDICT, Course, Growth, Node
from ttc.session.meter import Cost
from ttc.session.session import Session


@dataclass(frozen=True, slots=True)
class FirstPath:
    """The first path: its tokens, its steps, its prompt's tokens, and the price of scoring a path like it."""

    num_tokens: int
    num_steps: int
    num_prompt: int
    price: Price

    def unscored(self, session: Session, num_sampled: int) -> Cost:
        """What finishing a path takes after `num_sampled` of its tokens, in one request."""
        tokens = self._rest(num_sampled)
        return Cost(tokens, session.thinking.calls_each, self._flops(session, tokens, num_sampled))

    def scored(self, session: Session, num_sampled: int, depth: int) -> Cost:
        """What finishing a path takes step by step after `depth` steps, all of them scored."""
        tokens = self._rest(num_sampled)
        steps = max(self.num_steps - depth, 1)
        scoring = self.price.fixed * (not depth) + self.price.per_token * tokens + self.price.per_draw * steps
        flops = self._flops(session, tokens, num_sampled)
        shape = self.price.shape
        if shape is not None:
            flops += shape.flops(scoring, self.num_prompt + num_sampled)
        return Cost(tokens + scoring, session.thinking.calls_each * steps, flops)

    def _rest(self, num_sampled: int) -> int:
        """Tokens to the end; a path longer than the first one is assumed to need one more step."""
        return max(self.num_tokens - num_sampled, -(-self.num_tokens // self.num_steps), 1)

    def _flops(self, session: Session, num_tokens: int, num_sampled: int) -> float:
        before = self.num_prompt + num_sampled
        read, kept = (num_tokens, before) if num_sampled else (before + num_tokens, 0)
        return session.capabilities.flops(read, kept)


class Pace:
    """The estimates of one search; mutable, as its first path is not known at the start."""

    def __init__(self) -> None:
        self.path: FirstPath | None = None

    def learn(
        self, prompt: Prompt, completion: Completion, stop: tuple[str, ...], max_step_tokens: int, price: Price
    ) -> None:
        """Take the first path as the measure of all; `stop` and `max_step_tokens` end a step."""
        num_tokens = max(completion.usage.generated, 1)
        ends = sum(completion.text.count(mark) for mark in stop)
        self.path = FirstPath(
            num_tokens=num_tokens,
            num_steps=max(ends + 1, -(-num_tokens // max_step_tokens)),
            num_prompt=len(prompt.token_ids or ()),
            price=price,
        )

    def course(self, session: Session, num_sampled: int, depth: int, width: int, level_s: float) -> Course:
        """Choose how `width` live paths go on after `depth` levels that took `level_s` seconds each on average."""
        path = self.path
        if path is None:
            return Course(width)
        guided = session.pays_for(path.scored(session, num_sampled, depth))
        in_time = session.seconds_left >= level_s * (max(path.num_steps - depth, 1) + 1)
        if in_time and guided >= width:
            return Course(width)
        # Guidance is worth more than width, until it would leave less than half of the paths.
        if in_time and guided >= max(width / 2, 1):
            return Course(int(guided))
        finished = session.pays_for(path.unscored(session, num_sampled))
        return Course(max(int(min(finished, width)), 1), guided=False)


LEAST_WIDTH = 3
"""Paths from which on guidance pays: a vote of unscored samples, twice as many, is as good as a search of two."""

Run: TypeAlias = Callable[[Growth, int, int], Awaitable[list[Node]]]
"""(growth, width, number of the first draw at the root) -> leaves of a search of that width."""


async def find_leaves(session: Session, root: Prompt, n: int, growth: Growth, run: Run) -> list[Node]:
    """Return the leaves of a search of n paths, in path order: at most n, and at least one where one can be finished.

    Errors of the engine and the scorer pass through.
    """
    if not session.limited or _surely_paid(session, root, n, growth):
        return await run(growth, n, 0)
    search = _Search(session, root, growth, run, Pace())
    if session.pays_for(Cost(1, 1, 1)) == math.inf:  # only time is limited
        leaves = await search.side_by_side(n)
    else:
        session.narrow()
        leaves = await search.in_turn(n)
    return sorted(leaves, key=lambda node: node.prompt.path)


def _surely_paid(session: Session, root: Prompt, n: int, growth: Growth) -> bool:
    """Whether the budget covers n paths of the greatest length, plus as many tokens in pruned steps."""
    if session.seconds_left < math.inf:
        return False
    tokens, price = 2 * growth.sampling.max_tokens, session.price(root, growth.scorer)
    path = Cost(
        tokens * (1 + price.per_token) + price.fixed + price.per_draw * growth.max_depth,
        session.thinking.calls_each * growth.max_depth,
        session.capabilities.flops(len(root.token_ids or ()) + tokens, 0) + price.flops(tokens),
    )
    return session.pays_for(path) >= n


@dataclass(frozen=True, slots=True)
class _Search:
    """One problem's search under a budget."""

    session: Session
    root: Prompt
    growth: Growth
    run: Run
    pace: Pace

    async def in_turn(self, n: int) -> list[Node]:
        """The first path, then searches while they are affordable, then scores and samples."""
        leaves = await self._open()
        if self.pace.path is None:
            return leaves
        searched, num_paths = False, 1
        while (width := self._width(n - num_paths)) >= LEAST_WIDTH:
            leaves += await self._grow(width, num_paths)
            searched, num_paths = True, num_paths + width
        if searched:
            leaves = await self._score(leaves)
        leaves += await self._sample(range(num_paths, n), searched)
        return await self._score(leaves) if self._can_score_all(leaves) else leaves

    async def side_by_side(self, n: int) -> list[Node]:
        """The first path beside the search of all others."""
        work = [self._open()] + ([self._grow(n - 1, 1)] if n > 1 else [])
        return [leaf for leaves in await gather(work) for leaf in leaves]

    def _width(self, most: int) -> int:
        """How many paths the rest of the budget pays for."""
        path = self.pace.path
        return 0 if path is None else int(min(self.session.pays_for(path.scored(self.session, 0, 0)), most))

    async def _open(self) -> list[Node]:
        completions = await self.session.generate(self.root, range(1), sampling=self.growth.sampling, least=0)
        for completion in completions:
            growth, price = self.growth, self.session.price(self.root, self.growth.scorer)
            self.pace.learn(self.root, completion, growth.stop, growth.max_step_tokens, price)
        return [_sampled(self.root, completion) for completion in completions]

    async def _grow(self, width: int, first: int) -> list[Node]:
        return await self.run(replace(self.growth, pace=self.pace.course), width, first)

    def _can_score_all(self, leaves: list[Node]) -> bool:
        """Whether the rest pays for all missing scores: beside scored leaves, unscored ones have no say."""
        prices = [self.session.price(leaf.prompt, self.growth.scorer) for leaf in leaves if _bare(leaf)]
        cost = Cost(sum(price.fixed for price in prices), 0, sum(price.flops(0) for price in prices))
        return self.session.pays_for(cost) >= 1

    async def _score(self, leaves: list[Node]) -> list[Node]:
        """Score finished paths that have no score, as far as the budget covers it."""
        bare = [leaf for leaf in leaves if _bare(leaf)]
        scores = await self.session.score(self.growth.scorer, [leaf.prompt for leaf in bare]) if bare else []
        values = {
            leaf.prompt.path: aggregate(score, self.growth.aggregation, self.growth.window)
            for leaf, score in zip(bare, scores, strict=True)
        }
        return [replace(leaf, score=values.get(leaf.prompt.path, leaf.score)) for leaf in leaves]

    async def _sample(self, numbers: range, scored: bool) -> list[Node]:
        """Draw plain samples with the rest; beside scored leaves only as many as can also be scored."""
        path = self.pace.path
        if path is None or not numbers:
            return []
        if not scored:
            completions = await self.session.generate(self.root, numbers, sampling=self.growth.sampling, least=0)
            return [_sampled(self.root, completion) for completion in completions]
        affordable = int(min(self.session.pays_for(path.scored(self.session, 0, path.num_steps - 1)), len(numbers)))
        completions = await self.session.generate(
            self.root, numbers[:affordable], sampling=self.growth.sampling, scorer=self.growth.scorer, least=0
        )
        return await self._score([_sampled(self.root, completion) for completion in completions])


def _bare(leaf: Node) -> bool:
    return leaf.score is None and leaf.finished


def _sampled(root: Prompt, completion: Completion) -> Node:
    """A plain sample as a leaf: without a score, and without a weight among resampled paths."""
    return Node(root.then(completion), completion, None, completion.usage.generated, NO_VERDICT)
