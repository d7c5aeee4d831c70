"""On-policy distillation: the student writes, and a teacher supervises every token that it wrote.

GKD (Agarwal et al. 2024, arXiv:2306.13649), MiniLLM (Gu et al. 2024, arXiv:2306.08543); routing to several teachers is
the multi-teacher form of DeepSeek-V3.2 and others. The loop, the engine, the pushed weights and their probe, health
rules, resume and files are those of reinforcement learning (`train.rl.loop`, `train.rl.policy_stage`); only the update
differs: a divergence from the teacher takes the place of the one from a reference, or, with `sampled`, becomes the
advantage. Only tokens that the student sampled count, not forced ones, and no rollouts that were cut. Cost: the
rollouts, and one prefill of each by its teacher. Left out: asynchronous rollouts; teachers of another tokenizer, which
need methods on text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from distill.stages.domains import DomainVerifier, joined, named, parse_named
from distill.supervision.divergence import WORDS, Kind, make_divergence
from distill.supervision.panel import Learner, TeacherPanel
from distill.supervision.reader import EngineReader, LocalReader, TeacherReader
from evals.task import Task
from train.advantages.group import group
from train.base.health import configured
from train.base.models import load_tokenizer
from train.base.optimiser import Schedule
from train.base.stage import Setting, StageResult, model_of, read_with
from train.losses.ppo import ppo
from train.replay.replay import Relearn
from train.rl.loop import LoopPlan, Parts, learn
from train.rl.policy_stage import PolicyStage, RolloutFields
from train.rollouts.frontier import Mode
from train.rollouts.rewards import Rewarder
from train.update.batch import Normaliser
from train.update.terms import Correction
from train.update.update import Build, Objective, Updater
from ttc.config.recipes import parse_spec
from ttc.config.registry import ENGINES
from ttc.config.signatures import bind, call
from ttc.config.values import at_least, finite
from ttc.core import Engine
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, UnknownName

_QUIET = ("no_signal", "all_fail", "all_pass")
"""Health rules about rewards, which do not apply to a teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completions(RolloutFields):
    """Few completions of many problems, as the teacher is the comparison and not a group; cut ones teach nothing."""

    n: int = 4
    sampler: Mode = "uniform"
    mask_truncated: bool = True


def on_policy(
    *,
    task: str | tuple[str, ...],
    held_out: str | tuple[str, ...],
    teacher: str | tuple[str, ...],
    divergence: Kind = "reverse",
    beta: float = 0.5,
    top_k: int | None = None,
    reward_weight: float = 0.0,
    completions: _Completions,
    decay: bool = False,
    normaliser: Normaliser = "token",
    build: Build,
) -> OnPolicy:
    """Learn from a teacher on the student's own samples.

    Args:
        task: the problems, NAME or NAME:KEY=VALUE,...; or several DOMAIN=TASK.
        held_out: the problems it is measured on, in the same notation; none of them may be in `task`.
        teacher: a model folder, or an engine that scores ids, NAME:KEY=VALUE,...; or several DOMAIN=TEACHER.
        divergence: reverse, forward, jsd, or sampled; explained in words at the start.
        beta: of jsd, from 0 (forward) to 1 (reverse).
        top_k: tokens per position that a teacher behind an engine reports; the rest is one bucket.
        reward_weight: weight of the verifier's reward, as group-relative advantage, beside the teacher; 0 is none.
        completions: see `RolloutFields`.
        decay: let the rate fall to 0.
        normaliser: token, sequence, constant or rollout.
        build: see `train.update.update.Build`.
    """
    n = completions.n
    completions.check("on_policy")
    at_least("on_policy", 1, top_k=top_k)
    finite("on_policy", reward_weight=reward_weight)
    if reward_weight < 0 or (reward_weight > 0 and n < 2):
        raise ConfigError(f"on_policy: reward_weight needs to be at least 0, and n >= 2; got {reward_weight} and n {n}")
    if divergence != "sampled":
        make_divergence(divergence, beta)
    read_with("on_policy", "divergence = jsd", divergence == "jsd", beta=beta != 0.5)
    problems, measured = named("task", task), named("held_out", held_out)
    whole, health = joined(problems), completions.health or {}
    inner = completions.stage(
        "on_policy",
        whole,
        joined(measured),
        schedule=Schedule(completions.lr, completions.steps, completions.warmup, decay),
        objective=Objective(ppo(), group(), normaliser, completions.cap(whole), Correction()),
        rewarder=lambda: Rewarder(DomainVerifier(problems)),
        rules=tuple(rule for rule in configured(health) if rule.name not in _QUIET or rule.name in health),
        checker=lambda task: DomainVerifier(measured),
        watches=False,
        build=build,
    )
    return OnPolicy(inner, problems, measured, parse_named("teacher", teacher), divergence, beta, top_k, reward_weight)


