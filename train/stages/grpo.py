"""Reinforcement learning from verified rewards: the loop of `train.loop` on one task.

The kind is called after GRPO (Shao et al. 2024, arXiv:2402.03300), its default; `loss`, `advantage` and `normaliser`
make it Dr. GRPO, DAPO, GSPO, CISPO, RLOO, REINFORCE++ or Kimi k1.5's loss, each a line of a recipe. Rollouts come from
any engine that returns ids with log-probabilities and takes new weights, through any strategy. A reference pulls the
policy back (`kl_weight`), trained reward models add to the verifier or take its place (`reward_model`), and earlier
data may be trained on beside the rewards (`ptx`). With a value head it is the stage `ppo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from train.asynchronous import learn_async
from train.build import Build
from train.correction import Correction
from train.frontier import Mode
from train.health import configured
from train.learnt_reward import RewardSource
from train.loop import learn
from train.normalise import Normaliser
from train.optimiser import Schedule
from train.parts import Plan
from train.policy_stage import PolicyStage
from train.ptx import Ptx
from train.registries import ADVANTAGES, LOSSES
from train.reward_models import How
from train.rewards import Rewarder
from train.rollout import Strategy, group_draws
from train.sources import check_positive
from train.specs import make, make_task, make_verifier, shaping_part
from train.update import Objective
from ttc.core import Sampling
from ttc.errors import ConfigError
from ttc.registry import STRATEGIES, bind
from ttc.specs import parse_spec
from ttc.thinking import Thinking

__all__ = ["grpo", "make_strategy"]


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
    leave_out: str | None = None,
    leave_out_above: int = 0,
    held_out_limit: int = 128,
    refills: int = 0,
    mask_truncated: bool = False,
    epochs: int = 1,
    minibatches: int = 1,
    correction: Literal["token", "sequence", "none"] = "token",
    kl_weight: float = 0.0,
    kl_estimator: Literal["k1", "k2", "k3"] = "k3",
    reference: str | None = None,
    reward_model: tuple[str, ...] = (),
    reward_how: How = "mean",
    reward_weight: float = 1.0,
    verifier_weight: float = 1.0,
    ptx: str | None = None,
    ptx_rows: int = 32,
    ptx_weight: float = 1.0,
    lora: int = 0,
    lora_alpha: float | None = None,
    checkpointing: bool = False,
    autocast: bool = False,
    shard: bool = False,
    eval_every: int = 10,
    save_every: int = 50,
    until: float | None = None,
    warmup: int = 0,
    asynchronous: bool = False,
    max_staleness: int = 1,
    buffer: int = 2,
    record: bool = True,
    health: Mapping[str, Any] | None = None,
) -> PolicyStage:
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
        leave_out: a stage of this run that sampled them, such as 2-sample: problems it solved too often are dropped.
        leave_out_above: how often is not yet too often.
        held_out_limit: most held-out problems.
        refills: further rounds of prompts for groups without a signal.
        mask_truncated: do not train on rollouts that were cut.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass.
        correction: level at which engine and trainer mismatch is corrected.
        kl_weight: weight of the divergence from the reference, per token in the loss; 0 needs no reference.
        kl_estimator: k3, k1 or k2; see `train/kl.py`.
        reference: a stage of this run, such as 1-sft, or a model folder; None is the model the stage starts from.
        reward_model: trained reward models, each a stage of this run, such as 2-reward_model, or a folder.
        reward_how: mean of several reward models, or worst for the lowest.
        reward_weight: weight of the learnt reward.
        verifier_weight: weight of the verifier; 0 leaves the reward to the reward models.
        ptx: earlier data learnt from beside the rewards: data:FILE, corpus:SPEC or rollouts:STAGE.
        ptx_rows: examples of it per optimiser step.
        ptx_weight: weight of their mean cross-entropy.
        lora: rank of low-rank adapters on all linear layers; 0 trains all weights.
        lora_alpha: their scale; None is twice the rank.
        checkpointing: compute activations again in the backward pass instead of keeping them.
        autocast: compute in bf16, with fp32 weights.
        shard: split the weights over the processes of the run (FSDP2); with one process, do nothing.
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
    check_positive("grpo", steps=steps, prompts=prompts, eval_every=eval_every, save_every=save_every)
    check_rewards("grpo", reward_model, verifier_weight)
    check_reference("grpo", kl_weight, reference)
    if leave_out_above < 0:
        raise ConfigError(f"grpo: leave_out_above must be at least 0, got {leave_out_above}")
    if refills < 0:
        raise ConfigError(f"grpo: refills must be at least 0, got {refills}")
    problems, measured = make_task(task), make_task(held_out)
    cap = max_tokens or problems.sampling.max_tokens
    return PolicyStage(
        task=problems,
        held_out=measured,
        plan=Plan(
            steps, prompts, refills, eval_every, save_every, until, mask_truncated, max_staleness, buffer
        ),
        loop=learn_async if asynchronous else learn,
        schedule=Schedule(lr, steps, warmup),
        objective=Objective(
            make(LOSSES, loss), make(ADVANTAGES, advantage), normaliser, cap, Correction(level=correction), kl_weight,
            kl_estimator,
        ),
        sampling=Sampling(temperature=1.0, max_tokens=cap),
        thinking=Thinking(mode=thinking, max_tokens=max_thinking),
        strategy=partial(group_draws, n=n) if strategy is None else make_strategy(strategy),
        rewarder=lambda **learnt: Rewarder(
            make_verifier(problems), [shaping_part(spec) for spec in shaping], partial=partial_credit,
            verifier_weight=verifier_weight, **learnt,
        ),
        engine=engine,
        passes=(epochs, minibatches),
        sampler={"mode": sampler, "retire": retire},
        limits=(train_limit, held_out_limit),
        record=record,
        rules=configured(health or {}),
        shaping=shaping,
        reference=reference,
        rewards=RewardSource(reward_model, reward_how, reward_weight) if reward_model else None,
        ptx=None if ptx is None else Ptx(ptx, ptx_rows, ptx_weight),
        build=Build(lora, lora_alpha, checkpointing, autocast, shard),
        leave_out=None if leave_out is None else (leave_out, leave_out_above),
    )  # fmt: skip


def check_rewards(stage: str, reward_model: tuple[str, ...], verifier_weight: float) -> None:
    """Raise ConfigError when nothing would give a reward."""
    if verifier_weight < 0 or (not verifier_weight and not reward_model):
        raise ConfigError(f"{stage}: verifier_weight must be above 0, or 0 with a reward_model; got {verifier_weight}")


def check_reference(stage: str, kl_weight: float, reference: str | None) -> None:
    """Raise ConfigError for a divergence that cannot be, or a reference that nothing would read."""
    if kl_weight < 0 or (reference is not None and not kl_weight):
        raise ConfigError(f"{stage}: kl_weight must be at least 0, and above 0 where a reference is named")


def make_strategy(spec: str) -> Strategy:
    """Bind a strategy that needs no scorer."""
    name, given = parse_spec(spec)
    function = STRATEGIES.load(name)
    found: Strategy = partial(function, **bind(function, given, supply={}))
    return found
