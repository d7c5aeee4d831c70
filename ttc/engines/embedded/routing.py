"""Assign draws to replicas: even loads, and continuations where their keys and values are cached.

Many draws of one prompt are split into contiguous ranges, one for each replica; a few stay together. A continuation
goes to the replica that drew its prefix, unless that one is much busier than another: then computing the prompt again
is cheaper than waiting. Randomness is keyed by path, so the result of a draw does not depend on where it runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ttc.core import Path, Prompt

_RUN = 8
"""Fewest draws per replica for which one prompt is computed on several replicas."""
_SLACK = 8
"""A continuation goes to its cache unless that replica runs this many more draws than the idlest."""
_REMEMBERED = 1 << 16
"""How many finished draws are remembered."""


class Router:
    """Counts the running draws of each replica and remembers where each draw ran. Not thread-safe."""

    def __init__(self, num: int) -> None:
        self.load = [0] * num
        self._home: OrderedDict[tuple[str, Path], int] = OrderedDict()

    def split(self, prompt: Prompt, draws: range) -> list[tuple[int, range]]:
        """Return (replica, draws) in the order of the draws; to be followed by `running`."""
        runs = min(len(self.load), max(len(draws) // _RUN, 1))
        if runs == 1:
            routes = [(self._one(prompt, draws), draws)]
        else:
            idlest = sorted(range(len(self.load)), key=lambda replica: (self.load[replica], replica))[:runs]
            routes = _shares(draws, {replica: self.load[replica] for replica in idlest})
        for replica, part in routes:
            for draw in part:
                self._remember((prompt.problem_id, (*prompt.path, draw)), replica)
        return routes

    def idlest(self) -> int:
        """The replica with the fewest running draws."""
        return min(range(len(self.load)), key=lambda replica: (self.load[replica], replica))

    @contextmanager
    def running(self, parts: Sequence[tuple[int, range]]) -> Iterator[None]:
        """Count the draws of `parts`, each on its replica, while the block runs."""
        for replica, draws in parts:
            self.load[replica] += len(draws)
        try:
            yield
        finally:
            for replica, draws in parts:
                self.load[replica] -= len(draws)

    def _one(self, prompt: Prompt, draws: range) -> int:
        idlest = self.idlest()
        # the same draw resumed (its own path), or children of a node (the path of the prompt)
        for path in ((*prompt.path, *draws[:1]), prompt.path):
            home = self._home.get((prompt.problem_id, path))
            if home is not None and self.load[home] - self.load[idlest] <= _SLACK:
                return home
        return idlest

    def _remember(self, key: tuple[str, Path], replica: int) -> None:
        self._home[key] = replica
        self._home.move_to_end(key)
        if len(self._home) > _REMEMBERED:
            self._home.popitem(last=False)


def _shares(draws: range, loads: dict[int, int]) -> list[tuple[int, range]]:
    """Split `draws` into contiguous ranges that make the loads as equal as possible; empty ranges are left out."""
    level = dict(loads)
    for _ in draws:
        level[min(level, key=lambda replica: (level[replica], replica))] += 1
    shares, start = [], draws.start
    for replica, before in loads.items():
        end = start + level[replica] - before
        if end > start:
            shares.append((replica, range(start, end)))
        start = end
    return shares