@dataclass(frozen=True, slots=True)
class OnPolicy:
    """The bound stage; see `on_policy`."""

    inner: PolicyStage
    problems: Mapping[str, Task]
    measured: Mapping[str, Task]
    teachers: Mapping[str, str]
    kind: Kind
    beta: float
    top_k: int | None
    reward_weight: float

    def check(self, has_model: bool) -> None:
        """See `Stage.check`."""
        for domain, task in self.problems.items():
            for held_out in self.measured.values():
                replace(self.inner, task=task, held_out=held_out).check(has_model)
            if domain not in self.teachers and "" not in self.teachers:
                names = ", ".join(self.teachers)
                raise ConfigError(f"on_policy: no teacher for the domain {domain!r} (teachers: {names})")
        for domain in self.teachers:
            if domain and domain not in self.problems:
                raise ConfigError(
                    f"on_policy: teacher {domain}=... is of no domain (known: {', '.join(self.problems)})"
                )
        engines = [spec for spec in self.teachers.values() if not Path(spec).expanduser().is_dir()]
        for spec in engines:
            self._bound(spec)
        if engines and self.kind != "sampled" and self.top_k is None:
            raise ConfigError(
                f"on_policy: teacher {engines[0]} reports as many tokens per position as requested, and divergence "
                f"{self.kind} needs several: set top_k, such as 20, or divergence = sampled"
            )
        if self.top_k is not None and (not engines or self.kind == "sampled"):
            raise ConfigError(
                "on_policy: top_k is for a teacher behind an engine under a divergence over the vocabulary (a folder "
                "tells all tokens, sampled needs one): leave it out"
            )

    def models(self) -> Mapping[str, tuple[str, ...]]:
        """See `Naming.models`."""
        return {f"teacher {domain}".strip(): (spec,) for domain, spec in self.teachers.items()}

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """See `train.base.stage.Asking`; several domains are told apart by their names."""
        limits = zip(("task", "held_out"), (self.problems, self.measured), self.inner.limits, strict=True)
        return {
            f"{field} {domain}".strip(): (task, limit)
            for field, tasks, limit in limits
            for domain, task in tasks.items()
        }

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`."""
        return replace(self.inner, loop=partial(self._loop, setting)).run(setting)

    def relearner(self, source: Path, setting: Setting) -> Relearn:
        """See `train.replay.replay.Relearning`."""
        updater = self.inner.learner(source, setting)
        learner = self._learner(setting, source, updater, int(load_tokenizer(source).pad_token_id))
        return lambda rollouts: asyncio.run(learner.learn(rollouts))

    async def _loop(self, setting: Setting, plan: LoopPlan, parts: Parts) -> dict[str, Any]:
        learner = self._learner(setting, model_of("on_policy", setting), parts.updater, parts.pad_id)
        try:
            setting.log(WORDS[self.kind])
            return await learn(plan, parts, learner.learn)
        finally:
            await learner.panel.close()

    def _learner(self, setting: Setting, source: Path, updater: Updater, pad_id: int) -> Learner:
        """The teachers, opened and checked against the student in `source`, and what learns from them."""
        items = self.inner.task.items(self.inner.limits[0], 0)
        messages = {item.problem.id: item.problem.messages for item in items}
        panel = TeacherPanel(self._readers(setting), messages, self.inner.thinking.template)
        panel.check(Text(source))
        truncated = self.inner.plan.mask_truncated
        rounded = self.inner.draws_in_bf16 or self.inner.build.casts(setting.device)
        return Learner(panel, updater, pad_id, self.kind, self.beta, self.reward_weight, truncated, rounded)

    def _readers(self, setting: Setting) -> dict[str, TeacherReader]:
        """Teachers by domain; one that several domains name is loaded once."""
        readers: dict[str, TeacherReader] = {}
        for domain, spec in self.teachers.items():
            if spec not in readers:
                readers[spec] = self._reader(domain or "teacher", spec, setting)
        return {domain: readers[spec] for domain, spec in self.teachers.items()}

    def _reader(self, name: str, spec: str, setting: Setting) -> TeacherReader:
        folder = Path(spec).expanduser()
        if folder.is_dir():
            return LocalReader(name, folder, setting.device)
        factory, options, supply = self._bound(spec)
        engine: Engine = call(factory, options, supply=supply)
        return EngineReader(name, engine, top_k=None if self.kind == "sampled" else self.top_k)

    def _bound(self, spec: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Factory and checked options of an engine, and its `model`, which is written like any other option."""
        name, options = parse_spec(spec)
        try:
            factory = ENGINES.load(name)
        except UnknownName as exc:
            raise ConfigError(f"on_policy: teacher {spec!r} is neither a model folder nor an engine: {exc}") from exc
        model = {"model": options.pop("model")} if "model" in options else {}
        bind(factory, options, supply=model)
        return factory, options, model
