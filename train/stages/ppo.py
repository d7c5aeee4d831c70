"""PPO with a value head: reinforcement learning from a reward model, a verifier, or both, one rollout a prompt.

Schulman et al. 2017 (arXiv:1707.06347); the form for language models of InstructGPT (Ouyang et al. 2022,
arXiv:2203.02155) and Tulu 3 (Lambert et al. 2024, arXiv:2411.15124): the divergence from the reference is part of the
reward of every token, advantages by GAE are whitened over the batch, policy and critic are each passed over several
times. All but the critic is shared with the stage `grpo`. Cost beside it: the critic's passes (`train.critic`) instead
of a group of rollouts per prompt. Left out: normalising rewards by a running spread, which whitening makes needless.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from train.advantages.gae import gae
from train.build import Build
from train.correction import Correction
from train.critic import ValueFit
from train.critic_start import CriticStart
from train.frontier import Mode
from train.health import configured
from train.learnt_reward import RewardSource
from train.loop import learn
from train.losses.ppo import ppo as clipped
from train.optimiser import Schedule
from train.parts import Plan
from train.policy_stage import PolicyStage
from train.ptx import Ptx
from train.reward_models import How
from train.rewards import Rewarder
from train.rollout import group_draws
from train.sources import check_positive
from train.specs import make_task, make_verifier, shaping_part
from train.stages.grpo import check_reference, check_rewards
from train.update import Objective
from ttc.core import Sampling
from ttc.thinking import Thinking

__all__ = ["ppo"]


def ppo(
    *,
    task: str,
    held_out: str,
    steps: int,
    lr: float,
    prompts: int = 128,
    n: int = 1,
    max_tokens: int | None = None,
    reward_model: tuple[str, ...] = (),
    reward_how: How = "mean",
    reward_weight: float = 1.0,
    verifier_weight: float = 1.0,
    shaping: tuple[str, ...] = (),
    kl_weight: float = 0.05,
    kl_in: Literal["reward", "loss"] = "reward",
    reference: str | None = None,
    critic: str = "copy",
    value_lr: float | None = None,
    value_clip: float | None = 0.2,
    gamma: float = 1.0,
    lam: float = 0.95,
    clip: float = 0.2,
    epochs: int = 2,
    minibatches: int = 2,
    ptx: str | None = None,
    ptx_rows: int = 32,
    ptx_weight: float = 1.0,
    lora: int = 0,
    lora_alpha: float | None = None,
    checkpointing: bool = False,
    autocast: bool = False,
    shard: bool = False,
    thinking: Literal["auto", "on", "off"] = "auto",
    max_thinking: int | None = None,
    engine: str = "embedded:dtype=float32,batch_invariant=true",
    sampler: Mode = "uniform",
    train_limit: int | None = None,
    held_out_limit: int = 128,
    mask_truncated: bool = False,
    eval_every: int = 10,
    save_every: int = 50,
    until: float | None = None,
    warmup: int = 0,
    record: bool = True,
    health: Mapping[str, Any] | None = None,
) -> PolicyStage:
    """Train a policy with a value head.

    Args:
        task: the training problems, NAME or NAME:KEY=VALUE,...
        held_out: the problems it is measured on; none of them may be in `task`.
        steps: batches of rollouts.
        lr: learning rate of the policy.
        prompts: prompts per batch.
        n: rollouts per prompt.
        max_tokens: cap of a rollout; None is the task's.
        reward_model: trained reward models, each a stage of this run, such as 2-reward_model, or a folder.
        reward_how: mean of several reward models, or worst for the lowest.
        reward_weight: weight of the learnt reward.
        verifier_weight: weight of the verifier; 0 leaves the reward to the reward models.
        shaping: further parts of the reward, each NAME:weight=W,...
        kl_weight: weight of the divergence from the reference; 0 needs no reference.
        kl_in: reward takes it off the reward of every token, loss adds it to the loss.
        reference: a stage of this run, such as 1-sft, or a model folder; None is the model the stage starts from.
        critic: copy (of the policy), head (on the policy), or a reward model to start from, named as in reward_model.
        value_lr: learning rate of the critic; None is ten times that of the policy.
        value_clip: most that a value may move in one batch; None is no bound.
        gamma: discount of rewards per token.
        lam: 0 trusts the critic, 1 the reward.
        clip: bound of the probability ratio, on both sides.
        epochs: passes over each batch, of the policy and of the critic.
        minibatches: optimiser steps per pass.
        ptx: earlier data learnt from beside the rewards: data:FILE, corpus:SPEC or rollouts:STAGE (PPO-ptx).
        ptx_rows: examples of it per optimiser step.
        ptx_weight: weight of their mean cross-entropy.
        lora: rank of low-rank adapters on all linear layers; 0 trains all weights.
        lora_alpha: their scale; None is twice the rank.
        checkpointing: compute activations again in the backward pass instead of keeping them.
        autocast: compute in bf16, with fp32 weights.
        shard: split the weights over the processes of the run (FSDP2); with one process, do nothing.
        thinking: on asks for it, off forbids it, auto leaves it to the model.
        max_thinking: most thinking tokens of a rollout.
        engine: what samples, NAME:KEY=VALUE,...; batch-invariant by default, so that a resumed run is the same bits.
        sampler: uniform, frontier or hard.
        train_limit: most training problems.
        held_out_limit: most held-out problems.
        mask_truncated: do not train on rollouts that were cut.
        eval_every: steps between held-out measurements.
        save_every: steps between checkpoints.
        until: stop once held-out accuracy reaches this.
        warmup: optimiser steps over which the rates rise.
        record: write every rollout to rollouts.jsonl.
        health: changes of health rules by name.
    """
    check_positive("ppo", steps=steps, prompts=prompts, n=n, eval_every=eval_every, save_every=save_every)
    check_rewards("ppo", reward_model, verifier_weight)
    check_reference("ppo", kl_weight, reference)
    problems = make_task(task)
    cap = max_tokens or problems.sampling.max_tokens
    taken = steps * epochs * minibatches
    return PolicyStage(
        kind="ppo",
        task=problems,
        held_out=make_task(held_out),
        plan=Plan(steps, prompts, 0, eval_every, save_every, until, mask_truncated),
        loop=learn,
        schedule=Schedule(lr, taken, warmup),
        objective=Objective(
            clipped(clip_low=clip, clip_high=clip), gae(gamma=gamma, lam=lam), "token", cap, Correction(), kl_weight,
            kl_in=kl_in, whiten=True,
        ),
        sampling=Sampling(temperature=1.0, max_tokens=cap),
        thinking=Thinking(mode=thinking, max_tokens=max_thinking),
        strategy=partial(group_draws, n=n),
        rewarder=lambda **learnt: Rewarder(
            make_verifier(problems), [shaping_part(spec) for spec in shaping], verifier_weight=verifier_weight, **learnt
        ),
        engine=engine,
        passes=(epochs, minibatches),
        sampler={"mode": sampler},
        limits=(train_limit, held_out_limit),
        record=record,
        rules=configured(health or {}),
        shaping=shaping,
        reference=reference,
        rewards=RewardSource(reward_model, reward_how, reward_weight) if reward_model else None,
        ptx=None if ptx is None else Ptx(ptx, ptx_rows, ptx_weight),
        build=Build(lora, lora_alpha, checkpointing, autocast, shard),
        critic=CriticStart(
            critic,
            Schedule(10 * lr if value_lr is None else value_lr, taken, warmup),
            ValueFit(epochs, minibatches, value_clip),
        ),
    )  # fmt: skip
