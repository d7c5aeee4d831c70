"""The trainer's weights in the engine: pushed, checked to have arrived, and restored when the engine dies.

A sync can fail silently: an engine with a packed copy of a tied head keeps the old one and reports no error (measured
on vLLM: mean difference 0.04 nats, where the same weights give 1e-5). So after every sync the engine scores a few
sequences and the trainer does too; a mean absolute difference above the limit stops the run before anything is learnt
from wrong samples. In bf16, rounding alone moves a token's log-probability, more for more surprising tokens
(`benchmarks.bf16_rounding` measures it), so there the limit is multiplied by one plus the mean surprise in nats.

A rollout worker may be killed in the middle of a round, for its memory or with its machine. Its draws are keyed by
seed, problem, path and position, so a new engine draws the same tokens again, and nothing else of the run is lost.
Cost: one forward pass over a few sequences on both sides, and a copy of the weights after every push. Tokens of a
killed engine that it had not reported are not on the ledger. Left out: saving what a dead engine had finished within a
round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar, cast

import torch

from train.base.weights import merged_state
from train.update.logprobs import token_logprobs
from ttc.core import Completion, Engine, LogprobEngine, Prompt, Sampling, Usage, UsageSink, WeightSync
from ttc.engines.shared.wrapped import Wrapped
from ttc.errors import ConfigError, EngineError, TrainingError

LIMITS = {"float32": 1e-3, "bfloat16": 0.02}
"""Largest mean absolute difference in nats that counts as the same weights, by the engine's type; in bf16 for each nat
of mean surprise, and once more."""


class Syncer:
    """Keeps one engine's weights equal to the model's."""

    def __init__(self, engine: Engine, model: Any, *, limit: float, in_bf16: bool = False) -> None:
        """Raise ConfigError when the engine takes no weights or scores no given ids; `in_bf16`: it computes so."""
        for needed, what in ((WeightSync, "take new weights"), (LogprobEngine, "score given ids")):
            if not isinstance(engine, needed):
                raise ConfigError(f"engine {engine.capabilities.model} cannot {what}: use embedded, vllm or sglang")
        if not limit > 0:
            raise ConfigError(f"sync.limit must be above 0, got {limit}")
        self._engine, self._model, self._limit, self._in_bf16 = engine, model, limit, in_bf16

    async def push(self) -> None:
        """Replace the engine's weights by the model's."""
        await cast(WeightSync, self._engine).load_weights(merged_state(self._model))

    async def probe(self, sequences: Sequence[Sequence[int]]) -> float:
        """The mean absolute difference of both sides on `sequences` of at least two ids each, in nats.

        Raises:
            TrainingError: the mean difference exceeds the limit: the engine holds other weights.
        """
        pairs = [pair for ids in sequences for pair in await self._scored(tuple(ids))]
        gaps = [abs(engine - own) for engine, own in pairs]
        parity, surprise = fmean(gaps), -fmean(own for _, own in pairs)
        limit = self._limit * (1 + surprise) if self._in_bf16 else self._limit
        if not parity <= limit:
            raise TrainingError(
                f"weight sync failed its parity probe: engine and trainer differ by {parity:.4g} nats on average "
                f"(largest {max(gaps):.4g}, limit {limit:.4g}); the engine holds old or different weights"
            )
        return parity

    async def _scored(self, ids: tuple[int, ...]) -> list[tuple[float, float]]:
        """Log-probabilities of the ids but the first, the engine's and the trainer's."""
        engine = await cast(LogprobEngine, self._engine).logprobs(ids, 1, lambda usage: None)
        device = next(self._model.parameters()).device
        tensor = torch.tensor([ids], device=device)
        self._model.eval()
        with torch.no_grad():
            mask = torch.ones(1, len(ids) - 1, dtype=torch.bool, device=device)
            ours = token_logprobs(self._model, tensor, mask).logprobs[0].tolist()
        return list(zip(engine, ours, strict=True))


T = TypeVar("T")
_MAX_DEATHS = 5
"""An engine that dies so often in one run is ill: its error is raised."""


def revived(make: Callable[[], Engine], log: Callable[[str], None]) -> Engine:
    """Return an engine made by `make` that is made again when it dies; one that takes no weights is unchanged."""
    engine = make()
    if not (isinstance(engine, LogprobEngine) and isinstance(engine, WeightSync)):
        return engine
    return Revived(engine, make, log)


class Revived(Wrapped):
    """Implements Engine, LogprobEngine and WeightSync over an engine that may die."""

    _engine: Any

    def __init__(self, engine: Any, make: Callable[[], Any], log: Callable[[str], None]) -> None:
        super().__init__(engine)
        self._make, self._log = make, log
        self._deaths = 0
        self._before = Usage()
        self._weights: dict[str, Any] | None = None
        self._lock = asyncio.Lock()

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`; drawn again when the engine dies."""
        return await self._try(lambda engine: engine.generate(prompt, sampling, draws, on_usage))

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; asked again when the engine dies."""
        return await self._try(lambda engine: engine.logprobs(token_ids, start, on_usage))

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; a copy for the next engine is kept in the machine's memory, not on a device."""
        self._weights = {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}
        await self._try(lambda engine: engine.load_weights(state))

    def counters(self) -> Usage:
        """See `ttc.core.Engine`; engines that died included."""
        return self._before + super().counters()

    async def close(self) -> None:
        """See `ttc.core.Engine`."""
        await self._engine.close()

    async def _try(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        while True:
            engine, deaths = self._engine, self._deaths
            try:
                return await ask(engine)
            except EngineError as exc:
                if type(exc) is not EngineError:  # a request that no engine could honour
                    raise
                await self._revive(deaths, exc)

    async def _revive(self, deaths: int, cause: EngineError) -> None:
        """Make a new engine, unless one has been made since `deaths` were counted."""
        async with self._lock:
            if self._deaths > deaths:
                return
            if self._deaths == _MAX_DEATHS:
                raise cause
            self._deaths += 1
            self._log(f"the engine is started again: {cause}")
            self._before += self._engine.counters()
            await self._engine.close()
            self._engine = await asyncio.to_thread(self._make)
            if self._weights is not None:
                await self._engine.load_weights(self._weights)
