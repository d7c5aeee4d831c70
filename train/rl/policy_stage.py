"""A bound stage of reinforcement learning: what `grpo`, `ppo` and every other kind that rolls out has in common.

A kind is a factory in `train/stages/` (or in another package) that binds fields to the parts of a `PolicyStage`; all
parts have a plain default, so a kind states only what it adds: a reference, learnt rewards, a critic, earlier data.
`learner` is everything an update needs, without an engine: `train.replay.replay` repeats updates through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from evals.data.decontamination import answer_leaks, overlaps, own_texts
from evals.task import Item, Task
from train.base.checkpoint import Checkpoints
from train.base.health import AlarmFile, Health, HealthRule
from train.base.models import load_model, load_tokenizer, save_model
from train.base.optimiser import Optimiser, Schedule
from train.base.rollout import Collector, RolloutFile, Strategy, read_rollouts
from train.base.stage import Setting, StageResult, check_model, model_of, rollouts_path
from train.measure.measure import HeldOut, held_out_gains
from train.registries import make_verifier
from train.reward_models.reward_models import (
    RewardSource,
    load_reward_model,
    model_folder,
    reward_folders,
    same_tokenizer,
)
from train.reward_models.step_model import ProcessSource
from train.rl.asynchronous import learn_async
from train.rl.loop import LoopPlan, Parts
from train.rl.ptx import Ptx
from train.rollouts.frontier import Frontier
from train.rollouts.rewards import Rewarder, shaping_part
from train.rollouts.sync import LIMITS, Syncer, revived
from train.update.build import Build
from train.update.critic import Critic, ValueFit, ValueHead
from train.update.update import Objective, Updater
from ttc.config.recipes import parse_spec
from ttc.config.registry import ENGINES
from ttc.config.signatures import bind
from ttc.core import Engine, Sampling, Verifier
from ttc.errors import ConfigError
from ttc.records import LineFile
from ttc.session.thinking import Thinking

__all__ = ["CriticStart", "PolicyStage", "remaining"]


@dataclass(frozen=True, slots=True)
class PolicyStage:
    """What is trained on, how rollouts are drawn and judged, what an update minimises; see the module.

    `rewarder` makes the judge of rollouts; it is given the learnt reward (`learnt`) and the process reward (`process`)
    where the stage has them. `reference` names the model of the divergence; None is the one that the stage starts from.
    `passes` are (passes over a batch, optimiser steps per pass). `leave_out` is (a stage that sampled the problems, how
    often it may have solved one that is still trained on).
    """

    task: Task
    held_out: Task
    plan: LoopPlan
    loop: Callable[[LoopPlan, Parts], Awaitable[dict[str, Any]]]
    schedule: Schedule
    objective: Objective
    sampling: Sampling
    thinking: Thinking
    strategy: Strategy
    rewarder: Callable[..., Rewarder]
    engine: str
    passes: tuple[int, int]
    sampler: Mapping[str, Any]
    limits: tuple[int | None, int]
    record: bool
    rules: tuple[HealthRule, ...]
    shaping: tuple[str, ...]
    kind: str = "grpo"
    checker: Callable[[Task], Verifier] = make_verifier
    reference: str | None = None
    rewards: RewardSource | None = None
    process: ProcessSource | None = None
    ptx: Ptx | None = None
    critic: CriticStart | None = None
    leave_out: tuple[str, int] | None = None
    build: Build = field(default_factory=Build)

    distributed: ClassVar[bool] = True

    @property
    def overlaps(self) -> bool:
        """Whether rollouts, verdicts and updates overlap, which the processes of a `World` cannot."""
        return self.loop is learn_async

    def check(self, has_model: bool) -> None:
        """See `Stage.check`: a model, a known engine, and no problem on both sides."""
        check_model(self.kind, has_model)
        name, options = parse_spec(self.engine)
        factory = ENGINES.load(name)
        bind(factory, options, supply={"model": None})
        for spec in self.shaping:
            shaping_part(spec)
        if self.ptx is not None:
            self.ptx.check()
        if self.build.shard and self.critic is not None and self.critic.start == "head":
            raise ConfigError(f"{self.kind}: critic head reads hidden states that shard splits; take copy")
        train, held_out = self._items()
        texts = own_texts([*train, *held_out])  # an instruction that all prompts share tells nothing
        shared = list(overlaps(texts[: len(train)], texts[len(train) :]))
        if shared:
            raise ConfigError(
                f"{self.kind}: {len(shared)} training problems are held-out problems too, such as "
                f"{shared[0].shared[:80]!r}; take another split, or leave them out of the task"
            )
        leak = next(answer_leaks(train), None)
        if leak is not None:
            raise ConfigError(f"{self.kind}: the prompt of {leak.problem_id} tells its answer: {leak.shared[:80]!r}")

    def models(self) -> Mapping[str, tuple[str, ...]]:
        """See `Naming.models`."""
        return {
            "reference": () if self.reference is None else (self.reference,),
            "reward_model": () if self.rewards is None else self.rewards.names,
            "process_reward": () if self.process is None else (self.process.name,),
            "critic": () if self.critic is None else self.critic.names,
        }

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """See `Asking.tasks`."""
        return {"task": (self.task, self.limits[0]), "held_out": (self.held_out, self.limits[1])}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`."""
        return asyncio.run(self._run(setting, model_of(self.kind, setting)))

    async def _run(self, setting: Setting, source: Path) -> StageResult:
        tokenizer = load_tokenizer(source)
        updater, rewarder = self.learner(source, setting), self._rewarder(source, setting)
        engine, checker = self._engine(source, setting), self.checker(self.held_out)
        _, options = parse_spec(self.engine)
        train, held_out = self._items()
        train = train if self.leave_out is None else remaining(train, *self.leave_out, setting)
        world, own = setting.world, setting.own
        limit = LIMITS["float32" if options.get("dtype") == "float32" else "bfloat16"]
        parts = Parts(
            sampler=Frontier(train, seed=setting.seed, **self.sampler),
            collector=Collector(
                engine, strategy=self.strategy, sampling=self.sampling, thinking=self.thinking, seed=setting.seed
            ),
            rewarder=rewarder,
            updater=updater,
            syncer=Syncer(engine, updater.model, limit=limit),
            held_out=HeldOut(held_out, checker, self.sampling, setting.seed, self.thinking),
            health=Health(self.rules),
            checkpoints=Checkpoints(setting.folder / "checkpoints", setting.log, writes=world.main),
            metrics=LineFile(own / "metrics.jsonl"),
            rollouts=RolloutFile(own / "rollouts.jsonl") if self.record and world.main else None,
            pad_id=int(tokenizer.pad_token_id),
            log=setting.log,
            alarm_file=AlarmFile(own / "alarms.jsonl"),
            held_out_file=LineFile(own / "held_out.jsonl"),
            world=world,
        )
        try:
            last = await self.loop(self.plan, parts)
        finally:
            for file in (parts.metrics, parts.rollouts, parts.alarm_file, parts.held_out_file):
                if file is not None:
                    file.close()
            for part in (engine, checker, rewarder):
                await part.close()
        folder = setting.folder / "model"
        save_model(updater.model, tokenizer, folder, writes=world.main)
        numbers = {key: float(value) for key, value in last.items() if isinstance(value, (int, float))}
        gained = held_out_gains(own / "held_out.jsonl", setting.seed)
        return StageResult(str(folder), {**numbers, **gained}, str(last["stopped"]))

    def learner(self, source: Path, setting: Setting) -> Updater:
        """What turns rollouts into an update of the model in `source`, with a fresh optimiser.

        Raises:
            ConfigError: a reference or critic that is not there, or reads other ids; before any model is loaded.
        """
        reference = None
        if self.objective.kl_weight:
            reference = source if self.reference is None else model_folder("reference", self.reference, setting)
            same_tokenizer("reference", reference, source)
        if self.critic is not None:
            self.critic.check(source, setting)
        model, tokenizer = self._model(source, setting), load_tokenizer(source)
        ids = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
        epochs, minibatches = self.passes
        return Updater(
            model,
            Optimiser(model, self.schedule, world=setting.world),
            self.objective,
            epochs=epochs,
            minibatches=minibatches,
            autocast=self.build.autocast,
            reference=None if reference is None else load_model(reference, setting.device).eval(),
            critic=None if self.critic is None else self.critic.make(model, source, setting),
            replayed=None if self.ptx is None else self.ptx.batches(setting, source, *ids),
            world=setting.world,
        )

    def _model(self, source: Path, setting: Setting) -> Any:
        return self.build.load(source, setting.device, setting.seed, setting.world)

    def _rewarder(self, source: Path, setting: Setting) -> Rewarder:
        learnt = {} if self.rewards is None else {"learnt": self.rewards.load(setting, source)}
        process = {} if self.process is None else {"process": self.process.load(setting, source)}
        return self.rewarder(**learnt, **process)

    def _items(self) -> tuple[list[Any], list[Any]]:
        train_limit, held_out_limit = self.limits
        return self.task.items(train_limit, 0), self.held_out.items(held_out_limit, 0)

    def _engine(self, source: Path, setting: Setting) -> Engine:
        name, options = parse_spec(self.engine)
        supply = {"model": str(source), "device": setting.device, "threads": setting.threads}
        supply = {key: value for key, value in supply.items() if key not in options}
        return revived(lambda: ENGINES.create(name, options, supply=supply), setting.log)


