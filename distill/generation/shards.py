"""Generation on several engines: Ray actors that answer units, where `generate` has one engine in this process.

    fill(ledger, teacher, units, concurrency=64, opener=ray_opener(4))

An actor holds an engine and no state; only the driver writes the ledger. So an actor that dies loses no stored answer:
another one takes its place, and its units go back to the front of the queue. A unit on which `MAX_DEATHS` actors died,
the last one while it had nothing else to do, is a failure on the ledger; the others continue. Every draw is keyed by
its unit's seed: on an engine that is itself deterministic the ledger and its digest do not depend on the number of
actors, on who answered what, or on who died.

Back-pressure: an actor has at most its share of the concurrency, the other units wait in the driver, and answers are
written before more units are taken. With RAY_ADDRESS set the actors run on that cluster, whose nodes need this package
and the model folders at the same paths; else on this machine. Cost: weights, caches and start-up once per actor
(seconds), and a few milliseconds per unit. Left out: engines that span nodes by themselves (give the vllm engine its
own `tensor_parallel_size`), and adding actors while a job runs.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from distill.generation.generate import Done, Generator, Opener, made, open_local
from distill.generation.ledger import Failure, Outcome, WorkUnit
from distill.spec.teacher import Teacher
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES
from ttc.errors import ConfigError, EngineError, MissingExtra

MAX_DEATHS = 3
"""This many actors may die on one unit before it counts as failed."""

_Found = tuple[WorkUnit, Outcome]


def opener_for(shards: int) -> Opener:
    """How a job opens its teachers: 0 in this process, n as n Ray actors. Raises ConfigError below 0."""
    if shards < 0:
        raise ConfigError(f"shards must be at least 0, got {shards}")
    return ray_opener(shards) if shards else open_local


def ray_opener(shards: int) -> Opener:
    """Open a teacher as `shards` actors, which share the concurrency; raises MissingExtra when Ray is not installed."""
    ray = _load_ray()

    def opener(teacher: Teacher, concurrency: int) -> Generator:
        return RayGenerator(ray, teacher, shards, max(1, concurrency // shards))

    return opener


class ShardWorker:
    """What runs in an actor: one teacher, loaded at the first question, so that its errors reach the driver."""

    def __init__(self, sealed: Teacher, concurrency: int) -> None:
        self._sealed, self._concurrency = sealed, concurrency
        self._generator: Generator | None = None

    async def answer(self, unit: WorkUnit) -> Outcome:
        """The outcome of one unit; many are asked at once."""
        if self._generator is None:
            self._generator = open_local(_unsealed(self._sealed), self._concurrency)
        async with aclosing(self._generator.answer([unit])) as outcomes:
            async for _, outcome in outcomes:
                return outcome
        raise EngineError(f"the teacher gave nothing for {unit.key}")

    async def pid(self) -> int:
        """The actor's process."""
        return os.getpid()


class _Seat:
    """A place for one actor, which is replaced when it dies. It answers `in_flight` units at once."""

    def __init__(self, actor: Any, in_flight: int) -> None:
        self.actor = actor
        self._all, self._free, self._next = in_flight, asyncio.Semaphore(in_flight), asyncio.Lock()

    @asynccontextmanager
    async def taken(self, *, alone: bool) -> AsyncGenerator[Any, None]:
        """Yield the actor for one unit; with `alone`, for no other unit beside it."""
        num_places = self._all if alone else 1
        async with self._next:  # a unit that waits for all places is not overtaken by units that want one
            for _ in range(num_places):
                await self._free.acquire()
        try:
            yield self.actor
        finally:
            for _ in range(num_places):
                self._free.release()


