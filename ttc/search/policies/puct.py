"""PUCT: Monte Carlo tree search whose rollouts stay in the tree and whose values come from the scorer.

Rosin 2011 (PUCT); as in AlphaZero (Silver et al. 2017), with the scorer in place of a value network. One simulation
walks down from the root: at a node with fewer than `beam_width` children a new one, valued like the node itself,
competes with the existing ones; the child with the highest mean value + c * prior * sqrt(visits of the node) / (1 +
visits) is taken, with equal priors. Where it leaves the tree it grows one path to the end, step by step, all scored,
and the leaf's score is averaged into its ancestors, whose own scores count as one leaf each. A leaf without a verdict
counts as the lowest score so far, on any scale; an inner node without one does not count. n simulations give n leaves.
Cost: n completions less the shared prefixes; the simulations of one problem run one after another, so it is the slowest
policy. A branch whose leaves are all closed is not visited again. Left out: virtual loss (parallel simulations),
learned priors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ttc.core import Prompt
from ttc.errors import ConfigError
from ttc.search.tree import Branch, Growth, Node, Searcher, ended, grow
from ttc.session.session import Session


@dataclass(slots=True)
class _Place:
    """A node of the tree with its statistics; private to one search, so it may change."""

    prompt: Prompt
    num_sampled: int
    depth: int
    first: int = 0
    """Number of its first child."""
    value: float | None = None
    """The scorer's own value of this place, worth as much as one leaf; None at the root and without a verdict."""
    visits: int = 0
    total: float = 0.0
    closed: bool = False
    children: list[_Place] = field(default_factory=list)

    @property
    def mean(self) -> float:
        num_values = self.visits + (self.value is not None)
        return (self.total + (self.value or 0.0)) / num_values if num_values else 0.0


@dataclass(frozen=True, slots=True)
class Puct:
    """See the module docstring."""

    beam_width: int
    c: float

    async def search(self, session: Session, root: Prompt, n: int, growth: Growth, first: int = 0) -> list[Node]:
        """Run n simulations, or as many as the budget and the tree allow."""
        top, leaves = _Place(root, 0, 0, first=first), list[Node]()
        lowest, unvalued = math.inf, list[list[_Place]]()
        while len(leaves) < n and not top.closed:
            way = self._descend(top)
            leaf = await self._roll_out(session, way, growth)
            if leaf is None:
                break
            leaves.append(leaf)
            lowest = min([lowest, *(place.value for place in way if place.value is not None)])
            unvalued += [way] if way[-1].value is None else []
            for place in way:
                place.visits += 1
                place.total += way[-1].value or 0.0
            if lowest < math.inf:  # until there is a score, all are alike
                for place in (place for other in unvalued for place in other):
                    place.total += lowest
                unvalued = []
            for place in reversed(way):
                full = len(place.children) >= self.beam_width
                place.closed = place.closed or (full and all(child.closed for child in place.children))
        return sorted(leaves, key=lambda node: node.prompt.path)

    def _descend(self, top: _Place) -> list[_Place]:
        """Return the path to the node that gets a new child."""
        way = [top]
        while True:
            here = way[-1]
            options = [child for child in here.children if not child.closed]
            best = max(options, key=lambda child: self._merit(here, child.mean, child.visits), default=None)
            if best is None:
                return way
            has_room = len(here.children) < self.beam_width
            if has_room and self._merit(here, here.mean, 0) > self._merit(here, best.mean, best.visits):
                return way
            way.append(best)

    def _merit(self, parent: _Place, mean: float, visits: int) -> float:
        return mean + self.c / self.beam_width * math.sqrt(max(parent.visits, 1)) / (1 + visits)

    async def _roll_out(self, session: Session, way: list[_Place], growth: Growth) -> Node | None:
        """Grow one path from the end of `way`, adding its nodes to it; None when the budget is spent."""
        while True:
            here = way[-1]
            number = here.first + len(here.children)
            branch = Branch(here.prompt, range(number, number + 1), here.num_sampled)
            children = await grow(session, branch, growth)
            if not children:
                return None
            (node,) = children
            child = _Place(node.prompt, node.num_sampled, here.depth + 1, value=node.score)
            here.children.append(child)
            way.append(child)
            if ended(node, growth) or child.depth >= growth.max_depth:
                child.closed = True
                return node


def puct(*, beam_width: int = 4, c: float = 0.25) -> Searcher:
    """Make the policy.

    Args:
        beam_width: most children of a node.
        c: weight of exploration, in units of the score.
    """
    if beam_width < 1:
        raise ConfigError(f"beam_width must be >= 1, got {beam_width}")
    if not (math.isfinite(c) and c >= 0):
        raise ConfigError(f"puct: c must be >= 0, got {c}")
    return Puct(beam_width, c)
