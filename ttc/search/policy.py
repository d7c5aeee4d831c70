"""What an allocation policy is: from the scores of the live nodes to the number of children of each.

Three kinds, each told by what it can do. A `Policy` is pure: no randomness of its own, no state, no view of text or
targets. A `Resampler` is pure as well, but paths carry weights and it is given dice, keyed by the place in the tree. A
`Searcher` grows the whole tree by itself, on the parts of `ttc.search.runtime`. Nodes arrive in path order, so a tie
goes to the earlier path whatever finished first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from ttc.config.registry import POLICIES
from ttc.config.specs import parse_spec

if TYPE_CHECKING:
    from ttc.core import Prompt
    from ttc.search.runtime import Growth, Node
    from ttc.session.session import Session

Dice: TypeAlias = Callable[[int], float]
"""Uniform number i in [0, 1) of one level of one subtree."""


class Policy(Protocol):
    """Decides how wide each live node grows."""

    def subtrees(self, n: int) -> tuple[int, ...]:
        """Split the width n into independent subtrees; their widths sum to n."""
        ...

    def allocate(self, scores: Sequence[float], width: int) -> list[int]:
        """Children of each live node; they sum to `width` exactly. A node without a verdict scores -inf."""
        ...


@dataclass(frozen=True, slots=True)
class Resampled:
    """Children of each live node, and the log weight that each child of it starts with."""

    counts: tuple[int, ...]
    log_weights: tuple[float, ...]


@runtime_checkable
class Resampler(Protocol):
    """Decides by chance, in proportion to weights that paths carry from level to level (sequential Monte Carlo)."""

    def subtrees(self, n: int) -> tuple[int, ...]:
        """As of `Policy`."""
        ...

    def increment(self, score: float) -> float:
        """Log of the factor by which a new step's score (-inf: no verdict) multiplies the weight of its path."""
        ...

    def resample(self, log_weights: Sequence[float], width: int, depth: int, dice: Dice) -> Resampled:
        """Share `width` children among the live nodes after level `depth` (from 1)."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """Grows a tree in its own order. One serves all problems of a run at once, so it keeps nothing in itself."""

    async def search(self, session: Session, root: Prompt, n: int, growth: Growth, first: int = 0) -> list[Node]:
        """Return at most n leaves in path order, cut paths included; the draws of the root begin with `first`."""
        ...


AnyPolicy: TypeAlias = Policy | Resampler | Searcher


@functools.lru_cache(maxsize=64)
def make_policy(spec: str, beam_width: int) -> AnyPolicy:
    """Make the policy that `spec` names: `beam`, `rebase:temperature=0.1`, `particle:scheme=residual,ess=0.5`.

    A policy keeps nothing between problems, so equal ones are made once: to look one up costs more than a level of a
    tree.

    Raises:
        ConfigError: no such policy or parameter, or a value out of range.
    """
    name, params = parse_spec(spec)
    made: AnyPolicy = POLICIES.create(name, params, supply={"beam_width": beam_width})
    return made


def keep_top(scores: Sequence[float], width: int, keep: int) -> list[int]:
    """Give `width` children to the `keep` best nodes, as equally as possible, the better ones first.

    >>> keep_top([0.1, 0.9, 0.5], 5, 2)
    [0, 3, 2]
    """
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: max(1, min(keep, width))]
    counts = [0] * len(scores)
    for rank, index in enumerate(order):
        counts[index] = width // len(order) + (rank < width % len(order))
    return counts
