"""A bound stage of reinforcement learning: what `grpo`, `ppo` and other kinds with rollouts have in common.

`RolloutFields` has the fields for drawing rollouts, the length of a run and its health rules; `RewardFields` has
rewards beside the verdict, and what pulls the policy back. A kind is a factory in `train/stages/` (or in another
package) that adds its own fields and passes the parts for them to `RolloutFields.stage`: a reference, learnt rewards, a
critic, earlier data. `PolicyStage.learner` is everything an update needs, without an engine: `train.replay.replay`
repeats updates through it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from evals.data.decontamination import answer_leaks, overlaps, own_texts, prompt_text
from evals.task import Item, Task
from train.base.checkpoint import Checkpoints
from train.base.health import AlarmFile, Health, HealthRule, configured
from train.base.models import load_tokenizer, save_model, turn_tokenizer
from train.base.optimiser import Schedule
from train.base.rollout import Collector, RolloutFile, group_draws, read_rollouts
from train.base.stage import ALL_KEPT, Setting, StageResult, check_model, model_of, read_with, rollouts_path
from train.base.weights import save_adapter
from train.examples.examples import check_room
from train.examples.imitation import Ptx
from train.measure.measure import HeldOut, check_engine, held_out_gains, open_engine
from train.registries import make, make_verifier
from train.reward_models.reward_models import (
    APPROVES,
    ASK,
    CritiqueSource,
    How,
    RewardSource,
    model_folder,
    same_tokenizer,
)
from train.reward_models.step_model import load_process
from train.rl.loop import LoopPlan, Parts, learn
from train.rl.overlapped import learn_async
from train.rollouts.frontier import Frontier, Mode
from train.rollouts.rewards import Rewarder, rewarded_by, served, shaping_part
from train.rollouts.sync import LIMITS, Syncer, revived
from train.update.update import Build, Objective, Updater, Valuing
from ttc.concurrent import stopped_at_once
from ttc.config.recipes import parse_spec
from ttc.config.registry import VERIFIERS
from ttc.config.signatures import bind
from ttc.config.values import above, at_least, counted, finite, within
from ttc.core import Engine, Sampling, Strategy, Verifier
from ttc.errors import ConfigError
from ttc.records import LineFile
from ttc.seeds import derive
from ttc.session.thinking import Thinking


class CriticSource(Protocol):
    """Where the critic of a stage comes from, as the stage `ppo` has one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The stages or folders that it starts from."""
        ...

    def check(self, source: Path, setting: Setting) -> None:
        """Raise ConfigError when it cannot start beside the policy in the folder `source`."""
        ...

    def make(self, model: Any, source: Path, setting: Setting) -> Valuing:
        """The critic of the policy `model`, loaded from `source`."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyStage:
    """What is trained on, how rollouts are drawn and judged, what an update minimises; see the module.

    `rewarder` makes the judge of rollouts from the learnt reward (`learnt`) and the process reward (`process`), if the
    stage has them. `reference` names the model of the divergence; None: the one that the stage starts from. `passes`
    are (passes over a batch, optimiser steps per pass). `leave_out` is (a stage that sampled the problems, how often it
    may have solved one that is still trained on). `watches`: measure the divergence from the reference even if no
    weight pulls the policy back, which costs a forward pass of it over the rollouts. `answering` answers held-out
    problems instead of one plain draw.
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
    sampler: Mapping[str, Any]
    limits: tuple[int | None, int]
    record: bool
    rules: tuple[HealthRule, ...]
    passes: tuple[int, int] = (1, 1)
    shaping: tuple[str, ...] = ()
    kind: str = "grpo"
    checker: Callable[[Task], Verifier] = make_verifier
    reference: str | None = None
    reference_every: int | None = None
    rewards: RewardSource | None = None
    critique: CritiqueSource | None = None
    process: str | None = None
    ptx: Ptx | None = None
    critic: CriticSource | None = None
    leave_out: tuple[str, int] | None = None
    build: Build = field(default_factory=Build)
    watches: bool = True
    answering: Strategy | None = None
    judge: str | None = None

    distributed: ClassVar[bool] = True

    @property
    def overlaps(self) -> bool:
        """Whether rollouts, verdicts and updates overlap, which is not possible with several processes."""
        return self.loop is learn_async

    def check(self, has_model: bool) -> None:
        """See `Stage.check`: a model, a known engine, and no problem on both sides."""
        check_model(self.kind, has_model)
        check_engine(self.engine)
        for spec in self.shaping:
            shaping_part(spec)
        if self.judge is not None:
            name, options = parse_spec(self.judge)
            bind(VERIFIERS.load(name), options, supply={})
        train, held_out = self._items()
        if self.ptx is not None:
            self.ptx.check(held_out)
        alone = next((item for item in train if rewarded_by(item.target) == "learnt"), None)
        if alone is not None and self.rewards is None:
            raise ConfigError(
                f"{self.kind}: {alone.problem.id} is rewarded by a learnt reward alone: name a reward_model"
            )
        shared = [overlap for part in by_part(train) for overlap in _overlaps(part, held_out)]
        if shared:
            one = "1 training problem is a held-out problem"
            are = one if len(shared) == 1 else f"{len(shared)} training problems are held-out problems"
            raise ConfigError(
                f"{self.kind}: {are} too, such as {shared[0].shared[:80]!r}; take another split, or leave them out of "
                "the task"
            )
        clusters = {item.cluster for item in held_out if item.cluster}
        variants = [item for item in train if item.cluster in clusters]
        if variants:
            raise ConfigError(
                f"{self.kind}: {counted(len(variants), 'training problem')} of held-out clusters, such as "
                f"{variants[0].problem.id} of cluster {variants[0].cluster[:80]!r}: variants of one problem belong on "
                "one side; take another split, or leave them out of the task"
            )
        leak = next(answer_leaks(train), None)
        if leak is not None:
            raise ConfigError(f"{self.kind}: the prompt of {leak.problem_id} contains its answer: {leak.shared[:80]!r}")

    def models(self) -> Mapping[str, tuple[str, ...]]:
        """See `Naming.models`."""
        return {
            "reference": () if self.reference is None else (self.reference,),
            "reward_model": () if self.rewards is None else self.rewards.names,
            "verifier_lm": () if self.critique is None else (self.critique.name,),
            "process_reward": () if self.process is None else (self.process,),
            "critic": () if self.critic is None else self.critic.names,
        }

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """See `Asking.tasks`."""
        return {"task": (self.task, self.limits[0]), "held_out": (self.held_out, self.limits[1])}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`."""
        return asyncio.run(self._run(setting, model_of(self.kind, setting)))

    async def _run(self, setting: Setting, source: Path) -> StageResult:
        with stopped_at_once():  # models are loaded, which takes minutes for large ones
            parts = self.parts(source, setting)
        folder = setting.folder / "model"
        try:
            with setting.stop.heeded(ALL_KEPT):
                last = await self.loop(self.plan, parts)
            # before anything is closed: a verifier that does not end must not cost us the model
            save_model(parts.updater.model, load_tokenizer(source), folder, writes=setting.world.main)
            save_adapter(parts.updater.model, folder, writes=setting.world.main)
        finally:
            await parts.close()
            await parts.collector.engine.close()
        numbers = {key: float(value) for key, value in last.items() if isinstance(value, (int, float))}
        gained = held_out_gains(setting.own / "held_out.jsonl", setting.seed, last["step"])
        return StageResult(str(folder), {**numbers, **gained}, str(last["stopped"]))

    def parts(self, source: Path, setting: Setting, engine: Engine | None = None) -> Parts:
        """Everything that a run from the model in `source` is made of; `engine` draws instead of one of its own."""
        tokenizer = load_tokenizer(source)
        train, held_out = self._items()
        check_room(self.kind, [*train, *held_out], source, self.thinking.template, self.sampling.max_tokens)
        updater, rewarder = self.learner(source, setting), self._rewarder(source, setting)
        engine = self._engine(source, setting) if engine is None else engine
        train = train if self.leave_out is None else remaining(train, *self.leave_out, setting)
        if self.plan.prompts > len(train):
            there = counted(len(train), "problem")
            setting.log(f"prompts={self.plan.prompts}, but the task has only {there}: no update has more")
        world, own, judge = setting.world, setting.own, served(self._judge())
        like_held_out = (
            rewarder if self.judge is None else judge
        )  # else the gap to held-out answers is one of verifiers
        dtype = "bfloat16" if self.draws_in_bf16 else "float32"

        def measured(items: Sequence[Item], verifier: Verifier, beside: Verifier | None = None) -> HeldOut:
            drawn = self.sampling, setting.seed, self.thinking, self.answering
            return HeldOut(items, verifier, *drawn, beside=beside)

        return Parts(
            sampler=Frontier(train, seed=setting.seed, **self.sampler),
            collector=Collector(
                engine, strategy=self.strategy, sampling=self.sampling, thinking=self.thinking, seed=setting.seed
            ),
            rewarder=rewarder,
            updater=updater,
            syncer=Syncer(engine, updater.model, limit=LIMITS[dtype], in_bf16=self.draws_in_bf16),
            held_out=measured(held_out, judge, self._beside(rewarder)),
            seen=measured(some(train, len(held_out), setting.seed), like_held_out),
            health=Health(self.rules),
            checkpoints=Checkpoints(setting.folder / "checkpoints", setting.log, writes=world.main),
            best=Checkpoints(setting.folder / "checkpoints" / "best", setting.log, keep=1, writes=world.main),
            metrics=LineFile(own / "metrics.jsonl"),
            rollouts=RolloutFile(own / "rollouts.jsonl") if self.record and world.main else None,
            pad_id=int(tokenizer.pad_token_id),
            log=setting.log,
            alarm_file=AlarmFile(own / "alarms.jsonl"),
            held_out_file=LineFile(own / "held_out.jsonl"),
            world=world,
            stop=setting.stop,
        )

    def _beside(self, rewarder: Rewarder) -> Verifier | None:
        """The verifier that `judge` is compared with: the rewards', or the held-out task's if it has another."""
        if self.judge is None:
            return None
        return rewarder if self.held_out.check == self.task.check else served(self.checker(self.held_out))

    def _judge(self) -> Verifier:
        """The verifier of held-out answers."""
        if self.judge is None:
            return self.checker(self.held_out)
        judge: Verifier = make(VERIFIERS, self.judge)
        return judge

    @property
    def draws_in_bf16(self) -> bool:
        """Whether the engine may compute in bf16, as it is not set to fp32."""
        return parse_spec(self.engine)[1].get("dtype") != "float32"

    def learner(self, source: Path, setting: Setting) -> Updater:
        """What turns rollouts into an update of the model in `source`, with a fresh optimiser.

        Raises:
            ConfigError: a reference or critic that is missing, or has another tokenizer; before any model is loaded.
        """
        reference = None
        if self.objective.kl_weight or self.watches:
            reference = source if self.reference is None else model_folder("reference", self.reference, setting)
            same_tokenizer("reference", reference, source)
        if self.critic is not None:
            self.critic.check(source, setting)
        model = self.build.load(source, setting.device, setting.seed, setting.world)
        tokenizer = turn_tokenizer(source)  # rows of ptx end as turns do
        ids = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
        epochs, minibatches = self.passes
        return Updater(
            model,
            self.build.optimiser(model, self.schedule, setting.world),
            self.objective,
            epochs=epochs,
            minibatches=minibatches,
            autocast=self.build.casts(setting.device),
            micro_tokens=self.build.micro_tokens,
            reference=None if reference is None else self.build.frozen(reference, setting.device, setting.world),
            reference_every=self.reference_every,
            critic=None if self.critic is None else self.critic.make(model, source, setting),
            replayed=None if self.ptx is None else self.ptx.batches(setting, source, *ids, self._items()[1]),
            world=setting.world,
        )

    def _rewarder(self, source: Path, setting: Setting) -> Rewarder:
        items = self._items()[0]
        parts: dict[str, Any] = {}
        if self.rewards is not None:
            messages = {one.problem.id: one.problem.messages for one in items}
            parts["learnt"] = self.rewards.load(setting, source, messages)
        if self.process is not None:
            parts["process"] = load_process(self.process, setting, source)
        if self.critique is not None:
            parts["reviewer"] = self.critique.load(setting, {one.problem.id: prompt_text(one) for one in items})
        return self.rewarder(**parts)

    def _items(self) -> tuple[list[Any], list[Any]]:
        train_limit, held_out_limit = self.limits
        return self.task.items(train_limit, 0), self.held_out.items(held_out_limit, 0)

    def _engine(self, source: Path, setting: Setting) -> Engine:
        return revived(lambda: open_engine(source, setting, self.engine), setting.log)