class RayGenerator:
    """Actors of one teacher; `lost` counts those that died."""

    def __init__(self, ray: Any, teacher: Teacher, shards: int, in_flight: int) -> None:
        """Start the actors; their engines load while the first units wait."""
        self._ray, self._in_flight = ray, in_flight
        self._sealed = _sealed(teacher)
        self._owned = _start(ray, shards * _num_cpus(teacher))
        self._seats = [_Seat(self._hire(), in_flight) for _ in range(shards)]
        self.lost = 0

    async def answer(self, units: Sequence[WorkUnit]) -> AsyncGenerator[_Found, None]:
        """See `Generator.answer`."""
        todo, deaths = deque(units), Counter[str]()
        # one place per worker: a worker with an answer waits until the driver has written the others
        outbox: Done = asyncio.Queue(len(self._seats) * self._in_flight)
        workers = [self._work(seat, todo, deaths, outbox) for _ in range(self._in_flight) for seat in self._seats]
        async with aclosing(made(workers, outbox, len(units))) as outcomes:
            async for pair in outcomes:
                yield pair

    async def pids(self) -> list[int]:
        """The processes of the actors."""
        return list(await asyncio.gather(*(seat.actor.pid.remote() for seat in self._seats)))

    async def close(self) -> None:
        """End the actors, and Ray where it was started here."""
        for seat in self._seats:
            self._ray.kill(seat.actor)
        if self._owned:
            self._ray.shutdown()

    async def _work(self, seat: _Seat, todo: deque[WorkUnit], deaths: Counter[str], outbox: Done) -> None:
        """Ask the actor of one seat for one unit after the other."""
        while todo:
            unit = todo.popleft()
            # the last attempt runs alone, so that another unit's crash does not count against it
            async with seat.taken(alone=deaths[unit.key] == MAX_DEATHS - 1) as actor:
                outcome = await self._ask(seat, actor, unit)
            if outcome is None:
                deaths[unit.key] += 1
                if deaths[unit.key] < MAX_DEATHS:
                    todo.appendleft(unit)
                    continue
                outcome = Failure(f"EngineError: {MAX_DEATHS} actors died on this unit")
            await outbox.put((unit, outcome))

    async def _ask(self, seat: _Seat, actor: Any, unit: WorkUnit) -> Outcome | None:
        """The outcome of a unit; None when the actor died over it, and a new one was hired."""
        try:
            outcome: Outcome = await actor.answer.remote(unit)
            return outcome
        except self._ray.exceptions.RayTaskError as exc:
            raise (exc.cause if isinstance(exc.cause, Exception) else exc) from None
        except self._ray.exceptions.RayActorError:
            self._replace(seat, actor)
            return None

    def _replace(self, seat: _Seat, actor: Any) -> None:
        """Hire a new actor once, however many units of the old one come back."""
        if seat.actor is actor:
            self.lost += 1
            seat.actor = self._hire()

    def _hire(self) -> Any:
        gpus = int(str(self._sealed.engine.params.get("device", "")).startswith("cuda"))
        options = {"num_cpus": _num_cpus(self._sealed), "num_gpus": gpus, "max_restarts": 0}
        remote = self._ray.remote(ShardWorker).options(**options, max_concurrency=self._in_flight)
        return remote.remote(self._sealed, self._in_flight)


def _num_cpus(teacher: Teacher) -> int:
    return int(str(teacher.engine.params.get("threads", 1)))


def _sealed(teacher: Teacher) -> Teacher:
    """The teacher without its functions, which do not travel when they come from a file; names and parameters do."""
    scorer = teacher.scorer and replace(teacher.scorer, factory=_gone)
    engine, strategy = replace(teacher.engine, factory=_gone), replace(teacher.strategy, function=_gone)
    return replace(teacher, engine=engine, strategy=strategy, scorer=scorer)


def _unsealed(teacher: Teacher) -> Teacher:
    """The teacher with the functions that its names mean here."""
    scorer = teacher.scorer and replace(teacher.scorer, factory=SCORERS.load(teacher.scorer.name))
    engine = replace(teacher.engine, factory=ENGINES.load(teacher.engine.name))
    strategy = replace(teacher.strategy, function=STRATEGIES.load(teacher.strategy.name))
    return replace(teacher, engine=engine, strategy=strategy, scorer=scorer)


def _gone(*args: object, **params: object) -> Any:
    raise EngineError("a sealed teacher cannot be opened")


def _load_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as exc:
        raise MissingExtra("ray", "ray") from exc
    return ray


def _start(ray: Any, num_cpus: int) -> bool:
    """Join the cluster of RAY_ADDRESS, or start one on this machine; False where Ray is already running here."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "configure_logging": False}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**quiet)
    else:
        ray.init("local", include_dashboard=False, num_cpus=num_cpus, **quiet)
    return True
