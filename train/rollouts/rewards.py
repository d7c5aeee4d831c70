"""From a rollout to a reward: the verifier's verdict and weighted extra parts, each logged under its own name.

The verifier is the objective: 1 for `correct`, 0 for `incorrect`, `no_answer` and `unparseable` (or its partial score),
and *no reward* for `timeout`, `limit` and `error`, which say nothing about the policy (promise 5). A learnt reward
(`train.reward_models.reward_models`) stands beside it, or in its place when the verifier's weight is 0: then verdicts
are logged and decide nothing. There, too, is a generative verifier, whose critiques are kept. A process reward
(`train.reward_models.step_model`) gives steps rewards of their own. Shaping parts (`train/shaping/`) are functions of a
whole group and of the step. Every verifier runs behind a service (`ttc.verifiers.service`): one that hangs is a
`timeout`, one that raises an `error`, and a score that is no finite number is an `error` too, so a broken verifier
gives no reward and the health rules see how often. A verifier whose weights follow a schedule (`composite`) is asked as
of the step. A shaping part or a learnt reward that is not finite stops the run: it is the recipe's own code, and there
is no run without it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from numbers import Real
from statistics import fmean
from typing import Any, Protocol, TypeAlias, runtime_checkable

from train.base.rollout import Rollout
from train.registries import SHAPING
from ttc.config.plugins import checked_return, described
from ttc.config.recipes import parse_spec
from ttc.core import FinishReason, Submission, TargetLike, Verdict, Verifier
from ttc.errors import ConfigError, PluginError, TrainingError
from ttc.verifiers.service.service import Service

Shaping: TypeAlias = Callable[[Sequence[Rollout], int], Sequence[float]]
"""(rollouts of one group, judged; step) -> a number for each; it may be an async function."""

Process: TypeAlias = Callable[[Sequence[Rollout]], Sequence[tuple[tuple[int, float], ...]]]
"""rollouts -> `Rollout.step_rewards` of each."""

_NO_VERDICT = ("timeout", "limit", "error")
_AT_ONCE = 64
"""Verdicts that a verifier of training has to give at once; the others wait, their limit has not begun."""


@runtime_checkable
class Advancing(Protocol):
    """A verifier that is another one at every step, such as `composite` with a schedule of weights."""

    def at(self, step: int) -> Verifier:
        """The verifier of a step."""
        ...


class _Dated:
    """An advancing verifier whose target says the step: `{"step": .., "target": ..}`."""

    def __init__(self, verifier: Any) -> None:
        self.name, self.version, self._verifier = verifier.name, verifier.version, verifier
        self._now: tuple[int, Verifier] = (0, verifier.at(0))

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        self._verifier.check_gold(target, item)

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        step = int(target["step"])
        if step != self._now[0]:
            self._now = step, self._verifier.at(step)
        return await self._now[1].verify(target["target"], submission)

    async def close(self) -> None:
        await self._verifier.close()


def served(verifier: Verifier, wall_s: float | None = None) -> Service:
    """A verifier as a service, whose verdicts come within `wall_s` seconds; one that is a service already, as it is."""
    return verifier if isinstance(verifier, Service) else Service(verifier, concurrency=_AT_ONCE, wall_s=wall_s)


async def close_verifier(verifier: Verifier, log: Callable[[str], None]) -> None:
    """Close a verifier that has given its verdicts: one that hangs or raises only then is logged and costs nothing."""
    try:
        await verifier.close()
    except Exception as exc:  # a verifier of the user's may raise anything
        log(f"verifier {getattr(verifier, 'name', '')} could not be closed: {described(exc)}")


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


class Reviewer(Protocol):
    """A generative verifier: it writes about rollouts and rewards them by what it wrote."""

    async def add(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """The rollouts with critique, part and reward."""
        ...

    async def close(self) -> None:
        """Let go of its model."""
        ...


class Rewarder:
    """Judges rollouts; a verifier itself, as of the step that it judged last."""

    def __init__(
        self,
        verifier: Verifier,
        parts: Sequence[ShapingPart] = (),
        *,
        partial: bool = False,
        verifier_weight: float = 1.0,
        missing_end: float | None = None,
        wall_s: float | None = None,
        learnt: Learnt | None = None,
        process: Process | None = None,
        reviewer: Reviewer | None = None,
    ) -> None:
        """`partial` takes the verifier's partial credit instead of right or wrong; the rest: `RewardFields`."""
        self._advancing = isinstance(verifier, Advancing)
        self._verifier = served(_Dated(verifier) if self._advancing else verifier, wall_s)
        self._parts, self._partial, self._missing_end = tuple(parts), partial, missing_end
        self._weight, self._learnt, self._process, self._reviewer = verifier_weight, learnt, process, reviewer
        self.name, self.version, self._step = self._verifier.name, self._verifier.version, 0

    async def judge(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """Return the rollouts with verdict, parts and reward, in the same order."""
        self._step = step
        verdicts = await asyncio.gather(*(self._verify(rollout, step) for rollout in rollouts))
        results = [self._with_verdict(rollout, verdict) for rollout, verdict in zip(rollouts, verdicts, strict=True)]
        if self._learnt is not None and results:
            results = _add_learnt(results, await asyncio.to_thread(self._learnt, results), self._learnt.total)
        if self._process is not None and results:
            results = _add_steps(results, await asyncio.to_thread(self._process, results))
        if self._reviewer is not None and results:
            results = await self._reviewer.add(results, step)
        for part in self._parts:
            results = await _add(results, part, step)
        if self._missing_end is not None:
            results = [_unended(rollout, self._missing_end) for rollout in results]
        return _finite(results)

    async def check(self) -> None:
        """Ask the verifier its known cases; raises VerifierError naming the one that fails."""
        await asyncio.to_thread(self._verifier.start)

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """See `ttc.core.Verifier`."""
        self._verifier.check_gold(target, item)

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """See `ttc.core.Verifier`."""
        return await self._verdict(target, submission, self._step)

    async def close(self) -> None:
        """Stop the verifier's workers, and the model that writes critiques."""
        try:
            await self._verifier.close()
        finally:
            if self._reviewer is not None:
                await self._reviewer.close()

    async def _verify(self, rollout: Rollout, step: int) -> Verdict:
        finish: FinishReason = "stop" if rollout.finish_reason == "stop" else "length"
        return await self._verdict(rollout.target, Submission(rollout.text, rollout.thinking, finish), step)

    async def _verdict(self, target: TargetLike, submission: Submission, step: int) -> Verdict:
        asked = {"step": step, "target": target} if self._advancing else target
        verdict = await self._verifier.verify(asked, submission)
        if verdict.score is not None and not _is_number(verdict.score):
            reason = f"{self._verifier.name} gave the score {verdict.score!r}, which is not a number"
            return replace(verdict, status="error", score=None, reason=reason)
        return verdict if verdict.score is None else replace(verdict, score=float(verdict.score))

    def _with_verdict(self, rollout: Rollout, verdict: Verdict) -> Rollout:
        if not self._weight or rewarded_by(rollout.target) == "learnt":
            return replace(rollout, verdict=verdict, reward=0.0)
        if verdict.status in _NO_VERDICT:
            return replace(rollout, verdict=verdict, reward=None)
        value = float(verdict.correct)
        if self._partial and verdict.score is not None:
            value = verdict.score
        parts: Mapping[str, float] = {"verifier": value}
        return replace(rollout, verdict=verdict, reward=self._weight * value, parts=parts)


def _is_number(score: object) -> bool:
    """Whether what a verifier gave as a score, which may be anything, is a finite number."""
    return isinstance(score, Real) and math.isfinite(float(score))


def rewarded_by(target: TargetLike) -> str:
    """What a row of a mixture is rewarded by (`evals.tasks.mixture`): both, verifier or learnt; others by both."""
    named = isinstance(target, Mapping) and {"part", "target"} <= set(target)
    return str(target.get("reward", "both")) if named and isinstance(target, Mapping) else "both"


def _unended(rollout: Rollout, reward: float) -> Rollout:
    """A rollout with a reward that did not end by itself has this one instead (Tulu 3's penalty)."""
    if rollout.reward is None or not rollout.truncated:
        return rollout
    return replace(rollout, reward=reward, parts={**rollout.parts, "missing_end": reward})


def _finite(rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts; raises TrainingError where a reward is no number, naming its parts."""
    for rollout in rollouts:
        if rollout.reward is not None and not math.isfinite(rollout.reward):
            parts = ", ".join(f"{name} {value:g}" for name, value in rollout.parts.items())
            raise TrainingError(f"the reward of a rollout of {rollout.problem_id} is {rollout.reward}: {parts}")
    return rollouts


def _add_learnt(judged: Sequence[Rollout], scored: Mapping[str, Sequence[float]], total: str) -> list[Rollout]:
    """Add the learnt reward to every rollout that has one, and all its numbers to the parts."""
    rollouts: list[Rollout] = []
    for i, rollout in enumerate(judged):
        parts = {name: values[i] for name, values in scored.items()}
        learnt = 0.0 if rewarded_by(rollout.target) == "verifier" else parts[total]
        reward = None if rollout.reward is None else rollout.reward + learnt
        rollouts.append(replace(rollout, reward=reward, parts={**rollout.parts, **parts}))
    return rollouts


def _add_steps(judged: Sequence[Rollout], scored: Sequence[tuple[tuple[int, float], ...]]) -> list[Rollout]:
    """Give every rollout the rewards of its steps, and log their mean where it has any."""
    rollouts: list[Rollout] = []
    for rollout, steps in zip(judged, scored, strict=True):
        mean = {"process": fmean(value for _, value in steps)} if steps else {}
        rollouts.append(replace(rollout, step_rewards=steps, parts={**rollout.parts, **mean}))
    return rollouts


async def _add(judged: Sequence[Rollout], part: ShapingPart, step: int) -> list[Rollout]:
    """Add one part to the reward of every rollout that has one."""
    groups: dict[int, list[int]] = {}
    for index, rollout in enumerate(judged):
        groups.setdefault(rollout.group, []).append(index)
    result = list(judged)
    parts = await asyncio.gather(*(_asked(part, [judged[i] for i in own], step) for own in groups.values()))
    for members, values in zip(groups.values(), parts, strict=True):
        for i, value in zip(members, values, strict=True):
            reward = judged[i].reward
            total = None if reward is None else reward + part.weight * value
            result[i] = replace(judged[i], reward=total, parts={**judged[i].parts, part.name: value})
    return result


async def _asked(part: ShapingPart, rollouts: Sequence[Rollout], step: int) -> list[float]:
    """What a part gives for each rollout of a group."""
    numbers: object = part.shaping(rollouts, step)
    return _values(part, await numbers if isawaitable(numbers) else numbers, len(rollouts))


def _values(part: ShapingPart, returned: object, num: int) -> list[float]:
    """What a part gave for each of `num` rollouts; numbers of numpy and torch, and whole arrays of them, are read.

    Raises:
        PluginError: it is no sequence of `num`, or holds what is no number.
    """
    values: Sequence[object] = checked_return("shaping", part.shaping, _plain(returned), Sequence, num)  # type: ignore[type-abstract]
    return [_value(part, _plain(value)) for value in values]


def _value(part: ShapingPart, value: object) -> float:
    if not isinstance(value, Real):
        raise PluginError(
            f"shaping {part.name} gave {value!r} for a rollout, which is not a number; return one for each, "
            "0.0 for no effect"
        )
    return float(value)


def _plain(value: Any) -> object:
    """An array, a tensor or a scalar of theirs as lists and numbers of Python; all else as it is."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value
