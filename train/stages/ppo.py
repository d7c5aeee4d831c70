"""PPO with a value head: reinforcement learning from a reward model, a verifier, or both, one rollout per prompt.

Schulman et al. 2017 (arXiv:1707.06347); the form for language models of InstructGPT (Ouyang et al. 2022,
arXiv:2203.02155) and Tulu 3 (Lambert et al. 2024, arXiv:2411.15124): the divergence from the reference is part of the
reward of every token, advantages by GAE are whitened over the batch, policy and critic are each passed over several
times. All but the critic is shared with the stage `grpo`. Cost beside it: the critic's passes (`train.update.critic`)
instead of a group of rollouts per prompt. Left out: normalising rewards by a running spread, which whitening makes
needless.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from train.advantages.gae import gae
from train.base.models import load_model
from train.base.optimiser import Optimiser, Schedule
from train.base.stage import Setting
from train.losses.ppo import ppo as clipped
from train.registries import make_task
from train.reward_models.reward_models import load_reward_model, reward_folders, same_tokenizer
from train.rl.policy_stage import PolicyStage, RewardFields, RolloutFields
from train.rollouts.frontier import Mode
from train.update.critic import Critic, ValueFit, ValueHead
from train.update.terms import Correction
from train.update.update import Build, Objective
from ttc.config.values import above, at_least, finite
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CriticStart:
    """Where PPO's critic starts: as a copy of the policy, a head on it, or a reward model; see `Critic`.

    `start` is copy, head, or the reward model: a stage of the run, or a folder.
    """

    start: str
    schedule: Schedule
    fit: ValueFit

    @property
    def names(self) -> tuple[str, ...]:
        """The reward model that it starts from, if it does."""
        return () if self.start in ("copy", "head") else (self.start,)

    def check(self, source: Path, setting: Setting) -> None:
        """Raise ConfigError when it cannot start like this; `source` is the policy's folder."""
        for name in self.names:
            same_tokenizer("critic", reward_folders(name, setting)[0], source)

    def make(self, model: Any, source: Path, setting: Setting) -> Critic:
        """The critic of the policy `model`, loaded from `source`."""
        policies = {"head": lambda: model, "copy": lambda: load_model(source, setting.device)}
        if self.start in policies:
            own = policies[self.start]()
            module = ValueHead(own.base_model, model.config.hidden_size, shared=own is model)
        else:
            other = load_reward_model(reward_folders(self.start, setting)[0], setting.device)
            module = ValueHead(other.base_model, other.config.hidden_size, shared=False)
            with torch.no_grad():  # the reward at the last token is the initial value
                module.head.weight.copy_(other.score.weight)
        optimiser = Optimiser(module.to(setting.device), self.schedule, world=setting.world)
        return Critic(module, optimiser, self.fit, setting.world)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RolloutFields(RolloutFields):
    """Many prompts, one rollout each: a critic compares, not a group."""

    prompts: int = 128
    n: int = 1
    sampler: Mode = "uniform"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RewardFields(RewardFields):
    """With a pull to the reference."""

    kl_weight: float = 0.05


def ppo(
    *,
    task: str,
    held_out: str,
    rollouts: _RolloutFields,
    rewards: _RewardFields,
    kl_in: Literal["reward", "loss"] = "reward",
    critic: str = "copy",
    value_lr: float | None = None,
    value_clip: float | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    clip: float = 0.2,
    epochs: int = 2,
    minibatches: int = 2,
    entropy_weight: float = 0.0,
    build: Build,
) -> PolicyStage:
    """Train a policy with a value head.

    Args:
        task: the training problems, NAME or NAME:KEY=VALUE,...
        held_out: the problems it is measured on; none of them may be in `task`.
        rollouts: see `RolloutFields`.
        rewards: see `RewardFields`.
        kl_in: reward takes it off the reward of every token, loss adds it to the loss.
        critic: copy (of the policy), head (on the policy), or a reward model to start from, named as in reward_model.
        value_lr: learning rate of the critic; None is ten times that of the policy.
        value_clip: most that a value may move in one batch, in units of reward; None is no bound, as in the paper.
        gamma: discount of rewards per token.
        lam: 0 trusts the critic, 1 the reward.
        clip: bound of the probability ratio, on both sides.
        epochs: passes over each batch, of the policy and of the critic.
        minibatches: optimiser steps per pass.
        entropy_weight: weight of the policy's mean entropy per token, which the update raises (Schulman et al., eq. 9).
        build: see `Build`.
    """
    rollouts.check("ppo")
    rewards.check("ppo")
    at_least("ppo", 0, entropy_weight=entropy_weight)
    finite("ppo", entropy_weight=entropy_weight)
    above("ppo", 0, value_lr=value_lr)
    if build.shard and critic == "head":
        raise ConfigError("ppo: critic head reads hidden states that shard splits; take copy")
    problems = make_task(task)
    passes = epochs, minibatches
    value_rate = 10 * rollouts.lr if value_lr is None else value_lr
    return rollouts.stage(
        "ppo",
        problems,
        make_task(held_out),
        objective=Objective(
            clipped(clip_low=clip, clip_high=clip), gae(gamma=gamma, lam=lam), "token", rollouts.cap(problems),
            Correction(), rewards.kl_weight, kl_in=kl_in, whiten=True, entropy_weight=entropy_weight,
        ),
        passes=passes,
        critic=CriticStart(
            critic,
            rollouts.schedule(value_rate, passes),
            ValueFit(epochs, minibatches, value_clip, build.micro_tokens),
        ),
        build=build,
        **rewards.parts(problems),
    )  # fmt: skip
