"""Fields that stages which roll out have in common, and what is bound from them alone.

`RolloutFields` says how rollouts are drawn, how long a run is and what watches it; `RewardFields` what a rollout is
worth beside its verdict, and what pulls the policy back. A kind (`train/stages/grpo.py`, `ppo.py`, `agent.py`, those of
other packages) adds its own fields and lays them over the rest by `RolloutFields.stage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from evals.task import Task
from train.base.health import configured
from train.base.optimiser import Schedule
from train.base.rollout import group_draws
from train.base.stage import check_positive
from train.registries import make_verifier
from train.reward_models.reward_models import How, RewardSource
from train.rl.loop import LoopPlan, learn
from train.rl.policy_stage import PolicyStage
from train.rl.ptx import Ptx
from train.rollouts.frontier import Mode
from train.rollouts.rewards import Rewarder, shaping_part
from ttc.core import Sampling
from ttc.errors import ConfigError
from ttc.session.thinking import Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFields:
    """What is drawn, for how long, and what watches.

    Args:
        steps: updates, each on a batch of rollouts.
        lr: learning rate of the policy.
        prompts: problems per update, a group of rollouts each.
        n: rollouts per group; at least 2 where only the group says what is good.
        max_tokens: most tokens that a rollout samples, all its turns together; None is the task's.
        thinking: on asks for it, off forbids it, auto leaves it to the model.
        max_thinking: most thinking tokens of a rollout; what the cap forces is not learnt.
        engine: what samples, NAME:KEY=VALUE,...; batch-invariant by default, so that a run resumed on the
            same machine is the same bits; embedded:processes=1,... samples in a process of its own.
        sampler: frontier, hard or uniform; or fresh, which asks every problem once.
        train_limit: most training problems, of each domain where there are several.
        held_out_limit: most held-out problems, likewise.
        mask_truncated: do not train on rollouts that were cut.
        eval_every: steps between held-out measurements.
        save_every: steps between checkpoints.
        until: stop once held-out accuracy reaches this.
        warmup: steps over which the rate rises.
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
    engine: str = "embedded:dtype=float32,batch_invariant=true"
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
        """Raise ConfigError for a number that must be at least 1 and is not."""
        numbers = {name: getattr(self, name) for name in ("steps", "prompts", "n", "eval_every", "save_every")}
        check_positive(kind, **numbers)

    @property
    def plan(self) -> LoopPlan:
        """How long and how wide."""
        return LoopPlan(
            steps=self.steps,
            prompts=self.prompts,
            eval_every=self.eval_every,
            save_every=self.save_every,
            until=self.until,
            mask_truncated=self.mask_truncated,
        )

    def cap(self, task: Task) -> int:
        """Most tokens of a rollout."""
        return self.max_tokens or task.sampling.max_tokens

    def stage(self, kind: str, task: Task, held_out: Task, **own: Any) -> PolicyStage:
        """The stage of these fields: plain draws under a constant rate, with the parts in `own` over them."""
        defaults: dict[str, Any] = {
            "plan": self.plan,
            "loop": learn,
            "schedule": Schedule(self.lr, self.steps, self.warmup),
            "sampling": Sampling(temperature=1.0, max_tokens=self.cap(task)),
            "thinking": Thinking(mode=self.thinking, max_tokens=self.max_thinking),
            "strategy": partial(group_draws, n=self.n),
            "engine": self.engine,
            "passes": (1, 1),
            "sampler": {"mode": self.sampler},
            "limits": (self.train_limit, self.held_out_limit),
            "record": self.record,
            "rules": configured(self.health or {}),
            "shaping": (),
        }
        return PolicyStage(kind=kind, task=task, held_out=held_out, **{**defaults, **own})


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFields:
    """Rewards beside the verifier's, a leash, and earlier data.

    Args:
        shaping: further parts of the reward, each NAME:weight=W,...
        reward_model: trained reward models, each a stage of this run, such as 2-reward_model, or a folder.
        reward_how: mean of several reward models, or worst for the lowest.
        reward_weight: weight of the learnt reward.
        verifier_weight: weight of the verifier; 0 leaves the reward to the reward models.
        kl_weight: weight of the divergence from the reference, per token in the loss; 0 needs no reference.
        reference: a stage of this run, such as 1-sft, or a model folder; None is the model the stage starts from.
        ptx: earlier data learnt from beside the rewards: data:FILE, corpus:SPEC or rollouts:STAGE.
        ptx_rows: examples of it per optimiser step.
        ptx_weight: weight of their mean cross-entropy.
    """

    shaping: tuple[str, ...] = ()
    reward_model: tuple[str, ...] = ()
    reward_how: How = "mean"
    reward_weight: float = 1.0
    verifier_weight: float = 1.0
    kl_weight: float = 0.0
    reference: str | None = None
    ptx: str | None = None
    ptx_rows: int = 32
    ptx_weight: float = 1.0

    def check(self, kind: str) -> None:
        """Raise ConfigError when nothing would give a reward, or for a divergence that cannot be or nobody reads."""
        weight = self.verifier_weight
        if weight < 0 or (not weight and not self.reward_model):
            raise ConfigError(f"{kind}: verifier_weight must be above 0, or 0 with a reward_model; got {weight}")
        if self.kl_weight < 0 or (self.reference is not None and not self.kl_weight):
            raise ConfigError(f"{kind}: kl_weight must be at least 0, and above 0 where a reference is named")

    def parts(self, task: Task, *, partial_credit: bool = False) -> dict[str, Any]:
        """Rewards and reference of a `PolicyStage` on this task."""

        def rewarder(**learnt: Any) -> Rewarder:
            shaped = [shaping_part(spec) for spec in self.shaping]
            weight = self.verifier_weight
            return Rewarder(make_verifier(task), shaped, partial=partial_credit, verifier_weight=weight, **learnt)

        learnt = RewardSource(self.reward_model, self.reward_how, self.reward_weight) if self.reward_model else None
        return {
            "rewarder": rewarder,
            "shaping": self.shaping,
            "reference": self.reference,
            "rewards": learnt,
            "ptx": None if self.ptx is None else Ptx(self.ptx, self.ptx_rows, self.ptx_weight),
        }
