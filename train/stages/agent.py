"""Reinforcement learning of an agent: episodes with tools in an environment, trained like any rollout.

The loop, the update rule, health rules and records are those of the stage `grpo`; what differs is that a rollout is an
episode (`ttc.agents`): the model's own tokens are trained, what tools returned is masked, and held-out problems are
answered with the tools too. Parts of the reward, calls and failed calls are logged by name. Asynchronous by default,
because tools and verifiers make some episodes wait. Left out: features of grpo without a field below.
"""

from __future__ import annotations

from dataclasses import replace

from train.registries import ENVIRONMENTS, make
from train.rl.policy_stage import PolicyStage, RewardFields, RolloutFields
from train.rollouts.environment import Environment
from train.stages.grpo import grpo
from train.update.batch import Normaliser
from train.update.update import Build
from ttc.agents.tool import Kit


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
    build: Build,
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
        build: see `Build`.
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
        build=build,
        epochs=epochs,
        minibatches=minibatches,
        asynchronous=asynchronous,
        max_staleness=max_staleness,
    )
    return replace(stage, kind="agent", strategy=world.strategy(episodes.n), answering=world.strategy(1))
