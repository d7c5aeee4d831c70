"""From a rollout to a reward: the verifier's verdict and weighted extra parts, each logged under its own name.

The verifier is the objective: 1 for `correct`, 0 for `incorrect`, `no_answer` and `unparseable` (or its partial score),
and *no reward* for `timeout`, `limit` and `error`, which say nothing about the policy (promise 5). A learnt reward
(`train.reward_models.reward_models`) stands beside it, or in its place when the verifier's weight is 0: then verdicts
are logged and decide nothing. A process reward (`train.reward_models.step_model`) gives steps rewards of their own.
Shaping parts (`train/shaping/`) are functions of a whole group and of the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol, TypeAlias

from train.base.rollout import Rollout
from train.registries import SHAPING
from ttc.config.plugins import checked_return
from ttc.config.recipes import parse_spec
from ttc.core import FinishReason, Submission, Verdict, Verifier
from ttc.errors import ConfigError

Shaping: TypeAlias = Callable[[Sequence[Rollout], int], Sequence[float]]
"""(rollouts of one group, judged; step) -> a number for each."""

Process: TypeAlias = Callable[[Sequence[Rollout]], Sequence[tuple[tuple[int, float], ...]]]
"""rollouts -> `Rollout.step_rewards` of each."""

_NO_VERDICT = ("timeout", "limit", "error")


@dataclass(frozen=True, slots=True)
class ShapingPart:
    """One shaping part and its weight in the reward."""

    name: str
    weight: float
    shaping: Shaping


def shaping_part(spec: str) -> ShapingPart:
    """Return a shaping part: `length:weight=0.5,start=20`; the weight is the recipe's, the rest the function's."""
    name, options = parse_spec(spec)
    text = options.pop("weight", None)
    if text is None:
        raise ConfigError(f"shaping {name!r} has no weight: write {name}:weight=0.5")
    try:
        weight = float(str(text))
    except ValueError as exc:
        raise ConfigError(f"shaping {name}: weight must be a number, got {text!r}") from exc
    return ShapingPart(name, weight, SHAPING.create(name, options, supply={}))


def of_each(value: Callable[[Rollout], float]) -> Shaping:
    """A shaping that looks at one rollout at a time."""
    return lambda rollouts, step: [value(rollout) for rollout in rollouts]


class Learnt(Protocol):
    """A learnt reward: numbers for rollouts, each by name; those of `total` are added to the reward."""

    total: str

    def __call__(self, rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[float]]:
        """Score all rollouts of a step at once."""
        ...


class Rewarder:
    """Judges rollouts."""

    def __init__(
        self,
        verifier: Verifier,
        parts: Sequence[ShapingPart] = (),
        *,
        partial: bool = False,
        verifier_weight: float = 1.0,
        learnt: Learnt | None = None,
        process: Process | None = None,
    ) -> None:
        """`partial` takes the verifier's partial credit instead of right or wrong."""
        self._verifier, self._parts, self._partial = verifier, tuple(parts), partial
        self._weight, self._learnt, self._process = verifier_weight, learnt, process

    async def judge(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """Return the rollouts with verdict, parts and reward, in the same order."""
        verdicts = await asyncio.gather(*(self._verify(rollout) for rollout in rollouts))
        results = [self._with_verdict(rollout, verdict) for rollout, verdict in zip(rollouts, verdicts, strict=True)]
        if self._learnt is not None and results:
            results = _add_learnt(results, await asyncio.to_thread(self._learnt, results), self._learnt.total)
        if self._process is not None and results:
            results = _add_steps(results, await asyncio.to_thread(self._process, results))
        for part in self._parts:
            results = _add(results, part, step)
        return results

    async def close(self) -> None:
        """Stop the verifier's workers."""
        await self._verifier.close()

    async def _verify(self, rollout: Rollout) -> Verdict:
        finish: FinishReason = "stop" if rollout.finish_reason == "stop" else "length"
        return await self._verifier.verify(rollout.target, Submission(rollout.text, rollout.thinking, finish))

    def _with_verdict(self, rollout: Rollout, verdict: Verdict) -> Rollout:
        if not self._weight:
            return replace(rollout, verdict=verdict, reward=0.0)
        if verdict.status in _NO_VERDICT:
            return replace(rollout, verdict=verdict, reward=None)
        value = float(verdict.correct)
        if self._partial and verdict.score is not None:
            value = verdict.score
        parts: Mapping[str, float] = {"verifier": value}
        return replace(rollout, verdict=verdict, reward=self._weight * value, parts=parts)


def _add_learnt(judged: Sequence[Rollout], scored: Mapping[str, Sequence[float]], total: str) -> list[Rollout]:
    """Add the learnt reward to every rollout that has one, and all its numbers to the parts."""
    rollouts: list[Rollout] = []
    for i, rollout in enumerate(judged):
        parts = {name: values[i] for name, values in scored.items()}
        reward = None if rollout.reward is None else rollout.reward + parts[total]
        rollouts.append(replace(rollout, reward=reward, parts={**rollout.parts, **parts}))
    return rollouts


def _add_steps(judged: Sequence[Rollout], scored: Sequence[tuple[tuple[int, float], ...]]) -> list[Rollout]:
    """Give every rollout the rewards of its steps, and log their mean where it has any."""
    rollouts: list[Rollout] = []
    for rollout, steps in zip(judged, scored, strict=True):
        mean = {"process": fmean(value for _, value in steps)} if steps else {}
        rollouts.append(replace(rollout, step_rewards=steps, parts={**rollout.parts, **mean}))
    return rollouts


def _add(judged: Sequence[Rollout], part: ShapingPart, step: int) -> list[Rollout]:
    """Add one part to the reward of every rollout that has one."""
    groups: dict[int, list[int]] = {}
    for index, rollout in enumerate(judged):
        groups.setdefault(rollout.group, []).append(index)
    result = list(judged)
    for members in groups.values():
        returned = part.shaping([judged[i] for i in members], step)
        values: Sequence[float] = checked_return("shaping", part.shaping, returned, Sequence, len(members))  # type: ignore[type-abstract]
        for i, value in zip(members, values, strict=True):
            reward = judged[i].reward
            total = None if reward is None else reward + part.weight * value
            result[i] = replace(judged[i], reward=total, parts={**judged[i].parts, part.name: value})
    return result
