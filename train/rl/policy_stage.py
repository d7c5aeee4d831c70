"""A bound stage of reinforcement learning: what `grpo`, `ppo` and every other kind that rolls out has in common.

A kind is a factory in `train/stages/` (or in another package) that binds fields to the parts of a `PolicyStage`; all
parts have a plain default, so a kind states only what it adds: a reference, learnt rewards, a critic, earlier data.
`learner` is everything an update needs, without an engine: `train.replay.replay` repeats updates through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from evals.data.decontamination import answer_leaks, overlaps, own_texts
from evals.task import Task
from train.base.alarm_file import AlarmFile
from train.base.checkpoint import Checkpoints
from train.base.health import Health, Rule
from train.base.models import load_model, load_tokenizer, save_model
from train.base.optimiser import Optimiser, Schedule
from train.base.rollout import Collector, Strategy
from train.base.rollout_file import RolloutFile
from train.base.specs import make_verifier, shaping_part
from train.base.stage import Result, Setting, check_model, model_of
from train.measure.measure import held_out_gains
from train.reward_models.learnt_reward import RewardSource, model_folder, same_tokenizer
from train.reward_models.process_reward import ProcessSource
from train.rl.asynchronous import learn_async
from train.rl.critic_start import CriticStart
from train.rl.leave_out import remaining
from train.rl.parts import Parts, Plan
from train.rl.ptx import Ptx
from train.rollouts.frontier import Frontier
from train.rollouts.held_out import HeldOut
from train.rollouts.revive import revived
from train.rollouts.rewards import Rewarder
from train.rollouts.sync import LIMITS, Syncer
from train.update.build import Build
from train.update.update import Objective, Updater
from ttc.config.registry import ENGINES, bind
from ttc.config.specs import parse_spec
from ttc.core import Engine, Sampling, Verifier
from ttc.errors import ConfigError
from ttc.records import LineFile
from ttc.session.thinking import Thinking

__all__ = ["PolicyStage"]


@dataclass(frozen=True, slots=True)
class PolicyStage:
    """What is trained on, how rollouts are drawn and judged, what an update minimises; see the module.

    `rewarder` takes `learnt` where there are `rewards`, and `process` where steps are judged. `reference` names the
    model of the divergence; None is the one that the stage starts from. `passes` are passes over a batch and optimiser
    steps of each. `leave_out` names the rollouts of a stage, and the most right ones of a problem that is still trained
    on.
    """

    task: Task
    held_out: Task
    plan: Plan
    loop: Callable[[Plan, Parts], Awaitable[dict[str, Any]]]
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
    rules: tuple[Rule, ...]
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
        name, given = parse_spec(self.engine)
        factory = ENGINES.load(name)
        bind(factory, given, supply={"model": None})
        for spec in self.shaping:
            shaping_part(spec)
        if self.ptx is not None:
            self.ptx.check()
        if self.build.shard and self.critic is not None and self.critic.start == "head":
            raise ConfigError(f"{self.kind}: critic head reads hidden states that shard splits; take copy")
        train, measured = self._items()
        texts = own_texts([*train, *measured])  # an instruction that all prompts share tells nothing
        found = list(overlaps(texts[: len(train)], texts[len(train) :]))
        if found:
            raise ConfigError(
                f"{self.kind}: {len(found)} training problems are held-out problems too, such as "
                f"{found[0].shared[:80]!r}; take another split, or leave them out of the task"
            )
        told = next(answer_leaks(train), None)
        if told is not None:
            raise ConfigError(f"{self.kind}: the prompt of {told.problem_id} tells its answer: {told.shared[:80]!r}")

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

    def run(self, setting: Setting) -> Result:
        """See `Stage.run`."""
        return asyncio.run(self._run(setting, model_of(self.kind, setting)))

    async def _run(self, setting: Setting, source: Path) -> Result:
        tokenizer = load_tokenizer(source)
        updater, rewarder = self.learner(source, setting), self._rewarder(source, setting)
        engine, checker = self._engine(source, setting), self.checker(self.held_out)
        _, given = parse_spec(self.engine)
        train, measured = self._items()
        train = train if self.leave_out is None else remaining(train, *self.leave_out, setting)
        world, own = setting.world, setting.own
        limit = LIMITS["float32" if given.get("dtype") == "float32" else "bfloat16"]
        parts = Parts(
            sampler=Frontier(train, seed=setting.seed, **self.sampler),
            collector=Collector(
                engine, strategy=self.strategy, sampling=self.sampling, thinking=self.thinking, seed=setting.seed
            ),
            rewarder=rewarder,
            updater=updater,
            syncer=Syncer(engine, updater.model, limit=limit),
            held_out=HeldOut(measured, checker, self.sampling, setting.seed, self.thinking),
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
            for used in (engine, checker, rewarder):
                await used.close()
        folder = setting.folder / "model"
        save_model(updater.model, tokenizer, folder, writes=world.main)
        numbers = {key: float(value) for key, value in last.items() if isinstance(value, (int, float))}
        gained = held_out_gains(own / "held_out.jsonl", setting.seed)
        return Result(str(folder), {**numbers, **gained}, str(last["stopped"]))

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
        name, given = parse_spec(self.engine)
        supply = {"model": str(source), "device": setting.device, "threads": setting.threads}
        supply = {key: value for key, value in supply.items() if key not in given}
        return revived(lambda: ENGINES.create(name, given, supply=supply), setting.log)
