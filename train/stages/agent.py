"""Reinforcement learning of an agent: episodes with tools in an environment, trained like any rollout.

The loop, the update rule, health rules and records are those of the stage `grpo`; what differs is that a rollout is an
episode (`ttc.agents`): the model's own tokens are trained, what tools returned is masked, and held-out problems are
answered with the tools too. Parts of the reward, calls and failed calls are logged by name. Asynchronous by default,
because tools and verifiers make some episodes wait. Left out: what grpo can do beyond the fields below.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from train.environment import Environment
from train.normalise import Normaliser
from train.parts import Parts, Plan
from train.registries import ENVIRONMENTS
from train.rollout import Strategy
from train.specs import make
from train.stage import Stage
from train.stages.grpo import grpo
from ttc.agents.tool import Kit

__all__ = ["agent"]

_ENGINE = "embedded:dtype=float32,batch_invariant=true"

Loop = Callable[[Plan, Parts], Awaitable[dict[str, Any]]]


def agent(
    *,
    environment: str,
    steps: int,
    lr: float,
    prompts: int = 16,
    n: int = 8,
    max_tokens: int | None = None,
    loss: str = "ppo",
    advantage: str = "group",
    normaliser: Normaliser = "constant",
    thinking: Literal["auto", "on", "off"] = "auto",
    max_thinking: int | None = None,
    engine: str = _ENGINE,
    train_limit: int | None = None,
    held_out_limit: int = 128,
    asynchronous: bool = True,
    max_staleness: int = 2,
    buffer: int = 3,
    eval_every: int = 10,
    save_every: int = 50,
    until: float | None = None,
    record: bool = True,
    health: Mapping[str, Any] | None = None,
) -> Stage:
    """Train an agent in an environment.

    Args:
        environment: NAME or NAME:KEY=VALUE,... of train/environments.
        steps: updates.
        lr: learning rate.
        prompts: groups per update.
        n: episodes per group; at least 2.
        max_tokens: most tokens the model samples in an episode, all turns together; None is the task's.
        loss: NAME or NAME:KEY=VALUE,... of train/losses.
        advantage: of train/advantages.
        normaliser: token, sequence, constant or rollout.
        thinking: on asks for it, off forbids it, auto leaves it to the model.
        max_thinking: most thinking tokens of an episode.
        engine: what samples; embedded:processes=1,... does so in a process of its own.
        train_limit: most training problems.
        held_out_limit: most held-out problems.
        asynchronous: draw, judge and learn at once.
        max_staleness: most updates that episodes of an asynchronous run may be behind.
        buffer: most steps on their way in an asynchronous run.
        eval_every: steps between held-out measurements.
        save_every: steps between checkpoints.
        until: stop once held-out accuracy reaches this.
        record: write every episode to rollouts.jsonl.
        health: changes of health rules by name.
    """
    world: Environment = make(ENVIRONMENTS, environment)
    Kit(world.tools)()  # an unknown tool is named here
    bound = grpo(
        task=world.task,
        held_out=world.held_out,
        steps=steps,
        lr=lr,
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        loss=loss,
        advantage=advantage,
        normaliser=normaliser,
        shaping=world.shaping,
        thinking=thinking,
        max_thinking=max_thinking,
        engine=engine,
        train_limit=train_limit,
        held_out_limit=held_out_limit,
        asynchronous=asynchronous,
        max_staleness=max_staleness,
        buffer=buffer,
        eval_every=eval_every,
        save_every=save_every,
        until=until,
        record=record,
        health=health,
    )
    loop: Loop = partial(_with_tools, loop=bound.loop, strategy=world.strategy(1))
    return replace(bound, kind="agent", strategy=world.strategy(n), loop=loop)


async def _with_tools(plan: Plan, parts: Parts, *, loop: Loop, strategy: Strategy) -> dict[str, Any]:
    """Run `loop` with held-out problems answered by `strategy`."""
    return await loop(plan, replace(parts, held_out=replace(parts.held_out, strategy=strategy)))