def by_part(items: Sequence[Item]) -> list[list[Item]]:
    """The items by their part of a mixture; all together if there are no parts."""
    parts: dict[str, list[Item]] = {}
    for item in items:
        name = item.target.get("part") if isinstance(item.target, Mapping) else None
        parts.setdefault(str(name), []).append(item)
    return list(parts.values())


def _overlaps(train: Sequence[Item], held_out: Sequence[Item]) -> list[Any]:
    """What both sides share, ignoring an instruction that all prompts have."""
    texts = own_texts([*train, *held_out])
    return list(overlaps(texts[: len(train)], texts[len(train) :]))


def some(items: Sequence[Item], most: int, seed: int) -> list[Item]:
    """At most `most` of the items, drawn uniformly."""
    return random.Random(derive(seed, "seen")).sample(list(items), min(most, len(items)))


def remaining(items: Sequence[Item], name: str, most: int, setting: Setting) -> list[Item]:
    """The items with at most `most` right rollouts in the stage or file `name`: the others are too easy to teach.

    Kimi k1.5 (arXiv:2501.12599, section 2.1) lets a model guess without reasoning and drops what it guesses, since such
    a problem rewards guessing. Sampled with thinking, the same filter drops what is already easy.

    Raises:
        ConfigError: the rollouts are not there, or no item is left.
    """
    rollouts = read_rollouts(rollouts_path(name, setting))
    solved = Counter(rollout.problem_id for rollout in rollouts if rollout.right)
    rest = [item for item in items if solved[item.problem.id] <= most]
    total, times = counted(len(items), "problem"), counted(most, "time")
    if not rest:
        raise ConfigError(f"leave_out {name!r}: every training problem was solved more than {times}")
    setting.log(f"{len(items) - len(rest)} of {total} left out: solved more than {times} in {name}")
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFields:
    """Rollouts, length of the run, and health rules.

    Args:
        steps: updates, each on a batch of rollouts.
        lr: learning rate of the policy.
        prompts: problems per update, a group of rollouts each.
        n: rollouts per group; at least 2 where only the group says what is good.
        max_tokens: most tokens that a rollout samples, all its turns together; None is the task's.
        thinking: on asks for it, off forbids it, auto leaves it to the model.
        max_thinking: most thinking tokens of a rollout; tokens forced by the cap are not learnt.
        engine: what samples, NAME:KEY=VALUE,...; batch-invariant by default, so that a run resumed on the
            same machine is the same bits; embedded:processes=1,... samples in a process of its own.
        sampler: frontier, hard or uniform; or fresh, which asks every problem once.
        train_limit: most training problems, of each domain where there are several.
        held_out_limit: most held-out problems, likewise.
        mask_truncated: do not train on rollouts that were cut.
        eval_every: steps between held-out measurements.
        save_every: steps between checkpoints.
        until: stop once held-out accuracy reaches this.
        warmup: updates over which the rate rises.
        record: write every rollout to rollouts.jsonl.
        health: changes of health rules by name.
    """

    steps: int
    lr: float
    prompts: int = 16
    n: int = 8
    max_tokens: int | None = None
    thinking: Literal["auto", "on", "off"] = "auto"
    max_thinking: int | None = None
    engine: str = "embedded:dtype=float32,batch_invariant=auto"
    sampler: Mode = "frontier"
    train_limit: int | None = None
    held_out_limit: int = 128
    mask_truncated: bool = False
    eval_every: int = 10
    save_every: int = 50
    until: float | None = None
    warmup: int = 0
    record: bool = True
    health: Mapping[str, Any] | None = None

    def check(self, kind: str) -> None:
        """Raise ConfigError for a number below 1, and an impossible accuracy."""
        names = "steps", "prompts", "n", "eval_every", "save_every", "train_limit", "held_out_limit", "max_tokens"
        at_least(kind, 1, **{name: getattr(self, name) for name in names})
        within(kind, 0, 1, until=self.until)

    @property
    def plan(self) -> LoopPlan:
        """The size of the run."""
        names = ("steps", "prompts", "eval_every", "save_every", "until", "mask_truncated")
        return LoopPlan(**{name: getattr(self, name) for name in names})

    def schedule(self, lr: float, passes: tuple[int, int]) -> Schedule:
        """The rate by optimiser step: every update makes `passes` (epochs, minibatches) of them."""
        each = passes[0] * passes[1]
        return Schedule(lr, self.steps * each, self.warmup * each)

    def cap(self, task: Task) -> int:
        """Most tokens of a rollout."""
        return self.max_tokens or task.sampling.max_tokens

    def stage(self, kind: str, task: Task, held_out: Task, **own: Any) -> PolicyStage:
        """The stage of these fields: plain draws under a constant rate, overridden by the parts in `own`."""
        defaults: dict[str, Any] = {
            "plan": self.plan,
            "loop": learn,
            "schedule": self.schedule(self.lr, own.get("passes", (1, 1))),
            "sampling": Sampling(temperature=1.0, max_tokens=self.cap(task)),
            "thinking": Thinking(mode=self.thinking, max_tokens=self.max_thinking),
            "strategy": partial(group_draws, n=self.n),
            "engine": self.engine,
            "sampler": {"mode": self.sampler},
            "limits": (self.train_limit, self.held_out_limit),
            "record": self.record,
            "rules": configured(self.health or {}),
        }
        return PolicyStage(kind=kind, task=task, held_out=held_out, **{**defaults, **own})


