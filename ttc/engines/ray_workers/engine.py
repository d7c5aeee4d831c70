"""Engines in Ray actors: one engine in several processes or machines, one driver that holds problems and records.

Moritz et al. 2018, "Ray". Every actor loads the engine `inner` with the same model and that engine's own options
(`engine.tensor_parallel_size=2`); weights are put into Ray's object store once and read by all. A problem has a home
actor, where its prefixes are cached; it moves when its home is full and another is not. Where a draw runs does not
affect it. A lost actor, with its process or machine, costs what was in flight there: those draws run again elsewhere,
and another actor is started in its place.

With RAY_ADDRESS set the actors run on that cluster, spread over its nodes, which need this package and the model folder
at the same paths; otherwise on this machine. Cost: a Ray runtime (some seconds and hundreds of MB), weights and caches
once per actor. Left out: streaming, aborting in the actor when a caller is cancelled (the draw runs to its end there,
and is charged), and the tokens that a lost actor had decoded, whose number is unknown.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ttc.concurrent import gather, settle
from ttc.config.registry import ENGINES
from ttc.config.signatures import bind, checked_by
from ttc.config.values import at_least
from ttc.core import Capabilities, Completion, Engine, Prompt, Sampling, Usage, UsageSink
from ttc.engines.shared.folder import generator_folder, reads_generator
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import TokenEngine, check_start
from ttc.errors import ConfigError, EngineError, MissingExtra, TTCError
from ttc.identity.digests import reads

_STORE_BYTES = 256 << 20
_SAME = 0.03
"""Actors whose log-probabilities differ by more than this on average (nats) hold different weights, in bf16 too."""

_MAX_LOSSES = 5
"""Lost actors after which a draw is assumed to be the cause."""
_MAX_HOMES = 1 << 16
"""Number of problems whose home is remembered."""


def check_inner(**arguments: Any) -> None:
    """Refuse options that the inner engine lacks, before anything is started; raises ConfigError."""
    further = arguments.pop("options", {})  # a table where the function is called, flat names where it is bound
    options = {**arguments, **further}
    at_least("ray_workers", 1, workers=options["workers"])
    try:
        bind(ENGINES.load(options["inner"]), _own(options), supply=_supply("", options))
    except ConfigError as exc:
        raise ConfigError(f"ray_workers, in each actor: {exc}") from exc
    size = _whole(options.get("tensor_parallel_size")) * _whole(options.get("pipeline_parallel_size"))
    if 0 < options["gpus"] < size:
        raise ConfigError(
            f"ray_workers: an actor of {size} GPUs asks Ray for gpus={options['gpus']:g}: set gpus={size}"
        )


@reads(reads_generator)
@checked_by(check_inner)
def ray_workers(
    model: str | None = None,
    *,
    inner: str = "embedded",
    workers: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    dtype: str = "auto",
    device: str = "auto",
    threads: int = 1,
    batch_invariant: bool | Literal["auto"] = False,
    **options: object,
) -> Engine:
    """Start actors and load a model into each.

    Args:
        model: a model folder or a hub id; None is the packaged teacher.
        inner: the engine in each actor: embedded, vllm, sglang or file.py:function.
        workers: number of actors.
        cpus: CPUs that each actor requests from Ray.
        gpus: GPUs that each actor requests from Ray.
        dtype: of the inner engine.
        device: of the inner engine, if it has this option.
        threads: of the inner engine, if it has this option.
        batch_invariant: of the inner engine, if it has this option.
        options: any other option of the inner engine: tensor_parallel_size, gpu_memory_utilization, max_context.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: the model or an option cannot be used.
        EngineError: an actor died while it started.
    """
    folder = generator_folder(model)
    settings = {"device": device, "threads": threads, "batch_invariant": batch_invariant, "dtype": dtype, **options}
    ray = _load_ray()
    own = not ray.is_initialized()
    if own:
        local = {"num_cpus": max(1, round(workers * cpus)), "object_store_memory": _STORE_BYTES}
        _quietly(ray, {} if "RAY_ADDRESS" in os.environ else local)
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=1024, scheduling_strategy="SPREAD")(_Worker)

    def start() -> Any:
        return remote.remote(inner, _own(settings), _supply(str(folder), settings))

    actors = [start() for _ in range(workers)]
    try:
        capabilities = ray.get([each.capabilities.remote() for each in actors])
    except ray.exceptions.RayError as exc:
        raise _translated(exc) from exc
    return RayEngine(ray, actors, Text(folder), capabilities, own, start)


_DRIVERS = ("model", "inner", "workers", "cpus", "gpus")
_SUPPLIED = ("device", "threads", "batch_invariant")


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the inner engine by their user-facing names; without dtype where none was given."""
    named = {name: value for name, value in given.items() if name not in (*_DRIVERS, *_SUPPLIED)}
    return {name: value for name, value in named.items() if (name, value) != ("dtype", "auto")}


