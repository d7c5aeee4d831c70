"""Reinforcement learning from verified rewards: the loop of `train.rl.loop` on one task.

The kind is named after GRPO (Shao et al. 2024, arXiv:2402.03300), its default; `loss`, `advantage` and `normaliser`
make it Dr. GRPO, DAPO, GSPO, CISPO, RLOO, REINFORCE++ or Kimi k1.5's loss, each a line of a recipe. Rollouts come from
any engine that returns ids with log-probabilities and takes new weights, through any strategy. A reference pulls the
policy back (`kl_weight`), trained reward models add to the verifier or take its place (`reward_model`), a process
reward model judges every step (`process_reward`, with `advantage = "steps"`), and earlier data may be trained on beside
the rewards (`ptx`). With a value head it is the stage `ppo`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from train.base.rollout import branching_draws, group_draws
from train.base.stage import read_with
from train.registries import ADVANTAGES, LOSSES, make, make_task
from train.rl.loop import learn
from train.rl.overlapped import learn_async
from train.rl.policy_stage import PolicyStage, RewardFields, RolloutFields
from train.update.batch import Normaliser
from train.update.terms import Correction, across_prompts
from train.update.update import Build, Objective
from ttc.cli.rehearsal import refuse_early
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import parse_spec
from ttc.config.registry import STRATEGIES
from ttc.config.signatures import bind
from ttc.config.values import at_least
from ttc.core import Sampling, Strategy
from ttc.errors import ConfigError
from ttc.session.thinking import Thinking


def grpo(
    *,
    task: str,
    held_out: str,
    rollouts: RolloutFields,
    loss: str = "ppo",
    advantage: str = "group",
    normaliser: Normaliser = "token",
    epochs: int = 1,
    minibatches: int = 1,
    correction: Literal["token", "sequence", "none"] = "token",
    correction_how: Literal["truncate", "mask"] = "truncate",
    correction_cap: float = 2.0,
    rewards: RewardFields,
    partial_credit: bool = False,
    process_reward: str | None = None,
    kl_estimator: Literal["k1", "k2", "k3"] = "k3",
    strategy: str | None = None,
    branch_every: int | None = None,
    refills: int = 0,
    retire: int | None = None,
    leave_out: str | None = None,
    leave_out_above: int = 0,
    asynchronous: bool = False,
    max_staleness: int = 1,
    build: Build,
) -> PolicyStage:
    """Train a policy against a task's verifier.

    Args:
        task: the training problems, NAME or NAME:KEY=VALUE,...
        held_out: the problems it is measured on; none of them may be in `task`.
        rollouts: see `RolloutFields`.
        loss: NAME or NAME:KEY=VALUE,... of `train/losses`; what clips a ratio acts from the second update of a batch.
        advantage: of `train/advantages`.
        normaliser: token, sequence, constant or rollout.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass.
        correction: importance weights for what the sampling engine computes otherwise than the trainer, of each token,
            of each sequence, or none.
        correction_how: truncate a weight above the cap to it, or mask what lies outside of [1 / cap, cap].
        correction_cap: the cap, at least 1.
        rewards: see `RewardFields`.
        partial_credit: take the verifier's score instead of right or wrong.
        process_reward: a stage prm of this run, such as 2-prm, or its folder: what steps are worth to advantage steps.
        kl_estimator: k3, k1 or k2; see `train/update/terms.py`.
        strategy: what produces the rollouts, NAME:KEY=VALUE,...; None draws n completions.
        branch_every: tokens after which a group's rollouts part in two, until there are n; None draws each by itself.
        refills: further rounds of prompts for groups without a signal.
        retire: drop a problem after its whole group passed this many times in a row.
        leave_out: a stage of this run that sampled them, such as 2-sample: problems it solved too often are dropped.
        leave_out_above: how often is not yet too often.
        asynchronous: draw, judge and learn at once.
        max_staleness: most rounds that rollouts of an asynchronous run may be behind.
        build: see `Build`.
    """
    rollouts.check("grpo")
    rewards.check("grpo")
    at_least("grpo", 1, epochs=epochs, minibatches=minibatches, retire=retire)
    at_least("grpo", 0, leave_out_above=leave_out_above, refills=refills, max_staleness=max_staleness)
    at_least("grpo", 1, correction_cap=correction_cap)
    truncates, usual = correction_how == "truncate", correction_cap == 2.0
    read_with("grpo", "correction", correction != "none", correction_how=not truncates, correction_cap=not usual)
    read_with("grpo", "leave_out", leave_out, leave_out_above=leave_out_above != 0)
    if branch_every is not None:
        at_least("grpo", 1, branch_every=branch_every)
        if strategy is not None:
            raise ConfigError("grpo: branch_every and strategy both say how a group is drawn; set one of them")
    if (process_reward is not None) != (parse_spec(advantage)[0] == "steps"):
        raise ConfigError('grpo: process_reward and advantage = "steps" need each other')
    if asynchronous and refills:
        raise ConfigError("grpo: refills needs asynchronous = false: groups on their way are not drawn again")
    if asynchronous and rollouts.sampler == "fresh":
        raise ConfigError("grpo: sampler fresh needs asynchronous = false: it counts a problem once it is learnt from")
    if parse_spec(advantage)[0] == "gae":
        raise ConfigError("grpo: advantage gae needs a value head, which only stages of kind ppo have")
    compare = make(ADVANTAGES, advantage)
    if rollouts.n < 2 and strategy is None and not across_prompts(compare):
        raise ConfigError(
            "grpo: n must be at least 2, got 1: this advantage compares rollouts of one prompt; batch and "
            "reinforce_pp:baseline=none compare those of all"
        )
    if rollouts.n < 2 and refills:
        raise ConfigError("grpo: refills needs n of at least 2: a group of one has no signal")
    problems = make_task(task)
    return rollouts.stage(
        "grpo",
        problems,
        make_task(held_out),
        plan=replace(rollouts.plan, refills=refills, max_staleness=max_staleness),
        loop=learn_async if asynchronous else learn,
        objective=Objective(
            make(LOSSES, loss), compare, normaliser, rollouts.cap(problems),
            Correction(correction, correction_how, correction_cap), rewards.kl_weight, kl_estimator,
        ),
        strategy=_drawn(rollouts.n, branch_every) if strategy is None else make_strategy(strategy),
        passes=(epochs, minibatches),
        sampler={"mode": rollouts.sampler, "retire": retire},
        process=process_reward,
        leave_out=None if leave_out is None else (leave_out, leave_out_above),
        build=build,
        **rewards.parts(problems, partial_credit=partial_credit),
    )  # fmt: skip


def _drawn(n: int, branch_every: int | None) -> Strategy:
    """A group of n plain draws, or of n that share beginnings."""
    return partial(group_draws, n=n) if branch_every is None else partial(branching_draws, n=n, every=branch_every)


def make_strategy(spec: str) -> Strategy:
    """Bind a strategy that needs no scorer, and let it refuse its values."""
    name, options = parse_spec(spec)
    function = STRATEGIES.load(name)
    choice = StrategyChoice(name, spec, function, bind(function, options, supply={}))
    refuse_early([choice], has_scorer=False, sampling=Sampling(), thinking=Thinking())
    return choice.bind()
