"""Particle Gibbs: several rounds of a particle filter, each of which keeps one path of the round before.

Andrieu, Doucet, Holenstein 2010, "Particle Markov Chain Monte Carlo Methods"; on language models Puri et al. 2025
(arXiv 2502.01618). A round is the filter of `particle` with multinomial resampling after every step, in which the kept
path has a reserved place; afterwards one of all paths is kept, by weight. So the kept paths form a Markov chain that
leaves the scorer-weighted distribution invariant with any number of particles, while a single filter with few particles
is biased. n paths are spread evenly over the rounds; there are fewer rounds if n is small, since each needs a new path
beside the kept one, which is not drawn again. Rounds run one after another. A path's population weight is the sum of
its shares over the rounds. Left out: ancestor sampling, triggers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ttc.choosing.selection import pick
from ttc.concurrent import gather
from ttc.core import Path, Prompt
from ttc.errors import ConfigError
from ttc.search.policies.particle import Weight, check, log_weight
from ttc.search.resampling import log_sum, normalise
from ttc.search.tree import Branch, Growth, Node, Searcher, ended, grow
from ttc.session.session import Session

Way: TypeAlias = tuple[Node, ...]
"""The nodes of a path, from its first step."""


@dataclass(frozen=True, slots=True)
class Walker:
    """A growing path and its log weight; `kept` marks the one chosen by the previous round."""

    way: Way
    log_weight: float = 0.0
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Gibbs:
    """See the module docstring."""

    rounds: int
    temperature: float
    weight: Weight

    async def search(self, session: Session, root: Prompt, n: int, growth: Growth, first: int = 0) -> list[Node]:
        """Run the rounds, or as many as the budget allows; every path is returned once."""
        numbers = {root.path: first}
        leaves: dict[Path, Node] = {}
        kept: Way = ()
        for number, width in enumerate(widths_of(n, self.rounds)):
            walkers = await self.walk(session, root, width, kept, growth, number, numbers)
            if not walkers:
                break
            shares = normalise([walker.log_weight for walker in walkers])
            for walker, share in zip(walkers, shares, strict=True):
                leaf = walker.way[-1]
                earlier = leaves.get(leaf.prompt.path)
                before = -math.inf if earlier is None else earlier.log_weight
                own = math.log(share) if share > 0 else -math.inf
                leaves[leaf.prompt.path] = replace(leaf, log_weight=log_sum([before, own]))
            kept = walkers[pick(shares, session.chance("gibbs", number))].way
        return [leaves[path] for path in sorted(leaves)]

    async def walk(
        self,
        session: Session,
        root: Prompt,
        width: int,
        kept: Way,
        growth: Growth,
        number: int,
        numbers: dict[Path, int],
    ) -> list[Walker]:
        """One round: `width` walkers that have all ended, the kept one among them; fewer when the budget ends.

        `numbers` counts the children of every node, so that no draw is made twice.
        """
        done: list[Walker] = []
        live = [Walker((), kept=bool(kept) and not i) for i in range(width)]
        for depth in range(growth.max_depth):
            live = await self._step(session, root, live, kept, depth, growth, numbers)
            done += [walker for walker in live if ended(walker.way[-1], growth)]
            live = [walker for walker in live if not ended(walker.way[-1], growth)]
            if not live:
                break
            if depth < growth.max_depth - 1:
                live = self._resample(session, live, number, depth)
        return [*done, *live]

    async def _step(
        self,
        session: Session,
        root: Prompt,
        live: Sequence[Walker],
        kept: Way,
        depth: int,
        growth: Growth,
        numbers: dict[Path, int],
    ) -> list[Walker]:
        branches = []
        for walker in live:
            if walker.kept:
                continue
            prompt, sampled = (walker.way[-1].prompt, walker.way[-1].num_sampled) if walker.way else (root, 0)
            draw = numbers.get(prompt.path, 0)
            numbers[prompt.path] = draw + 1
            branches.append(Branch(prompt, range(draw, draw + 1), sampled))
        work = (grow(session, branch, growth) for branch in branches)  # lazily: a failure leaves none unawaited
        grown = iter([await one for one in work] if session.rationed else await gather(work))
        families = [[kept[depth]] if walker.kept else next(grown) for walker in live]
        return [
            replace(
                walker,
                way=(*walker.way, node),
                log_weight=walker.log_weight + log_weight(node.rank, self.weight) / self.temperature,
            )
            for walker, family in zip(live, families, strict=True)
            for node in family
        ]

    def _resample(self, session: Session, live: Sequence[Walker], number: int, depth: int) -> list[Walker]:
        """Draw a parent for every place but the kept path's; all get an equal part of the total weight."""
        weights = [walker.log_weight for walker in live]
        shares, each = normalise(weights), log_sum(weights) - math.log(len(live))
        return [
            replace(
                walker if walker.kept else live[pick(shares, session.chance("gibbs", number, depth, place))],
                log_weight=each,
                kept=walker.kept,
            )
            for place, walker in enumerate(live)
        ]


def widths_of(n: int, rounds: int) -> list[int]:
    """Return the walkers of each round: n new paths in all, and from the second round on the kept one beside them.

    >>> widths_of(16, 4), widths_of(3, 4)
    ([5, 5, 5, 4], [2, 2])
    """
    rounds = max(min(rounds, n - 1), 1)
    each, rest = divmod(n - 1, rounds)
    return [each + 1 + (number < rest) for number in range(rounds)]


def gibbs(*, rounds: int = 4, temperature: float = 1.0, weight: Weight = "score") -> Searcher:
    """Make the policy.

    Args:
        rounds: filters one after another, less than n; 1 is a plain one.
        temperature: above 1 the scorer is trusted less.
        weight: score, or odds, by which a step multiplies the weight of its path.
    """
    check(1.0, temperature)
    if rounds < 1:
        raise ConfigError(f"gibbs: rounds must be >= 1, got {rounds}")
    return Gibbs(rounds, temperature, weight)