def remaining(items: Sequence[Item], name: str, most: int, setting: Setting) -> list[Item]:
    """The items with at most `most` right rollouts in the stage or file `name`: the others are too easy to teach.

    Kimi k1.5 (arXiv:2501.12599, section 2.1) lets a model guess without reasoning and drops what it guesses, since such
    a problem rewards guessing. Sampled with thinking, the same filter drops what is already easy.

    Raises:
        ConfigError: the rollouts are not there, or no item is left.
    """
    solved: dict[str, int] = {}
    for rollout in read_rollouts(rollouts_path(name, setting)):
        if rollout.verdict is not None and rollout.verdict.correct:
            solved[rollout.problem_id] = solved.get(rollout.problem_id, 0) + 1
    rest = [item for item in items if solved.get(item.problem.id, 0) <= most]
    if not rest:
        raise ConfigError(f"leave_out {name!r}: every training problem was solved more than {most} times")
    setting.log(f"{len(items) - len(rest)} of {len(items)} problems left out: solved more than {most} times in {name}")
    return rest


@dataclass(frozen=True, slots=True)
class CriticStart:
    """Where PPO's critic starts: as a copy of the policy, as a head on it, or as a reward model; see `Critic`.

    `start` is copy, head, or the reward model: a stage of the run, or a folder.
    """

    start: str
    schedule: Schedule
    fit: ValueFit

    @property
    def names(self) -> tuple[str, ...]:
        """The reward model that it starts from, if it does."""
        return () if self.start in _STARTS else (self.start,)

    def check(self, source: Path, setting: Setting) -> None:
        """Raise ConfigError when it cannot start like this; `source` is the policy's folder."""
        for name in self.names:
            same_tokenizer("critic", reward_folders(name, setting)[0], source)

    def make(self, model: Any, source: Path, setting: Setting) -> Critic:
        """The critic of the policy `model`, loaded from `source`."""
        make = _STARTS.get(self.start)
        module = _reward_model(self.start, setting) if make is None else make(model, source, setting.device)
        optimiser = Optimiser(module.to(setting.device), self.schedule, world=setting.world)
        return Critic(module, optimiser, self.fit, setting.world)


def _copy(model: Any, source: Path, device: str) -> ValueHead:
    return ValueHead(load_model(source, device).base_model, model.config.hidden_size, shared=False)


def _head(model: Any, source: Path, device: str) -> ValueHead:
    return ValueHead(model.base_model, model.config.hidden_size, shared=True)


_STARTS: Mapping[str, Callable[[Any, Path, str], ValueHead]] = {"copy": _copy, "head": _head}


def _reward_model(name: str, setting: Setting) -> ValueHead:
    """The reward model's body and head: its reward at the last token is the value to begin with."""
    model = load_reward_model(reward_folders(name, setting)[0], setting.device)
    module = ValueHead(model.base_model, model.config.hidden_size, shared=False)
    with torch.no_grad():
        module.head.weight.copy_(model.score.weight)
    return module
