"""Recompute a recorded update, or judge recorded rollouts again, from a run's files alone.

Updates are pure functions of (weights, optimiser, rollouts), so an update is reached from the nearest checkpoint before
it, or from the start where none was kept, by repeating the updates in between: no engine, no verifier, no sampling. On
the run's CPU, with its build of torch and number of threads, the loss equals the logged one bit for bit, and a
difference means that code, data or weights have changed. On another device numbers differ by rounding, which grows with
every update, so differences are reported one by one and summarised in the last line. Cost: one update per repeated
step. Left out: runs in which a rule changed the rate or rolled back since that checkpoint.

A rollout holds its target and its text, so another verifier, or another version of it, can judge it without a model or
an engine. Shaping parts are computed again from the stage's fields; learnt rewards stay as logged. Cost: one verdict a
rollout. Left out: stages whose verdicts come from an environment or from several domains, and training on the new
rewards.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeAlias, runtime_checkable

from evals.task import VerifierSpec
from train.base.checkpoint import Checkpoints
from train.base.models import load_tokenizer
from train.base.rollout import Rollout, check_groups, read_rollouts
from train.base.stage import Setting
from train.recipe.recipe import START
from train.recipe.run import ROLLOUTS, Recorded, recorded_stage, stage_folders
from train.registries import STAGES, make_task
from train.reward_models.reward_models import LearntReward
from train.rl.loop import update_on
from train.rl.policy_stage import PolicyStage
from train.rollouts.rewards import Rewarder, shaping_part
from ttc.config.registry import VERIFIERS
from ttc.config.values import counted
from ttc.core import Verdict, Verifier
from ttc.errors import ConfigError
from ttc.records import iterate
from ttc.verifiers.service.audit import summary_lines, tally
from ttc.verifiers.service.service import Service

Relearn: TypeAlias = Callable[[Sequence[Rollout]], Mapping[str, float]]
"""The next update of a fresh policy, on the rollouts of its step; returns its metrics."""


@runtime_checkable
class Relearning(Protocol):
    """A stage of another package that can repeat its updates."""

    def relearner(self, source: Path, setting: Setting) -> Relearn:
        """What repeats them one after the other, from the model in `source`."""
        ...


def replay_step(
    run: Path, step: int, *, stage: int | None = None, model: Path | None = None, device: str = "cpu"
) -> Iterator[str]:
    """Yield the start, a line per compared number of update `step` (from 0), and a summary.

    Raises:
        ConfigError: no such run, stage or step, its rollouts were not recorded, or their group ids mix prompts.
    """
    recorded = recorded_stage(run, stage, beside=("metrics.jsonl",))
    folder, source = recorded.folder, _started_from(run, recorded, model)
    fields = dict(recorded.fields)
    supply = {"health": fields.pop("health")} if "health" in fields else {}
    learner = STAGES.create(recorded.kind, fields, supply=supply)
    if not isinstance(learner, (PolicyStage, Relearning)):
        raise ConfigError(f"{folder.name}: a stage of kind {recorded.kind} makes no updates from rollouts")
    logged = {int(row["step"]): row for _, row in iterate(folder / "metrics.jsonl")}
    if step + 1 not in logged:
        raise ConfigError(f"{folder.name} has no step {step}: it logged steps 0 to {max(logged, default=0) - 1}")
    first, again = _updates(learner, source, Setting(folder, source, recorded.seed, device, 1, lambda text: None), step)
    start = f"the checkpoint after {counted(first, 'update')}" if first else "the start"
    yield f"from {start}, on {device}"
    metrics: dict[str, float] = {}
    for number in range(first, step + 1):
        rollouts = list(read_rollouts(folder / ROLLOUTS, number))
        if not rollouts:
            raise ConfigError(f"{folder.name} holds no rollouts of step {number}")
        metrics = dict(again(rollouts))
    gaps: list[float] = []
    for name in ("loss", "grad_norm", "entropy", "clip_share", "divergence"):
        if name in metrics:
            before = float(logged[step + 1].get(name, float("nan")))
            gaps.append(abs(before - metrics[name]))
            yield f"{name:12} logged {before:.9g}  computed {metrics[name]:.9g}  {_same(before, metrics[name])}"
    yield "equal bit for bit" if not any(gaps) else f"not equal: the largest difference is {max(gaps):.3g}"


def _updates(stage: PolicyStage | Relearning, source: Path, setting: Setting, step: int) -> tuple[int, Relearn]:
    """What repeats updates up to `step`, and the number of the first one."""
    if isinstance(stage, Relearning):
        return 0, stage.relearner(source, setting)
    updater, tokenizer = stage.learner(source, setting), load_tokenizer(source)
    checkpoint = Checkpoints(setting.folder / "checkpoints", setting.log).load(updater.model, step)
    if checkpoint is not None:
        updater.load(checkpoint[0])

    def again(rollouts: Sequence[Rollout]) -> Mapping[str, float]:
        check_groups(rollouts, tokenizer.decode)
        return update_on(rollouts, stage.plan, updater, int(tokenizer.pad_token_id))

    return 0 if checkpoint is None else int(checkpoint[1]["step"]), again


def _same(logged: float, computed: float) -> str:
    if logged == computed:
        return "equal"
    return f"differs by {abs(logged - computed):.3g}"


def _started_from(run: Path, recorded: Recorded, model: Path | None) -> Path:
    """The model that a stage started from."""
    names = [path.name for path in stage_folders(run)]
    before = next((name for name in names if name.startswith(f"{recorded.place - 1}-")), START)
    name = recorded.start or before
    source = model or run / START if name == START else run / name / "model"
    if not source.is_dir():
        raise ConfigError("the stage started from a model outside the run: give --model FOLDER")
    return source


Pair: TypeAlias = tuple[Rollout, Rollout]
"""A rollout as it was recorded, and as it is judged now."""


def verifier_of(run: Path, stage: int | None, name: str | None, params: Mapping[str, object]) -> Service:
    """Return the verifier: that of the stage's task, or the one called `name`, with `params` over its own.

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
    """Yield, step by step, every rollout as recorded and as judged now.

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
    """Yield, as JSON data, the rollouts whose status or reward has changed."""
    for before, after in pairs:
        if _status(before) != _status(after) or before.reward != after.reward:
            row = {"step": before.step, "problem": before.problem_id, "path": list(before.path), "text": before.text}
            yield {**row, "first": _told(before), "second": _told(after)}


def change_lines(pairs: Sequence[Pair], version: str) -> list[str]:
    """Report how often the verdicts agree with those of `version`, and the change of the mean reward."""
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
