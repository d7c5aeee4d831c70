"""Does a mechanism have an effect?

The same updates, from the same weights, rollouts and random stream, with and without it.

A stage is trained for a few updates. At each, every mechanism (`mechanism_fields`) is removed in turn: a copy of the
stage without it takes the current weights, moments, sampler and critic, draws and rewards rollouts itself if the
mechanism affects that, and updates. The mechanism's change is the distance of both updates over the length of the one
with it; its share is that of updates which change by at least a thousandth. A mechanism that does less is inert: the
recipe then does not run what it says. Measured steps are spread over the whole run, since schedules and samplers act
late. An update whose rollouts have no signal is drawn again. For preferences the stage itself is run for two steps from
three seeds. Cost: an update per mechanism and measured update, and rollouts for the few that draw their own. Left out:
the effect of a mechanism on a whole run; stages that learn from neither rewards nor preferences.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch

from benchmarks.mechanism_fields import Mechanism, mechanisms
from train.base.models import load_model
from train.base.rollout import Rollout
from train.base.stage import Setting
from train.base.weights import merged_state
from train.recipe.recipe import RecipeStep, bind_stage
from train.registries import STAGES
from train.rl.loop import Parts, draw, update_on
from train.rl.policy_stage import PolicyStage
from ttc.config.signatures import options_of
from ttc.config.values import counted
from ttc.core import Engine, WeightSync
from ttc.errors import ConfigError, TrainingError

LEAST_CHANGE, LEAST_SHARE = 1e-3, 0.05
WARM = 2
"""Updates before the first measured one."""
TRIES = 4
"""Draws for each update that learns."""
ROLLOUTS = 128
"""Most rollouts of an update here: a batch is cut to fewer prompts."""
ENGINE = "embedded:dtype=float32,batch_invariant=auto"


@dataclass(frozen=True, slots=True)
class Activity:
    """The effect of removing `mechanism`: its relative change of every measured update, and the share acted on."""

    mechanism: Mechanism
    changes: tuple[float, ...]
    share: float

    @property
    def change(self) -> float:
        """The mean relative change of an update."""
        return fmean(self.changes) if self.changes else 0.0

    @property
    def acts(self) -> bool:
        """Whether it changes enough, often enough."""
        return self.share >= LEAST_SHARE and max(self.changes, default=0.0) >= LEAST_CHANGE


def share_of(changes: Sequence[float]) -> float:
    """The share of updates that a mechanism changes."""
    return fmean([change >= LEAST_CHANGE for change in changes]) if changes else 0.0


async def activity(
    step: RecipeStep, source: Path, setting: Setting, engine: Engine, *, measured: int = 3
) -> list[Activity]:
    """Measure every mechanism of a stage that learns from rewards, from the model in `source`.

    Args:
        step: the stage, bound.
        source: the policy that it starts from.
        setting: the folder of the stage, beside those of the stages that it names; only read.
        engine: draws the rollouts; takes new weights.
        measured: updates that are made again without each mechanism.

    Raises:
        ConfigError: the stage does not learn from rewards, or has a field without a known way to remove it.
        TrainingError: too few updates had a signal.
    """
    if not isinstance(step.stage, PolicyStage):
        raise ConfigError(f"{step.kind}: its activity cannot be measured: it makes no updates from rewards")
    run = _Run(step, source, setting, engine, measured)
    try:
        await run.updates(WARM + measured)
    finally:
        await run.close()
    return run.measured()


@dataclass(slots=True)
class _Variant:
    """A stage without one mechanism, and the changes so far."""

    mechanism: Mechanism
    stage: PolicyStage
    parts: Parts
    changes: list[float] = field(default_factory=list)


class _Run:
    """The stage with all its mechanisms, and beside it the stages without one each."""

    def __init__(self, step: RecipeStep, source: Path, setting: Setting, engine: Engine, measured: int) -> None:
        self._step, self._source, self._setting, self._engine = step, source, setting, engine
        self._measured = measured
        self._stage = self._bound({})
        self._parts = self._made(self._stage, "all")
        self._variants = [self._variant(mechanism) for mechanism in mechanisms(step.kind, step.fields)]
        behind = self._stage.plan.max_staleness if self._stage.overlaps else 0
        self._weights: deque[dict[str, torch.Tensor]] = deque(maxlen=behind + 1)

    def _bound(self, without: Mapping[str, Any]) -> PolicyStage:
        all_fields = {**options_of(STAGES.load(self._step.kind)), **self._step.fields}
        prompts = min(all_fields["prompts"], ROLLOUTS // all_fields["n"])
        fields = {**self._step.fields, "engine": ENGINE, "prompts": prompts, **without}
        settings = {name: value for name, value in fields.items() if value is not None}
        return cast("PolicyStage", bind_stage({**settings, "kind": self._step.kind}, self._step.kind).stage)

    def _made(self, stage: PolicyStage, name: str) -> Parts:
        folder = self._setting.folder.parent / f"{self._setting.folder.name} {name}"
        folder.mkdir(exist_ok=True)
        return stage.parts(self._source, replace(self._setting, folder=folder), self._engine)

    def _variant(self, mechanism: Mechanism) -> _Variant:
        stage = self._bound(mechanism.without)
        return _Variant(mechanism, stage, self._made(stage, f"without {mechanism.name}"))

    async def updates(self, count: int) -> None:
        """Run updates until `count` of them learnt something."""
        learnt = 0
        for tried in range(TRIES * count):
            learnt += await self._update(learnt, tried - learnt)
            if learnt == count:
                return
        kind = self._step.kind
        raise TrainingError(
            f"{kind}: only {learnt} of {counted(TRIES * count, 'update')} learn: start from a better one"
        )

    async def _update(self, number: int, missed: int) -> bool:
        """One update with everything, and one without each mechanism measured now; returns whether it learnt."""
        parts, step = self._parts, self._place(number) + missed
        epochs, minibatches = self._stage.passes
        parts.updater.learnt, parts.updater.optimiser.taken = step, step * epochs * minibatches
        self._weights.append({name: tensor.clone() for name, tensor in merged_state(parts.updater.model).items()})
        before = _Snapshot(parts)
        await self._push(self._weights[0])
        rollouts = await draw(self._stage.plan, parts, step)
        whole = _moved(parts, before, rollouts, self._stage)
        learnt = bool(whole[0].any())
        for variant in self._variants if learnt else ():
            await self._without(variant, number, step, before, rollouts, whole)
        parts.sampler.update(rollouts)
        return learnt

    def _place(self, number: int) -> int:
        """The step of the run that update `number` stands for: the measured ones are spread over all of it."""
        steps = self._stage.plan.steps
        return number if number < WARM else max(number, int((number - WARM + 0.5) / self._measured * steps))

    async def _push(self, weights: Mapping[str, torch.Tensor]) -> None:
        await cast("WeightSync", self._engine).load_weights(weights)

    async def _without(
        self,
        variant: _Variant,
        number: int,
        step: int,
        before: _Snapshot,
        rollouts: Sequence[Rollout],
        whole: torch.Tensor,
    ) -> None:
        level = variant.mechanism.level
        if (number >= WARM and level != "first") or (level == "first" and number == 0) or level == "start":
            before.restore(variant.parts, critic=level != "start")
            own = await self._rollouts(variant, step, rollouts)
            moved = _moved(variant.parts, before, own, variant.stage)
            if number >= WARM or level == "first":
                variant.changes.append(_distance(whole, moved))

    async def _rollouts(self, variant: _Variant, step: int, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        """The rollouts of a stage without this mechanism: the same, judged again, or drawn again."""
        level = variant.mechanism.level
        if level == "reward":
            bare = [replace(one, verdict=None, reward=None, parts={}, step_rewards=()) for one in rollouts]
            return await variant.parts.rewarder.judge(bare, step)
        if level == "draw":
            await self._push(self._weights[0 if variant.stage.overlaps else -1])
            return await draw(variant.stage.plan, variant.parts, step)
        return rollouts

    def measured(self) -> list[Activity]:
        """The change of every mechanism."""
        return [Activity(one.mechanism, tuple(one.changes), self._share(one)) for one in self._variants]

    def _share(self, variant: _Variant) -> float:
        if variant.mechanism.level == "first":  # a warm-up acts on the steps that it lasts
            schedule = self._stage.schedule
            return schedule.warmup / max(schedule.steps, 1)
        return share_of(variant.changes)

    async def close(self) -> None:
        """Stop the verifiers, close the files."""
        for parts in (self._parts, *(variant.parts for variant in self._variants)):
            await parts.close()


class _Snapshot:
    """Weights, moments, critic and sampler before an update."""

    def __init__(self, parts: Parts) -> None:
        self.weights = copy.deepcopy(parts.updater.model.state_dict())
        self.state = copy.deepcopy(parts.updater.state())
        self.sampler = copy.deepcopy(parts.sampler.state())
        self.learnt = parts.updater.learnt

    def restore(self, parts: Parts, *, critic: bool) -> None:
        """Load all of it into another run; a critic with another start keeps its own."""
        parts.updater.model.load_state_dict(self.weights)
        own = parts.updater.critic
        state = {**copy.deepcopy(self.state), **({} if critic or own is None else {"critic": own.state()})}
        parts.updater.load(state)
        parts.updater.learnt = self.learnt
        parts.sampler.load(copy.deepcopy(self.sampler))


def _moved(parts: Parts, before: _Snapshot, rollouts: Sequence[Rollout], stage: PolicyStage) -> torch.Tensor:
    """Update; returns the move of every weight of the policy, and of the critic in a second half: (2, W).

    The shorter half is padded with zeros.
    """
    update_on(rollouts, stage.plan, parts.updater, parts.pad_id)
    policy = _gap(parts.updater.model.state_dict(), before.weights)
    critic = parts.updater.critic
    there = before.state.get("critic")
    other = torch.zeros(0) if critic is None or there is None else _gap(critic.state()["weights"], there["weights"])
    width = max(len(policy), len(other))
    return torch.stack([torch.nn.functional.pad(half, (0, width - len(half))) for half in (policy, other)])


def _gap(after: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([(after[name] - tensor).float().flatten() for name, tensor in before.items() if name in after])


def _distance(whole: torch.Tensor, other: torch.Tensor) -> float:
    """The larger relative change of both halves; 1 where only one of them moved at all."""
    changes = []
    for with_it, without in zip(whole, other, strict=True):
        length, apart = float(with_it.norm()), float((with_it - without).norm())
        changes.append(apart / length if length else float(apart > 0))
    return max(change for change in changes if math.isfinite(change))


def preference_activity(step: RecipeStep, source: Path, setting: Setting, *, measured: int = 3) -> list[Activity]:
    """Measure every mechanism of a stage `preference`: the stage, two updates long, with and without it."""
    steps = 2
    start = load_model(source, "cpu").state_dict()

    def moved(name: str, without: Mapping[str, Any], seed: int) -> torch.Tensor:
        folder = setting.folder.parent / f"{setting.folder.name} {name} {seed}"
        folder.mkdir()
        fields = {**step.fields, "steps": steps, "eval_every": steps, "held_out": None, **without, "kind": step.kind}
        settings = {key: value for key, value in fields.items() if value is not None}
        result = bind_stage(settings, step.kind).stage.run(replace(setting, folder=folder, model=source, seed=seed))
        return _gap(load_model(Path(result.model), "cpu").state_dict(), start)[None]

    seeds = range(setting.seed, setting.seed + measured)
    whole = [moved("all", {}, seed) for seed in seeds]
    rows = []
    for one in mechanisms(step.kind, step.fields):
        others = [moved(f"without {one.name}", one.without, seed) for seed in seeds]
        changes = tuple(_distance(a, b) for a, b in zip(whole, others, strict=True))
        rows.append(Activity(one, changes, share_of(changes)))
    return rows
