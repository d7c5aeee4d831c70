"""Which replica of an engine draws what: even loads, and continuations where their keys and values are.

Many draws of one prompt are cut into contiguous runs, so that every replica gets its share; a few stay together. A
continuation goes to the replica that drew what it continues, unless that one is much busier than another: then
computing its prompt again is cheaper than waiting. Randomness is keyed by path, so where a draw runs cannot change it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ttc.core import Path, Prompt

__all__ = ["Router"]

_RUN = 8
"""Fewest draws of one prompt worth computing that prompt once more for."""
_SLACK = 8
"""How many more draws than the idlest replica may be running where a continuation's cache is."""
_REMEMBERED = 1 << 16
"""Places of finished draws that are remembered."""


class Router:
    """Counts what runs on each replica and remembers where every draw ran. Not thread-safe."""

    def __init__(self, num: int) -> None:
        self.load = [0] * num
        self._home: OrderedDict[tuple[str, Path], int] = OrderedDict()

    def split(self, prompt: Prompt, draws: range) -> list[tuple[int, range]]:
        """Return (replica, draws) in the order of the draws; `running` must follow."""
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
        """The replica that runs least."""
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
    """Contiguous shares of `draws` that leave all replicas in `loads` as even as can be; empty shares are left out."""
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
