"""The frontier sampler: draw prompts that the policy solves sometimes, since only they carry a signal.

Each difficulty has a Beta posterior of its success rate, each item one of its own that starts from its difficulty's.
Old evidence fades by `decay` per step, because the policy changes. An item is drawn with weight p (1 - p) (`frontier`),
1 - p (`hard`, Kimi k1.5's prioritised sampling) or equally (`uniform`); `explore` keeps a share for every item. An item
solved by its whole group `retire` times in a row is dropped; with `fresh` every item is dropped once it was learnt
from. The draw is a pure function of (seed, step, round, counts), so a resumed run draws what it would have drawn. Left
out: items that depend on each other.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from evals.task import Item
from train.base.rollout import Rollout
from ttc.errors import ConfigError
from ttc.seeds import derive, uniforms

Mode: TypeAlias = Literal["frontier", "hard", "uniform", "fresh"]

_WEIGHTS: Mapping[Mode, Callable[[float], float]] = {
    "frontier": lambda p: 4 * p * (1 - p),
    "hard": lambda p: 1 - p,
    "uniform": lambda p: 1.0,
    "fresh": lambda p: 1.0,
}


@dataclass(slots=True)
class _Count:
    """Evidence of one item or difficulty: passes and tries (both fading), and how many times in a row all passed."""

    passed: float = 0.0
    tried: float = 0.0
    streak: int = 0


_NOTHING = _Count()
"""No evidence; never changed."""
_STRENGTH = 4.0
"""How many tries of its own an item's difficulty is worth."""


class Frontier:
    """Draws items; `update` tells it how they went."""

    def __init__(
        self,
        items: Sequence[Item],
        *,
        seed: int,
        mode: Mode = "frontier",
        explore: float = 0.1,
        decay: float = 0.98,
        retire: int | None = None,
    ) -> None:
        if not items:
            raise ConfigError("the sampler has no items to draw from")
        if not (0 <= explore <= 1 and 0 < decay <= 1 and (retire is None or retire >= 1)):
            raise ConfigError("sampler: needs 0 <= explore <= 1, 0 < decay <= 1 and retire >= 1 or none")
        self._items = {item.problem.id: item for item in items}
        self._seed, self._weight, self._explore = seed, _WEIGHTS[mode], explore
        self._decay, self._retire, self._once = decay, retire, mode == "fresh"
        self._of_item: dict[str, _Count] = {}
        self._of_difficulty: dict[str, _Count] = {}

    def draw(self, number: int, step: int, round_: int = 0, exclude: Sequence[str] = ()) -> list[Item]:
        """Return up to `number` different items, none of them in `exclude` (ids)."""
        barred = set(exclude)
        key = np.full(len(self._items), derive(self._seed, "draw", step, round_), np.uint64)
        noise = uniforms(key, np.arange(len(key), dtype=np.uint64)).tolist()
        keyed = []
        for u, (name, item) in zip(noise, self._items.items(), strict=True):
            if name in barred or self._dropped(name):
                continue
            weight = self._explore + (1 - self._explore) * self._weight(self.rate(item))
            # the largest keys are a weighted draw without replacement (Efraimidis & Spirakis 2006)
            keyed.append((math.log(max(u, 1e-300)) / max(weight, 1e-9), name))
        return [self._items[name] for _, name in heapq.nlargest(number, keyed)]

    def rate(self, item: Item) -> float:
        """Posterior mean of the success rate of `item`; one half before anything is known."""
        group = self._of_difficulty.get(item.difficulty or "", _NOTHING)
        prior = (group.passed + 1) / (group.tried + 2)
        own = self._of_item.get(item.problem.id, _NOTHING)
        return (own.passed + _STRENGTH * prior) / (own.tried + _STRENGTH)

    def update(self, rollouts: Sequence[Rollout]) -> None:
        """Add the outcomes of one step; rollouts without a verdict only show that their item was asked."""
        for count in (*self._of_item.values(), *self._of_difficulty.values()):
            count.passed, count.tried = count.passed * self._decay, count.tried * self._decay
        results: dict[str, list[bool]] = {}
        for rollout in rollouts:
            passed = results.setdefault(rollout.problem_id, [])
            if rollout.reward is not None and rollout.verdict is not None:
                passed.append(rollout.verdict.correct)
        for name, passed in results.items():
            item = self._items.get(name)
            if item is None:
                continue
            own = self._of_item.setdefault(name, _Count())
            if not passed:
                continue
            for count in (own, self._of_difficulty.setdefault(item.difficulty or "", _Count())):
                count.passed += sum(passed)
                count.tried += len(passed)
            own.streak = own.streak + 1 if all(passed) else 0

    def state(self) -> dict[str, Any]:
        """JSON of all counts."""
        counts = {"items": self._of_item, "difficulties": self._of_difficulty}
        return {kind: {name: list(astuple(count)) for name, count in of.items()} for kind, of in counts.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._of_item = {name: _Count(*values) for name, values in state["items"].items()}
        self._of_difficulty = {name: _Count(*values) for name, values in state["difficulties"].items()}

    def _dropped(self, name: str) -> bool:
        if self._once and name in self._of_item:
            return True
        return self._retire is not None and self._of_item.get(name, _NOTHING).streak >= self._retire
