"""Reinforcement learning from verified rewards: the loop of `train.loop` on one task.

The kind is called after GRPO (Shao et al. 2024, arXiv:2402.03300), its default; `loss`, `advantage` and `normaliser`
make it Dr. GRPO, DAPO, GSPO, CISPO, RLOO, REINFORCE++ or Kimi k1.5's loss, each a line of a recipe. Rollouts come from
any engine that returns ids with log-probabilities and takes new weights, through any strategy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from evals.decontamination import answer_leaks, overlaps, prompt_text
from evals.task import Task
from train.alarm_file import AlarmFile
from train.asynchronous import learn_async
from train.checkpoint import Checkpoints
from train.correction import Correction
from train.frontier import Frontier, Mode
from train.health import Health, Rule, configured
from train.held_out import HeldOut
from train.loop import learn
from train.models import load_model, load_tokenizer, save_model
from train.normalise import Normaliser
from train.parts import Parts, Plan
from train.registries import ADVANTAGES, LOSSES
from train.rewards import Rewarder
from train.rollout import Collector, Strategy, group_draws
from train.rollout_file import RolloutFile
from train.specs import make, make_task, make_verifier, shaping_part
from train.stage import Result, Setting, Stage
from train.sync import LIMITS, Syncer
from train.update import Objective, Optimiser, Schedule, Updater
from ttc.core import Engine, Sampling, Verifier
from ttc.errors import ConfigError
from ttc.records import LineFile
from ttc.registry import ENGINES, STRATEGIES, bind
from ttc.specs import parse_spec
from ttc.thinking import Thinking

__all__ = ["Grpo", "grpo"]


def grpo(
    *,
    task: str,
    held_out: str,
    steps: int,
    lr: float,
    prompts: int = 16,
    n: int = 8,
    max_tokens: int | None = None,
    loss: str = "ppo",
    advantage: str = "group",
    normaliser: Normaliser = "token",
    shaping: tuple[str, ...] = (),
    partial_credit: bool = False,
    thinking: Literal["auto", "on", "off"] = "auto",
    max_thinking: int | None = None,
    strategy: str | None = None,
    engine: str = "embedded:dtype=float32,batch_invariant=true",
    sampler: Mode = "frontier",
    retire: int | None = None,
    train_limit: int | None = None,
    held_out_limit: int = 128,
    refills: int = 0,
    mask_truncated: bool = False,
    epochs: int = 1,
    minibatches: int = 1,
    correction: Literal["token", "sequence", "none"] = "token",
    eval_every: int = 10,
    save_every: int = 50,
    until: float | None = None,
    warmup: int = 0,
    asynchronous: bool = False,
    max_staleness: int = 1,
    buffer: int = 2,
    record: bool = True,
    health: Mapping[str, Any] | None = None,
) -> Stage:
    """Train a policy against a task's verifier.

    Args:
        task: the training problems, NAME or NAME:KEY=VALUE,...
        held_out: the problems it is measured on; none of them may be in `task`.
        steps: updates.
        lr: learning rate.
        prompts: groups per update.
        n: rollouts per group; at least 2.
        max_tokens: cap of a rollout; None is the task's.
        loss: NAME or NAME:KEY=VALUE,... of `train/losses`.
        advantage: of `train/advantages`.
        normaliser: token, sequence, constant or rollout.
        shaping: further parts of the reward, each NAME:weight=W,...
        partial_credit: take the verifier's score instead of right or wrong.
        thinking: on asks for it, off forbids it, auto leaves it to the model.
        max_thinking: most thinking tokens of a rollout.
        strategy: what produces the rollouts, NAME:KEY=VALUE,...; None draws n completions.
        engine: what samples, NAME:KEY=VALUE,...; batch-invariant by default, so that a resumed run is the same bits.
        sampler: frontier, hard or uniform.
        retire: drop a problem after its group passed whole this many times running.
        train_limit: most training problems.
        held_out_limit: most held-out problems.
        refills: further rounds of prompts for groups without a signal.
        mask_truncated: do not train on rollouts that were cut.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass.
        correction: level at which engine and trainer mismatch is corrected.
        eval_every: steps between held-out measurements.
        save_every: steps between checkpoints.
        until: stop once held-out accuracy reaches this.
        warmup: steps over which the rate rises.
        asynchronous: draw, judge and learn at once.
        max_staleness: most updates that rollouts of an asynchronous run may be behind.
        buffer: most steps on their way in an asynchronous run.
        record: write every rollout to rollouts.jsonl.
        health: changes of health rules by name.
    """
    if n < 2 and strategy is None:
        raise ConfigError(f"grpo: n must be at least 2, got {n}: one rollout has nothing to be compared with")
    for name, value in (("steps", steps), ("prompts", prompts), ("eval_every", eval_every), ("save_every", save_every)):
        if value < 1:
            raise ConfigError(f"grpo: {name} must be at least 1, got {value}")
    if refills < 0:
        raise ConfigError(f"grpo: refills must be at least 0, got {refills}")
    problems, measured = make_task(task), make_task(held_out)
    cap = max_tokens or problems.sampling.max_tokens
    return Grpo(
        task=problems,
        held_out=measured,
        plan=Plan(
            steps, prompts, refills, eval_every, save_every, until, mask_truncated, max_staleness, buffer
        ),
        loop=learn_async if asynchronous else learn,
        schedule=Schedule(lr, steps, warmup),
        objective=Objective(
            make(LOSSES, loss), make(ADVANTAGES, advantage), normaliser, cap, Correction(level=correction)
        ),
        sampling=Sampling(temperature=1.0, max_tokens=cap),
        thinking=Thinking(mode=thinking, max_tokens=max_thinking),
        strategy=partial(group_draws, n=n) if strategy is None else make_strategy(strategy),
        rewarder=lambda: Rewarder(
            make_verifier(problems), [shaping_part(spec) for spec in shaping], partial=partial_credit
        ),
        engine=engine,
        passes=(epochs, minibatches),
        sampler={"mode": sampler, "retire": retire},
        limits=(train_limit, held_out_limit),
        record=record,
        rules=configured(health or {}),
        shaping=shaping,
    )


def make_strategy(spec: str) -> Strategy:
    """Bind a strategy that needs no scorer."""
    name, given = parse_spec(spec)
    function = STRATEGIES.load(name)
    found: Strategy = partial(function, **bind(function, given, supply={}))
    return found


@dataclass(frozen=True, slots=True)
class Grpo:
    """The bound stage; see `grpo`."""

    task: Task
    held_out: Task
    plan: Plan
    loop: Callable[[Plan, Parts], Awaitable[dict[str, Any]]]
    schedule: Schedule
    objective: Objective
    sampling: Sampling
    thinking: Thinking
    strategy: Strategy
    rewarder: Callable[[], Rewarder]
    engine: str
    passes: tuple[int, int]
    sampler: Mapping[str, Any]
    limits: tuple[int | None, int]
    record: bool
    rules: tuple[Rule, ...]
    shaping: tuple[str, ...]
    kind: str = "grpo"
    checker: Callable[[Task], Verifier] = make_verifier

    def check(self, has_model: bool) -> None:
        """See `Stage.check`: a model, a known engine, and no problem on both sides."""
        if not has_model:
            raise ConfigError(f"{self.kind} needs a model: put a pretrain stage before it, or give --model FOLDER")
        name, given = parse_spec(self.engine)
        factory = ENGINES.load(name)
        bind(factory, given, supply={"model": "model"})
        for spec in self.shaping:
            shaping_part(spec)
        train, measured = self._items()
        found = list(overlaps([prompt_text(item) for item in train], map(prompt_text, measured)))
        if found:
            raise ConfigError(
                f"{self.kind}: {len(found)} training problems are held-out problems too, such as "
                f"{found[0].shared[:80]!r}; take another split, or leave them out of the task"
            )
        told = next(answer_leaks(train), None)
        if told is not None:
            raise ConfigError(f"{self.kind}: the prompt of {told.problem_id} tells its answer: {told.shared[:80]!r}")

    def run(self, setting: Setting) -> Result:
        """See `Stage.run`."""
        if setting.model is None:
            raise ConfigError(f"{self.kind} needs a model")
        return asyncio.run(self._run(setting, setting.model))

    async def _run(self, setting: Setting, source: Path) -> Result:
        model, tokenizer = load_model(source, setting.device), load_tokenizer(source)
        engine = self._engine(source, setting)
        _, given = parse_spec(self.engine)
        train, measured = self._items()
        checker = self.checker(self.held_out)
        parts = Parts(
            sampler=Frontier(train, seed=setting.seed, **self.sampler),
            collector=Collector(
                engine, strategy=self.strategy, sampling=self.sampling, thinking=self.thinking, seed=setting.seed
            ),
            rewarder=self.rewarder(),
            updater=self.updater(model),
            syncer=Syncer(engine, model, limit=LIMITS["float32" if given.get("dtype") == "float32" else "bfloat16"]),
            held_out=HeldOut(measured, checker, self.sampling, setting.seed, self.thinking),
            health=Health(self.rules),
            checkpoints=Checkpoints(setting.folder / "checkpoints"),
            metrics=LineFile(setting.folder / "metrics.jsonl"),
            rollouts=RolloutFile(setting.folder / "rollouts.jsonl") if self.record else None,
            pad_id=int(tokenizer.pad_token_id),
            log=setting.log,
            alarm_file=AlarmFile(setting.folder / "alarms.jsonl"),
            held_out_file=LineFile(setting.folder / "held_out.jsonl"),
        )
        try:
            last = await self.loop(self.plan, parts)
        finally:
            for file in (parts.metrics, parts.rollouts, parts.alarm_file, parts.held_out_file):
                if file is not None:
                    file.close()
            await engine.close()
            await checker.close()
            await parts.rewarder.close()
        folder = setting.folder / "model"
        save_model(model, tokenizer, folder)
        numbers = {key: float(value) for key, value in last.items() if isinstance(value, (int, float))}
        return Result(str(folder), numbers, str(last["stopped"]))

    def updater(self, model: Any) -> Updater:
        """What turns rollouts into an update of `model`, with a fresh optimiser."""
        epochs, minibatches = self.passes
        optimiser = Optimiser(model, self.schedule)
        return Updater(model, optimiser, self.objective, epochs=epochs, minibatches=minibatches)

    def _items(self) -> tuple[list[Any], list[Any]]:
        train_limit, held_out_limit = self.limits
        return self.task.items(train_limit, 0), self.held_out.items(held_out_limit, 0)

    def _engine(self, source: Path, setting: Setting) -> Engine:
        name, given = parse_spec(self.engine)
        factory = ENGINES.load(name)
        supply = {"model": str(source), "device": setting.device, "threads": setting.threads}
        supply = {key: value for key, value in supply.items() if key not in given}
        found: Engine = factory(**bind(factory, given, supply=supply))
        return found
