"""Compute an update again from its recorded rollouts: the same tokens, rewards and weights give the same numbers.

Updates are pure functions of (weights, optimiser, rollouts), so an update is reached from the nearest state before it
by repeating the updates in between: no engine, no verifier, no sampling. On the CPU of the run, with its build of torch
and number of threads, the loss is equal bit for bit to the logged one, and a difference means that code, data or
weights have changed; elsewhere numbers differ by rounding, which grows with every update. Cost: one update per repeated
step. Left out: runs in which a rule changed the rate or rolled back before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from train.base.models import load_tokenizer
from train.base.rollout import Rollout, check_groups, read_rollouts
from train.base.stage import Setting
from train.recipe.run import ROLLOUTS, recorded_stage, stage_folders
from train.registries import STAGES
from train.rl.loop import update_on
from train.rl.policy_stage import PolicyStage
from ttc.errors import ConfigError
from ttc.records import iterate

Relearn: TypeAlias = Callable[[Sequence[Rollout]], Mapping[str, float]]
"""The next update of a fresh policy, on the rollouts of its step; returns its metrics."""


@runtime_checkable
class Relearning(Protocol):
    """A stage of another package that can repeat its updates."""

    def relearner(self, source: Path, setting: Setting) -> Relearn:
        """What repeats them one after the other, from the model in `source`."""
        ...


def replay_step(run: Path, step: int, *, stage: int | None = None, model: Path | None = None) -> Iterator[str]:
    """Yield a line per compared number of update `step` (from 0): logged, computed, and whether they are equal.

    Raises:
        ConfigError: no such run, stage or step, its rollouts were not recorded, or their group ids mix prompts.
    """
    recorded = recorded_stage(run, stage, beside=("metrics.jsonl",))
    folder, source = recorded.folder, _started_from(run, recorded.place, model)
    fields = dict(recorded.fields)
    supply = {"health": fields.pop("health")} if "health" in fields else {}
    learner = STAGES.create(recorded.kind, fields, supply=supply)
    if not isinstance(learner, (PolicyStage, Relearning)):
        raise ConfigError(f"{folder.name}: a stage of kind {recorded.kind} makes no updates from rollouts")
    logged = {int(row["step"]): row for _, row in iterate(folder / "metrics.jsonl")}
    if step + 1 not in logged:
        raise ConfigError(f"{folder.name} has no step {step}: it logged steps 0 to {max(logged, default=0) - 1}")
    again = _updates(learner, source, Setting(folder, source, recorded.seed, "cpu", 1, lambda text: None))
    metrics: dict[str, float] = {}
    for number in range(step + 1):
        rollouts = list(read_rollouts(folder / ROLLOUTS, number))
        if not rollouts:
            raise ConfigError(f"{folder.name} holds no rollouts of step {number}")
        metrics = dict(again(rollouts))
    for name in ("loss", "grad_norm", "entropy", "clip_share", "divergence"):
        if name in metrics:
            before = float(logged[step + 1].get(name, float("nan")))
            yield f"{name:12} logged {before:.9g}  computed {metrics[name]:.9g}  {_same(before, metrics[name])}"


def _updates(stage: PolicyStage | Relearning, source: Path, setting: Setting) -> Relearn:
    if isinstance(stage, Relearning):
        return stage.relearner(source, setting)
    updater, tokenizer = stage.learner(source, setting), load_tokenizer(source)

    def again(rollouts: Sequence[Rollout]) -> Mapping[str, float]:
        check_groups(rollouts, tokenizer.decode)
        return update_on(rollouts, stage.plan, updater, int(tokenizer.pad_token_id))

    return again


def _same(logged: float, computed: float) -> str:
    if logged == computed:
        return "equal"
    return f"differs by {abs(logged - computed):.3g}"


def _started_from(run: Path, place: int, model: Path | None) -> Path:
    """The model that stage number `place` started from."""
    before = [path for path in stage_folders(run) if path.name.startswith(f"{place - 1}-")]
    source = before[0] / "model" if before else model
    if source is None:
        raise ConfigError("the stage started from a model outside the run: give --model FOLDER")
    return source
