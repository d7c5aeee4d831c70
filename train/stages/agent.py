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

from train.base.fields import flattened
from train.base.rollout import Strategy
from train.registries import ENVIRONMENTS, make
from train.rl.loop import Parts, Plan
from train.rl.policy_stage import PolicyStage
from train.rl.rl_fields import RolloutFields
from train.rollouts.environment import Environment
from train.stages.grpo import grpo
from train.update.batch import Normaliser
from ttc.agents.tool import Kit

__all__ = ["agent"]

Loop = Callable[[Plan, Parts], Awaitable[dict[str, Any]]]


@flattened
def agent(
    *,
    environment: str,
    episodes: RolloutFields,
    loss: str = "ppo",
    advantage: str = "group",
    normaliser: Normaliser = "constant",
    asynchronous: bool = True,
    max_staleness: int = 2,
    buffer: int = 3,
) -> PolicyStage:
    """Train an agent in an environment.

    Args:
        environment: NAME or NAME:KEY=VALUE,... of train/environments.
        episodes: the fields of `train.rl.rl_fields.RolloutFields`.
        n: episodes per group; at least 2.
        max_tokens: most tokens the model samples in an episode, all turns together; None is the task's.
        max_thinking: most thinking tokens of an episode.
        engine: what samples; embedded:processes=1,... does so in a process of its own.
        record: write every episode to rollouts.jsonl.
        loss: NAME or NAME:KEY=VALUE,... of train/losses.
        advantage: of train/advantages.
        normaliser: token, sequence, constant or rollout.
        asynchronous: draw, judge and learn at once.
        max_staleness: most updates that episodes of an asynchronous run may be behind.
        buffer: most steps on their way in an asynchronous run.
    """
    world: Environment = make(ENVIRONMENTS, environment)
    Kit(world.tools)()  # an unknown tool is named here
    bound = grpo(
        task=world.task,
        held_out=world.held_out,
        loss=loss,
        advantage=advantage,
        normaliser=normaliser,
        shaping=world.shaping,
        asynchronous=asynchronous,
        max_staleness=max_staleness,
        buffer=buffer,
        **episodes.given(),
    )
    loop: Loop = partial(_with_tools, loop=bound.loop, strategy=world.strategy(1))
    return replace(bound, kind="agent", strategy=world.strategy(episodes.n), loop=loop)


async def _with_tools(plan: Plan, parts: Parts, *, loop: Loop, strategy: Strategy) -> dict[str, Any]:
    """Run `loop` with held-out problems answered by `strategy`."""
    return await loop(plan, replace(parts, held_out=replace(parts.held_out, strategy=strategy)))