_READ_WITH = {
    "reward_model": ("reward_how", "reward_weight"),
    "verifier_lm": ("critique_ask", "critique_approves", "critiques", "critique_tokens", "critique_weight"),
    "ptx": ("ptx_rows", "ptx_weight"),
}
"""By field, those that only say more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFields:
    """Rewards beside the verifier's, the pull to a reference, and earlier data.

    Args:
        shaping: further parts of the reward, each NAME:weight=W,...
        reward_model: trained reward models, each a stage of this run, such as 2-reward_model, or a folder.
        reward_how: mean of several reward models, or worst for the lowest.
        reward_weight: weight of the learnt reward, above 0.
        verifier_lm: a generative verifier: a stage of this run, such as 1-sft, or a folder, that criticises answers.
        critique_ask: how a critique is asked for, with {prompt} and {answer}.
        critique_approves: a pattern; a critique that contains it approves.
        critiques: critiques of each answer; the reward is the share that approves.
        critique_tokens: most tokens of one; what was cut has no vote.
        critique_weight: weight of that share, above 0.
        verifier_weight: weight of the verifier; 0 leaves the reward to the other parts.
        missing_end: reward of a rollout that did not end by itself, in place of all else; None is none.
        verifier_s: seconds after which a verdict counts as missing; None is the verifier's own limit for all of them.
        judge: another verifier of held-out answers, NAME:KEY=VALUE,...; answers that only the rewards accept are
        watched.
        kl_weight: weight of the divergence from the reference, per token in the loss; 0 needs no reference.
        reference: a stage of this run, such as 1-sft, or a model folder; None is the model the stage starts from.
        reference_every: number of updates after which the policy becomes the reference, repeatedly; None is never.
        ptx: earlier data learnt from beside the rewards: data:FILE, corpus:SPEC or rollouts:STAGE.
        ptx_rows: examples of it per optimiser step.
        ptx_weight: weight of their mean cross-entropy.
    """

    shaping: tuple[str, ...] = ()
    reward_model: tuple[str, ...] = ()
    reward_how: How = "mean"
    reward_weight: float = 1.0
    verifier_lm: str | None = None
    critique_ask: str = ASK
    critique_approves: str = APPROVES
    critiques: int = 1
    critique_tokens: int = 256
    critique_weight: float = 1.0
    verifier_weight: float = 1.0
    missing_end: float | None = None
    verifier_s: float | None = None
    judge: str | None = None
    kl_weight: float = 0.0
    reference: str | None = None
    reference_every: int | None = None
    ptx: str | None = None
    ptx_rows: int = 32
    ptx_weight: float = 1.0

    def check(self, kind: str) -> None:
        """Raise ConfigError if nothing would give a reward, or for an impossible or unused divergence."""
        weights = "verifier_weight", "reward_weight", "critique_weight", "kl_weight", "ptx_weight"
        finite(kind, **{name: getattr(self, name) for name in (*weights, "missing_end", "verifier_s")})
        defaults = {item.name: item.default for item in fields(self)}
        for owner, names in _READ_WITH.items():
            own = {name: getattr(self, name) != defaults[name] for name in names}
            read_with(kind, owner, getattr(self, owner), **own)
        weight = self.verifier_weight
        if weight < 0 or not (weight or self.reward_model or self.shaping or self.verifier_lm):
            raise ConfigError(
                f"{kind}: verifier_weight must be above 0, or 0 with a reward_model or a shaping part or a "
                f"verifier_lm; got {weight}"
            )
        named = self.reference is not None or self.reference_every is not None
        if self.kl_weight < 0 or (named and not self.kl_weight):
            raise ConfigError(f"{kind}: kl_weight must be at least 0, and above 0 where a reference is named")
        if self.verifier_s is not None:
            above(kind, 0, verifier_s=self.verifier_s)
        if self.reference_every is not None:
            at_least(kind, 1, reference_every=self.reference_every)

    def parts(self, task: Task, *, partial_credit: bool = False) -> dict[str, Any]:
        """Rewards and reference of a `PolicyStage` on this task."""

        def rewarder(**learnt: Any) -> Rewarder:
            shaped, weight = [shaping_part(spec) for spec in self.shaping], self.verifier_weight
            return Rewarder(
                make_verifier(task), shaped, partial=partial_credit, verifier_weight=weight,
                missing_end=self.missing_end, wall_s=self.verifier_s, **learnt,
            )  # fmt: skip

        learnt = RewardSource(self.reward_model, self.reward_how, self.reward_weight) if self.reward_model else None
        return {
            "rewarder": rewarder,
            "shaping": self.shaping,
            "judge": self.judge,
            "reference": self.reference,
            "reference_every": self.reference_every,
            "rewards": learnt,
            "critique": self._critique,
            "ptx": None if self.ptx is None else Ptx(self.ptx, self.ptx_rows, self.ptx_weight),
        }

    @property
    def _critique(self) -> CritiqueSource | None:
        if self.verifier_lm is None:
            return None
        return CritiqueSource(
            self.verifier_lm, self.critique_ask, self.critique_approves, self.critiques, self.critique_tokens,
            self.critique_weight,
        )  # fmt: skip
