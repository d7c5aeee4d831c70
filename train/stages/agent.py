"""Reinforcement learning of an agent: episodes with tools in an environment, trained like any rollout.

The loop, the update rule, health rules and records are those of the stage `grpo`; what differs is that a rollout is an
episode (`ttc.agents`): the model's own tokens are trained, what tools returned is masked, and held-out problems are
answered with the tools too. Parts of the reward, calls and failed calls are logged by name. Asynchronous by default,
because tools and verifiers make some episodes wait. Left out: what grpo can do beyond the fields below.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from train.registries import ENVIRONMENTS, make
from train.rl.loop import LoopPlan, Parts
from train.rl.policy_stage import PolicyStage, RewardFields, RolloutFields
from train.rollouts.environment import Environment
from train.stages.grpo import grpo
from train.update.batch import Normaliser
from train.update.update import Build
from ttc.agents.tool import Kit
from ttc.session.solve import Strategy

Loop = Callable[[LoopPlan, Parts], Awaitable[dict[str, Any]]]


def agent(
    *,
    environment: str,
    episodes: RolloutFields,
    loss: str = "ppo",
    advantage: str = "group",
    normaliser: Normaliser = "constant",
    epochs: int = 1,
    minibatches: int = 1,
    asynchronous: bool = True,
    max_staleness: int = 2,
) -> PolicyStage:
    """Train an agent in an environment.

    Args:
        environment: NAME or NAME:KEY=VALUE,... of train/environments.
        episodes: see `RolloutFields`.
        loss: NAME or NAME:KEY=VALUE,... of train/losses.
        advantage: of train/advantages.
        normaliser: token, sequence, constant or rollout.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass.
        asynchronous: draw, judge and learn at once.
        max_staleness: most rounds that episodes of an asynchronous run may be behind.
    """
    world: Environment = make(ENVIRONMENTS, environment)
    Kit(world.tools)()  # an unknown tool is named here
    stage = grpo(
        task=world.task,
        held_out=world.held_out,
        loss=loss,
        advantage=advantage,
        normaliser=normaliser,
        rollouts=episodes,
        rewards=RewardFields(shaping=world.shaping),
        build=Build(),
        epochs=epochs,
        minibatches=minibatches,
        asynchronous=asynchronous,
        max_staleness=max_staleness,
    )
    loop: Loop = partial(_with_tools, loop=stage.loop, strategy=world.strategy(1))
    return replace(stage, kind="agent", strategy=world.strategy(episodes.n), loop=loop)


async def _with_tools(plan: LoopPlan, parts: Parts, *, loop: Loop, strategy: Strategy) -> dict[str, Any]:
    """Run `loop` with held-out problems answered by `strategy`."""
    return await loop(plan, replace(parts, held_out=replace(parts.held_out, strategy=strategy)))