def _supply(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that the inner engine gets if it has such parameters."""
    return {"model": model or None, **{name: given[name] for name in _SUPPLIED}}


def _whole(text: object) -> int:
    return int(str(text)) if str(text).isdecimal() else 1


class _Worker:
    """The object that runs in an actor: one engine."""

    def __init__(self, inner: str, given: Mapping[str, object], supply: Mapping[str, object]) -> None:
        self._engine = ENGINES.create(inner, given, supply=supply)

    async def capabilities(self) -> Capabilities:
        """The capabilities of the engine."""
        capabilities: Capabilities = self._engine.capabilities
        return capabilities

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range) -> tuple[list[Completion], list[Usage]]:
        """The completions, and their usage."""
        reports: list[Usage] = []
        return await self._engine.generate(prompt, sampling, draws, reports.append), reports

    async def logprobs(self, ids: tuple[int, ...], start: int) -> tuple[tuple[float, ...], list[Usage]]:
        """The log-probabilities, and their usage."""
        reports: list[Usage] = []
        return await self._engine.logprobs(ids, start, reports.append), reports

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """Replace the weights."""
        await self._engine.load_weights(state)


class _Lost(EngineError):
    """The process of an actor is gone; its calls can run elsewhere."""


class RayEngine(TokenEngine):
    """Implements Engine, LogprobEngine and WeightSync over actors."""

    def __init__(
        self,
        ray: Any,
        actors: Sequence[Any],
        text: Text,
        capabilities: Sequence[Capabilities],
        own: bool,
        start: Callable[[], Any],
    ) -> None:
        """`capabilities` are those of each actor; `start` makes a replacement for a lost one."""
        capacity = sum(each.max_concurrency for each in capabilities)
        super().__init__(text, replace(capabilities[0], max_concurrency=capacity))
        self._ray, self._actors, self._own, self._start = ray, list(actors), own, start
        self._room = capabilities[0].max_concurrency
        self._load = [0] * len(actors)
        self._home: OrderedDict[str, int] = OrderedDict()
        self._weights: Any = None
        self._replacing: dict[int, asyncio.Task[None]] = {}
        self.num_lost = 0

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        self._check(prompt, sampling)
        parts = [draws[start : start + self._room] for start in range(0, len(draws), self._room)]
        shares = await gather(
            self._ask(on_usage, len(part), prompt.problem_id, "generate", prompt, sampling, part) for part in parts
        )
        return [completion for completions in shares for completion in completions]

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; computed by every actor; EngineError if they hold different weights."""
        check_start(len(token_ids), start)
        self._check_room(len(token_ids), 0)
        await settle(self._replacing.values())
        actors, ids = range(len(self._actors)), tuple(token_ids)
        columns = await gather(self._ask(on_usage, 1, "", "logprobs", ids, start, at=actor) for actor in actors)
        first: tuple[float, ...] = columns[0]
        for other in columns[1:]:
            gap = sum(abs(a - b) for a, b in zip(first, other, strict=True)) / max(len(first), 1)
            if not gap <= _SAME:
                raise EngineError(f"Ray actors hold different weights: they differ by {gap:.4g} nats on average")
        return first

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; raises EngineError while requests run, before any actor has changed."""
        if any(self._load):
            raise EngineError(f"weights can be replaced only while the engine is idle: {sum(self._load)} draws run")
        self._weights = None  # the store frees the old ones before it gets the new ones
        self._weights = self._ray.put({name: tensor.detach().cpu() for name, tensor in state.items()})
        await gather(self._push(number, self._actors[number]) for number in range(len(self._actors)))

    async def _push(self, number: int, actor: Any) -> None:
        """Load the latest weights into an actor; one that is lost meanwhile is replaced by one that has them."""
        try:
            await self._wait(actor.load_weights.remote(self._weights))
        except _Lost:
            await self._replace(number, actor)

    async def close(self) -> None:
        """See `ttc.core.Engine`; ends the actors, and the Ray runtime if it was started for them."""
        actors, self._actors = self._actors, []
        for task in self._replacing.values():
            task.cancel()
        await settle(self._replacing.values())
        for actor in actors:
            self._ray.kill(actor)
        if self._own and actors:
            await asyncio.to_thread(self._ray.shutdown)

    def _place(self, key: str) -> int:
        """The home of a problem; or the least busy actor if it has none, or if its home is full and the other is not.

        Actors that are being replaced are used only if there is no other; requests then wait for them.
        """
        if not self._actors:
            raise EngineError("the engine is closed")
        living = [n for n in range(len(self._actors)) if n not in self._replacing] or [*self._replacing]
        idlest = min(living, key=self._load.__getitem__)
        home = self._home.get(key) if key else None
        if home in living and (self._load[home] < self._room or self._load[home] <= self._load[idlest]):
            return home
        self._home[key] = idlest
        if len(self._home) > _MAX_HOMES:
            self._home.popitem(last=False)
        return idlest

    async def _ask(
        self, on_usage: UsageSink, weight: int, key: str, what: str, *args: object, at: int | None = None
    ) -> Any:
        """Call actor `at`, or that of problem `key`, until one survives to answer; charge its usage.

        Raises:
            EngineError: the call was lost with so many actors that it is probably the cause.
        """
        for _ in range(_MAX_LOSSES):
            number = self._place(key) if at is None else at
            if number in self._replacing:
                await settle([self._replacing[number]])
            actor = self._actors[number]
            try:
                return await self._ask_actor(number, actor, on_usage, weight, what, *args)
            except _Lost as exc:
                last = exc
                if self._actors[number] is actor and number not in self._replacing:
                    self._replacing[number] = asyncio.ensure_future(self._replace(number, actor))
        raise EngineError(f"{last}; it was the {_MAX_LOSSES}th with this request")

    async def _replace(self, number: int, lost: Any) -> None:
        """Replace a lost actor by another one with the latest weights."""
        try:
            self._ray.kill(lost)
            self.num_lost += 1
            actor = self._actors[number] = self._start()
            await self._wait(actor.capabilities.remote())
            if self._weights is not None:
                await self._wait(actor.load_weights.remote(self._weights))
        except _Lost:  # the next request to it finds it lost, and counts it
            return
        finally:
            self._replacing.pop(number, None)

    async def _ask_actor(
        self, number: int, actor: Any, on_usage: UsageSink, weight: int, what: str, *args: object
    ) -> Any:
        """Call an actor; charge its usage, also when the caller is cancelled."""
        self._load[number] += weight
        task = asyncio.ensure_future(self._wait(getattr(actor, what).remote(*args)))
        try:
            result, reports = await asyncio.shield(task)
        except asyncio.CancelledError:
            await settle([task])
            if not task.exception():
                self._charge_all(task.result()[1], on_usage)
            raise
        finally:
            self._load[number] -= weight
        self._charge_all(reports, on_usage)
        return result

    async def _wait(self, reference: Any) -> Any:
        """The value of a reference, with Ray's errors translated."""
        try:
            return await reference
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as exc:
            raise _Lost(_said(exc)) from exc
        except self._ray.exceptions.RayError as exc:
            raise _translated(exc) from exc

    def _charge_all(self, used: Sequence[Usage], on_usage: UsageSink) -> None:
        for usage in used:
            self._charge(usage, on_usage)


def _translated(exc: Any) -> TTCError:
    """The actor's exception, or the error that it is gone."""
    cause = getattr(exc, "cause", None)
    if isinstance(cause, TTCError):
        return cause
    return EngineError(_said(exc))


def _said(exc: Any) -> str:
    return f"a Ray actor failed: {type(exc).__name__}: {str(exc).strip().splitlines()[0][:300]}"


def _load_ray() -> Any:
    try:
        import ray
    except ImportError as exc:
        raise MissingExtra("ray", "ray") from exc
    return ray


def _quietly(ray: Any, options: Mapping[str, object]) -> None:
    """Start the runtime without its dashboard and without usage reports."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options)
