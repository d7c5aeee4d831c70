"""The loop of reasoning RL with its parts overlapped: rollouts, verdicts and updates at once.

    actor     draws rollouts of the next steps while earlier ones are judged and learnt from
    verifier  judges a step's rollouts as soon as they are there
    learner   updates on judged steps in order, pushes the weights, checks health

Staleness is counted in rounds: how many batches were learnt from between the draw of a rollout and its own update,
whatever their epochs and mini-batches. It is limited by admission, as in AReaL (Fu et al. 2025, arXiv:2505.24298): at
most `plan.max_staleness + 1` rounds are in flight, from their first draw until the weights they led to are pushed, so
no rollout is ever too old or discarded; with a limit of 0 the run equals the synchronous one, bit for bit if that is
reproducible. The correction of `train.update.terms` weighs every token by the trainer's probability over the sampler's.
Weights are pushed between two rounds of rollouts, never during one, so each rollout has a single version. Overlap pays
when verdicts or updates take as long as rollouts. Rollouts in processes of their own need an engine there: on a CPU
`embedded:processes=1`, on several machines `ray_workers`; weights go to them by message. Left out: exact resume of an
overlapped run (the order of rounds and pushes depends on time; a checkpoint resumes with an empty buffer).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from train.base.rollout import Rollout, check_groups
from train.rl.loop import (
    NO_ITEMS,
    LoopPlan,
    LoopState,
    Parts,
    ending,
    finish,
    leaving,
    measured_first,
    referenced,
    resume,
    step_costs,
    sync,
    update_on,
)
from ttc.errors import ConfigError, TrainingError


@dataclass(frozen=True, slots=True)
class _Round:
    """One step's rollouts in flight, drawn after `learnt` rounds; judged when `judged` is done."""

    judged: asyncio.Task[list[Rollout]]
    learnt: int
    rollout_s: float


async def learn_async(plan: LoopPlan, parts: Parts) -> dict[str, Any]:
    """Run like `learn`, overlapped; adds `staleness`, in rounds, to the metrics.

    Raises:
        ConfigError: refills with an asynchronous run, or a staleness below 0.
        TrainingError: the parity probe failed, or no problem is left.
        Interrupted: as for `learn`.
    """
    if plan.refills:
        raise ConfigError("refills: the asynchronous loop does not refill groups; set refills = 0")
    if plan.max_staleness < 0:
        raise ConfigError(f"max_staleness must be at least 0, got {plan.max_staleness}")
    state = resume(parts)
    await parts.syncer.push()
    await parts.rewarder.check()
    if state.step == 0:
        state.last = await measured_first(state, parts, plan)
    run = _Run(plan, parts, state)
    actor = asyncio.create_task(run.act())
    try:
        await run.learn(actor)
    finally:
        actor.cancel()
        await asyncio.gather(actor, return_exceptions=True)
        run.drop_rest()
    return ending(plan, parts, state)


async def _judged(round_: _Round) -> list[Rollout]:
    return await round_.judged


class _Run:
    """The shared state of actor and learner."""

    def __init__(self, plan: LoopPlan, parts: Parts, state: LoopState) -> None:
        self._plan, self._parts, self._state = plan, parts, state
        self._slots = asyncio.Semaphore(plan.max_staleness + 1)
        self._rounds: asyncio.Queue[_Round] = asyncio.Queue()
        self._engine = asyncio.Lock()  # held by a round of rollouts or a push, in order of request

    async def act(self) -> None:
        """Draw round after round, as long as slots are free."""
        number = self._state.step
        while True:
            await self._slots.acquire()
            items = self._parts.sampler.draw(self._plan.prompts, number)
            if not items:
                raise TrainingError(NO_ITEMS)
            async with self._engine:
                learnt, began = self._state.step, time.perf_counter()
                version = self._parts.updater.optimiser.taken
                rollouts = await self._parts.collector.collect(items, number, 0, version)
                seconds = time.perf_counter() - began
            check_groups(rollouts, self._parts.collector.engine.decode)
            verdicts = asyncio.create_task(self._parts.rewarder.judge(rollouts, number))
            self._rounds.put_nowait(_Round(verdicts, learnt, seconds))
            number += 1

    async def learn(self, actor: asyncio.Task[None]) -> None:
        """Update on judged rounds in order until the run ends."""
        began = time.perf_counter()
        while self._state.going(self._plan):
            round_ = await self._parts.stop.cut(self._next(actor))
            rollouts = None if round_ is None else await self._parts.stop.cut(_judged(round_))
            if round_ is None or rollouts is None:
                raise leaving(self._state, self._parts)
            self._parts.sampler.update(rollouts)
            await self._step(rollouts, round_, began)
            began = time.perf_counter()

    async def _step(self, rollouts: Sequence[Rollout], round_: _Round, began: float) -> None:
        plan, parts = self._plan, self._parts
        staleness = self._state.step - round_.learnt
        start = time.perf_counter()
        rollouts, apart = await asyncio.to_thread(referenced, rollouts, parts.updater, parts.pad_id)
        metrics = await asyncio.to_thread(update_on, rollouts, plan, parts.updater, parts.pad_id)
        updated = time.perf_counter()
        async with self._engine:
            parity = await sync(parts, rollouts)
        self._slots.release()
        ended = time.perf_counter()
        self._state.seconds += ended - began
        extra = {**apart, "parity": parity, "staleness": float(staleness)}
        if staleness:
            metrics.pop("mismatch", None)  # the sampler was another policy, so a difference is expected
        learnt = metrics.get("tokens_learnt", 0.0)
        costs = step_costs(rollouts, learnt, round_.rollout_s, updated - start, ended - updated)
        await finish(plan, parts, self._state, rollouts, {**metrics, **extra, **costs})

    async def _next(self, actor: asyncio.Task[None]) -> _Round:
        """The next round; raises the actor's error."""
        getter = asyncio.create_task(self._rounds.get())
        await asyncio.wait({getter, actor}, return_when=asyncio.FIRST_COMPLETED)
        if not getter.done():
            getter.cancel()
            actor.result()
        return await getter

    def drop_rest(self) -> None:
        """Drop rounds that will not be learnt from."""
        while not self._rounds.empty():
            self._rounds.get_nowait().judged.cancel()
