"""Judge the recorded rollouts of a run again, with another verifier or another version of it, and reward them anew.

A rollout holds its target and its text, so neither a model nor an engine is needed. Shaping parts are computed again
from the stage's fields; learnt rewards stay what was logged. Cost: one verdict a rollout. Left out: stages whose
verdicts come from an environment or from several domains, and training on the new rewards.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from evals.task import VerifierSpec
from train.base.rollout import Rollout, read_rollouts
from train.recipe.run import ROLLOUTS, Recorded, recorded_stage
from train.registries import make_task
from train.reward_models.reward_models import LearntReward
from train.rollouts.rewards import Rewarder, shaping_part
from ttc.config.registry import VERIFIERS
from ttc.core import Verdict, Verifier
from ttc.errors import ConfigError
from ttc.verifiers.service.disagreement import summary_lines, tally
from ttc.verifiers.service.service import Service

Pair: TypeAlias = tuple[Rollout, Rollout]
"""A rollout as it was recorded, and as it is judged now."""


def verifier_of(run: Path, stage: int | None, name: str | None, params: Mapping[str, object]) -> Service:
    """Return what judges: the verifier of the stage's task, or the one called `name`; `params` are laid over its own.

    Raises:
        ConfigError: no such run, stage, verifier or parameter, or the stage has no task of its own.
    """
    task = _task(recorded_stage(run, stage))
    check = make_task(task).check
    if name is not None and name != check.verifier:
        check = VerifierSpec(name)
    verifier: Verifier = VERIFIERS.create(check.verifier, {**check.params, **params}, supply={})
    return Service(verifier)


async def judged_again(run: Path, stage: int | None, verifier: Verifier) -> AsyncIterator[list[Pair]]:
    """Yield, step by step, every rollout as it was recorded and as it is judged now.

    Raises:
        ConfigError: no such run or stage.
        RecordError: a broken line; names file, line and field.
    """
    record = recorded_stage(run, stage)
    shaped = [shaping_part(spec) for spec in record.fields.get("shaping", ())]
    rollouts = read_rollouts(record.folder / ROLLOUTS)
    for step, group in itertools.groupby(rollouts, key=lambda rollout: rollout.step):
        before = list(group)
        rewarder = Rewarder(
            verifier,
            shaped,
            partial=bool(record.fields.get("partial_credit", False)),
            verifier_weight=float(record.fields.get("verifier_weight", 1.0)),
            learnt=_Logged(before) if record.fields.get("reward_model") else None,
        )
        bare = [replace(rollout, verdict=None, reward=None, parts={}) for rollout in before]
        yield list(zip(before, await rewarder.judge(bare, step), strict=True))


def differences(pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    """Yield, as JSON data, the rollouts whose status or reward is another one now."""
    for before, after in pairs:
        if _status(before) != _status(after) or before.reward != after.reward:
            row = {"step": before.step, "problem": before.problem_id, "path": list(before.path), "text": before.text}
            yield {**row, "first": _told(before), "second": _told(after)}


def change_lines(pairs: Sequence[Pair], version: str) -> list[str]:
    """Say how often the verdicts agree with those of `version`, and what became of the mean reward."""
    both = [(before.verdict, after.verdict) for before, after in pairs]
    judged_twice = [(first, second) for first, second in both if first is not None and second is not None]
    versions = sorted({first.version for first, _ in judged_twice})
    rewards = [[each.reward for each in side if each.reward is not None] for side in zip(*pairs, strict=True)]
    first, second = (f"{fmean(values):.4f} of {len(values):,}" if values else "none" for values in rewards)
    return [*summary_lines(", ".join(versions), version, tally(judged_twice)), f"mean reward {first} -> {second}"]


def _status(rollout: Rollout) -> str | None:
    return None if rollout.verdict is None else rollout.verdict.status


def _told(rollout: Rollout) -> dict[str, Any]:
    verdict = rollout.verdict or Verdict("error", reason="not judged")
    return {"verdict": verdict.status, "reason": verdict.reason, "version": verdict.version, "reward": rollout.reward}


def _task(found: Recorded) -> str:
    task = found.fields.get("task")
    if not isinstance(task, str):
        raise ConfigError(f"{found.folder.name}: a stage of kind {found.kind} has no task whose verifier could judge")
    return task


class _Logged:
    """A learnt reward as it was logged; see `train.rollouts.rewards.Learnt`."""

    total = LearntReward.total

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self._rollouts = rollouts

    def __call__(self, rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[float]]:
        names = [name for name in self._rollouts[0].parts if name.startswith(self.total)]
        return {name: [rollout.parts[name] for rollout in self._rollouts] for name in names}
