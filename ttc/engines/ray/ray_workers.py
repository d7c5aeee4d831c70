"""Engines in Ray actors: the same engine on several processes or machines, each draw on the one with the least to do.

Moritz et al. 2018, "Ray". Every actor loads the engine `inner` with the same model; weights are put into Ray's object
store once and read by all. Where a draw runs cannot change it. With RAY_ADDRESS set the actors run on that cluster,
whose nodes need this package and the model folder at the same paths; else on this machine. Cost: a Ray runtime (some
seconds and hundreds of MB), weights and caches once per actor. Left out: streaming, and aborting in the actor when a
caller is cancelled (the draw ends there, and is charged).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ttc.concurrent import gather, settle
from ttc.config.registry import ENGINES
from ttc.config.signatures import bind
from ttc.config.values import at_least
from ttc.core import Capabilities, Completion, Engine, Prompt, Sampling, Usage, UsageSink
from ttc.engines.shared.folder import generator_folder, reads_generator
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import TokenEngine, check_start
from ttc.errors import EngineError, MissingExtra, TTCError
from ttc.identity.digests import reads

_STORE_BYTES = 256 << 20
_SAME = 0.03
"""Actors that differ by more nats on average hold different weights, in bf16 too."""


@reads(reads_generator)
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
    batch_invariant: bool = False,
) -> Engine:
    """Start actors and load a model into each.

    Args:
        model: a model folder or a hub id; None is the packaged teacher.
        inner: the engine in each actor: embedded, vllm or sglang.
        workers: actors.
        cpus: what each asks of Ray.
        gpus: what each asks of Ray.
        dtype: of the inner engine.
        device: of the inner engine, where it has a choice.
        threads: of the inner engine, where it has a choice.
        batch_invariant: of the inner engine, where it has a choice.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: the model or an option cannot be used.
        EngineError: an actor died while it started.
    """
    at_least("ray_workers", 1, workers=workers)
    folder = generator_folder(model)
    factory = ENGINES.load(inner)
    supply = {"model": str(folder), "device": device, "threads": threads, "batch_invariant": batch_invariant}
    bind(factory, {"dtype": dtype}, supply=supply)
    ray = _load_ray()
    own = not ray.is_initialized()
    if own:
        local = {"num_cpus": max(1, round(workers * cpus)), "object_store_memory": _STORE_BYTES}
        _quietly(ray, {} if "RAY_ADDRESS" in os.environ else local)
    actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=1024)(_Worker)
    actors = [actor.remote(inner, {"dtype": dtype}, supply) for _ in range(workers)]
    try:
        capabilities = ray.get([each.capabilities.remote() for each in actors])
    except ray.exceptions.RayError as exc:
        raise _translated(exc) from exc
    return RayEngine(ray, actors, Text(folder), capabilities[0], own)


class _Worker:
    """What runs in an actor: one engine."""

    def __init__(self, inner: str, given: Mapping[str, object], supply: Mapping[str, object]) -> None:
        self._engine = ENGINES.create(inner, given, supply=supply)

    async def capabilities(self) -> Capabilities:
        """Of the engine."""
        capabilities: Capabilities = self._engine.capabilities
        return capabilities

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range) -> tuple[list[Completion], list[Usage]]:
        """The completions, and what they cost."""
        reports: list[Usage] = []
        return await self._engine.generate(prompt, sampling, draws, reports.append), reports

    async def logprobs(self, ids: tuple[int, ...], start: int) -> tuple[tuple[float, ...], list[Usage]]:
        """The log-probabilities, and what they cost."""
        reports: list[Usage] = []
        return await self._engine.logprobs(ids, start, reports.append), reports

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """Replace the weights."""
        await self._engine.load_weights(state)


class RayEngine(TokenEngine):
    """Implements Engine, LogprobEngine and WeightSync over actors."""

    def __init__(self, ray: Any, actors: Sequence[Any], text: Text, capabilities: Capabilities, own: bool) -> None:
        super().__init__(text, capabilities)
        self._ray, self._actors, self._own = ray, list(actors), own
        self._load = [0] * len(actors)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        self._check(prompt, sampling)
        share = -(-len(draws) // len(self._actors)) or 1
        parts = [draws[start : start + share] for start in range(0, len(draws), share)]
        shares = await gather(self._ask(on_usage, len(part), "generate", prompt, sampling, part) for part in parts)
        return [completion for completions in shares for completion in completions]

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; every actor is asked, and EngineError says that they hold different weights."""
        check_start(len(token_ids), start)
        self._check_room(len(token_ids), 0)
        actors = range(len(self._actors))
        ids = tuple(token_ids)
        columns = await gather(self._ask(on_usage, 1, "logprobs", ids, start, actor=actor) for actor in actors)
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
        reference = self._ray.put({name: tensor.detach().cpu() for name, tensor in state.items()})
        await gather(self._wait(actor.load_weights.remote(reference)) for actor in self._actors)

    async def close(self) -> None:
        """See `ttc.core.Engine`; ends the actors, and the Ray runtime when it was started for them."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self._ray.kill(actor)
        if self._own and actors:
            await asyncio.to_thread(self._ray.shutdown)

    async def _ask(self, on_usage: UsageSink, weight: int, what: str, *args: object, actor: int | None = None) -> Any:
        """Call `actor`, or the one with the least to do; charge what it used, also when the caller is cancelled."""
        if not self._actors:
            raise EngineError("the engine is closed")
        number = min(range(len(self._actors)), key=self._load.__getitem__) if actor is None else actor
        self._load[number] += weight
        task = asyncio.ensure_future(self._wait(getattr(self._actors[number], what).remote(*args)))
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
        except self._ray.exceptions.RayError as exc:
            raise _translated(exc) from exc

    def _charge_all(self, used: Sequence[Usage], on_usage: UsageSink) -> None:
        for usage in used:
            self._charge(usage, on_usage)


def _translated(exc: Any) -> TTCError:
    """What the actor raised, or that it is gone."""
    cause = getattr(exc, "cause", None)
    if isinstance(cause, TTCError):
        return cause
    return EngineError(f"a Ray actor failed: {type(exc).__name__}: {str(exc).strip().splitlines()[0][:300]}")


def _load_ray() -> Any:
    try:
        import ray
    except ImportError as exc:
        raise MissingExtra("ray", "ray") from exc
    return ray


def _quietly(ray: Any, options: Mapping[str, object]) -> None:
    """Start the runtime without its dashboard and without reports of its use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options)
