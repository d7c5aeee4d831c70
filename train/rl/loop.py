"""The loop of reasoning RL, synchronous: sample, verify, update, push weights, check health.

    prompts <- frontier sampler
    rollouts <- engine (whole groups; groups without a signal are refilled)
    rewards <- verifier and shaping parts
    policy <- one update            (`train.update.update`)
    engine <- policy, parity probed (`train.rollouts.sync`)
    alarms <- health rules          (`train.base.health`)

Every step appends a line of metrics and, when recorded, its rollouts; alarms and held-out outcomes have files of their
own. A checkpoint holds all that the next step needs, so N steps, a kill and N more are the same bits as 2 N steps, on
one CPU, with the same build of torch and number of threads and an engine in batch-invariant mode. Everything that can
be swapped comes in as an argument (`train.rl.parts`). Left out: several learners; overlap of rollouts, verdicts and
updates is `train.rl.asynchronous`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from train.base.rollout import Rollout
from train.rl.parts import Parts, Plan
from train.rl.step import Timing, draw, evaluate, finish, resume, sync, update_on

__all__ = ["Learn", "learn"]

Learn: TypeAlias = Callable[[Sequence[Rollout]], Awaitable[Mapping[str, float]]]
"""Update the policy on the rollouts of a step; returns metrics, `updated` among them."""


async def learn(plan: Plan, parts: Parts, update: Learn | None = None) -> dict[str, Any]:
    """Run until `plan.steps`, `plan.until` or a rule's stop; returns the last metrics with `stopped` (a reason or "").

    `update` takes the place of reinforcement learning on the rewards: a teacher's supervision, say.

    Raises:
        TrainingError: the parity probe failed, or no problem is left.
    """
    state = resume(parts)
    await parts.syncer.push()
    last: dict[str, Any] = await evaluate(state, parts) if state.step == 0 else {}
    while state.going(plan):
        began = time.perf_counter()
        rollouts = await draw(plan, parts, state.step)
        sampled = time.perf_counter()
        told = await update(rollouts) if update else update_on(rollouts, plan, parts.updater, parts.pad_id)
        updated = time.perf_counter()
        parity = await sync(parts, rollouts)
        parts.sampler.update(rollouts)
        ended = time.perf_counter()
        state.seconds += ended - began
        timing = Timing(sampled - began, updated - sampled, ended - updated)
        last |= await finish(plan, parts, state, rollouts, {**told, "parity": parity.mean}, timing)
    return {**last, "step": state.step, "seconds": state.seconds, "stopped": state.stopped}
