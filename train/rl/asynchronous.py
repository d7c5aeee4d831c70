"""The loop of `train.rl.loop` with its three parts at work at once: actor, verifier, learner.

    actor     draws rollouts of the next steps while earlier ones are judged and learnt from
    verifier  judges a step's rollouts as soon as they are there
    learner   updates on judged steps in order, pushes the weights, checks health

At most `plan.buffer` steps are on their way, from their first draw until the weights they led to are pushed; so
rollouts are at most `buffer - 1` updates old, and with a buffer of 1 the run is the synchronous one (bit for bit where
that one repeats itself: `train.rl.loop`). A step whose rollouts are older than `plan.max_staleness` updates when its
turn comes is dropped and counted (`dropped`): the correction of `train.update.terms`, which weighs every token by
the trainer's probability over the sampler's, is truncated and cannot mend just any distance. Weights are pushed between
two rounds of rollouts, never during one, so each rollout has one version.

Gains when verdicts or updates take as long as rollouts. Rollouts in processes of their own need an engine there: on a
CPU `embedded:processes=1`, on several machines `ray_workers`; weights go to them by message. Left out: exact resume of
an overlapped run (the order of rounds and pushes depends on time; a checkpoint resumes with an empty buffer).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from train.base.rollout import Rollout, check_groups
from train.rl.loop import NO_ITEMS, LoopPlan, LoopState, Parts, Timing, evaluate, finish, resume, sync, update_on
from ttc.errors import ConfigError, TrainingError


@dataclass(frozen=True, slots=True)
class _Round:
    """One step's rollouts on their way: judged when `judged` is done."""

    judged: asyncio.Task[list[Rollout]]
    version: int
    rollout_s: float


async def learn_async(plan: LoopPlan, parts: Parts) -> dict[str, Any]:
    """Run like `learn`, overlapped; adds `staleness` and `dropped` to the metrics.

    Raises:
        ConfigError: refills with an asynchronous run, or limits out of range.
        TrainingError: the parity probe failed, or no problem is left.
    """
    if plan.refills:
        raise ConfigError("refills: the asynchronous loop does not refill groups; set refills = 0")
    if plan.buffer < 1 or plan.max_staleness < 0:
        raise ConfigError("the asynchronous loop needs buffer >= 1 and max_staleness >= 0")
    state = resume(parts)
    await parts.syncer.push()
    last: dict[str, Any] = await evaluate(state, parts) if state.step == 0 else {}
    run = _Run(plan, parts, state)
    actor = asyncio.create_task(run.act())
    try:
        last |= await run.learn(actor)
    finally:
        actor.cancel()
        await asyncio.gather(actor, return_exceptions=True)
        run.drop_rest()
    return {**last, "step": state.step, "seconds": state.seconds, "stopped": state.stopped}


class _Run:
    """The shared state of actor and learner."""

    def __init__(self, plan: LoopPlan, parts: Parts, state: LoopState) -> None:
        self._plan, self._parts, self._state = plan, parts, state
        self._slots = asyncio.Semaphore(plan.buffer)
        self._rounds: asyncio.Queue[_Round] = asyncio.Queue()
        self._engine = asyncio.Lock()  # held by a round of rollouts or by a push, in order of asking
        self._dropped = 0

    async def act(self) -> None:
        """Draw round after round, as long as slots are free."""
        number = self._state.step
        while True:
            await self._slots.acquire()
            items = self._parts.sampler.draw(self._plan.prompts, number)
            if not items:
                raise TrainingError(NO_ITEMS)
            async with self._engine:
                version, began = self._parts.updater.optimiser.taken, time.perf_counter()
                rollouts = await self._parts.collector.collect(items, number, 0, version)
                seconds = time.perf_counter() - began
            check_groups(rollouts, self._parts.collector.engine.decode)
            verdicts = asyncio.create_task(self._parts.rewarder.judge(rollouts, number))
            self._rounds.put_nowait(_Round(verdicts, version, seconds))
            number += 1

    async def learn(self, actor: asyncio.Task[None]) -> dict[str, Any]:
        """Update on judged rounds in order until the run ends."""
        last: dict[str, Any] = {}
        began = time.perf_counter()
        while self._state.going(self._plan):
            round_ = await self._next(actor)
            rollouts = await round_.judged
            self._parts.sampler.update(rollouts)
            staleness = self._parts.updater.optimiser.taken - round_.version
            if staleness > self._plan.max_staleness:
                self._dropped += 1
                self._slots.release()
                continue
            last |= await self._step(rollouts, round_, staleness, began)
            began = time.perf_counter()
        return last

    async def _step(
        self, rollouts: Sequence[Rollout], round_: _Round, staleness: int, began: float
    ) -> dict[str, float]:
        plan, parts = self._plan, self._parts
        start = time.perf_counter()
        metrics = await asyncio.to_thread(update_on, rollouts, plan, parts.updater, parts.pad_id)
        updated = time.perf_counter()
        async with self._engine:
            parity = await sync(parts, rollouts)
        self._slots.release()
        ended = time.perf_counter()
        self._state.seconds += ended - began
        extra = {"parity": parity.mean, "staleness": float(staleness), "dropped": float(self._dropped)}
        if staleness:
            metrics.pop("mismatch", None)  # the sampler was another policy, so a difference is no fault
        timing = Timing(round_.rollout_s, updated - start, ended - updated)
        return await finish(plan, parts, self._state, rollouts, {**metrics, **extra}, timing)

    async def _next(self, actor: asyncio.Task[None]) -> _Round:
        """The next round; raises what the actor died of."""
        getter = asyncio.create_task(self._rounds.get())
        await asyncio.wait({getter, actor}, return_when=asyncio.FIRST_COMPLETED)
        if not getter.done():
            getter.cancel()
            actor.result()
        return await getter

    def drop_rest(self) -> None:
        """Forget rounds that nobody will learn from."""
        while not self._rounds.empty():
            self._rounds.get_nowait().judged.cancel()
