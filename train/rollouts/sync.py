"""Push the trainer's weights into the engine, and prove that they arrived.

A sync can fail silently: an engine with a packed copy of a tied head keeps the old one and reports no error (measured
on vLLM: mean difference 0.04 nats, where the same weights give 1e-5). So after every sync the engine scores a few fixed
sequences and the trainer does too; a mean absolute difference above the limit stops the run before anything is learnt
from wrong samples. Cost: one forward pass over a few sequences on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from train.base.lora import merged_state
from train.update.logprobs import token_logprobs
from ttc.core import Engine, LogprobEngine, Usage, WeightSync
from ttc.errors import ConfigError, TrainingError

__all__ = ["LIMITS", "Parity", "Syncer"]

LIMITS = {"float32": 1e-3, "bfloat16": 0.03}
"""Largest mean absolute difference in nats that counts as the same weights, by the engine's type."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Difference of log-probabilities between engine and trainer on the probes, in nats."""

    mean: float
    largest: float


class Syncer:
    """Keeps one engine's weights equal to the model's."""

    def __init__(self, engine: Engine, model: Any, *, limit: float) -> None:
        """Raise ConfigError when the engine takes no weights or scores no given ids."""
        for needed, what in ((WeightSync, "take new weights"), (LogprobEngine, "score given ids")):
            if not isinstance(engine, needed):
                raise ConfigError(f"engine {engine.capabilities.model} cannot {what}: use embedded, vllm or sglang")
        if not limit > 0:
            raise ConfigError(f"sync.limit must be above 0, got {limit}")
        self._engine, self._model, self._limit = engine, model, limit
        self.usage = Usage()

    async def push(self) -> None:
        """Replace the engine's weights by the model's."""
        await cast(WeightSync, self._engine).load_weights(merged_state(self._model))

    async def probe(self, sequences: Sequence[Sequence[int]]) -> Parity:
        """Compare both sides on `sequences` of at least two ids each.

        Raises:
            TrainingError: the mean difference exceeds the limit: the engine holds other weights.
        """
        gaps = [gap for ids in sequences for gap in await self._gaps(tuple(ids))]
        parity = Parity(sum(gaps) / len(gaps), max(gaps))
        if not parity.mean <= self._limit:
            raise TrainingError(
                f"weight sync failed its parity probe: engine and trainer differ by {parity.mean:.4g} nats on average "
                f"(largest {parity.largest:.4g}, limit {self._limit:g}); the engine holds stale or other weights"
            )
        return parity

    async def _gaps(self, ids: tuple[int, ...]) -> list[float]:
        engine = await cast(LogprobEngine, self._engine).logprobs(ids, 1, self._add)
        device = next(self._model.parameters()).device
        tensor = torch.tensor([ids], device=device)
        self._model.eval()
        with torch.no_grad():
            wanted = torch.ones(1, len(ids) - 1, dtype=torch.bool, device=device)
            ours = token_logprobs(self._model, tensor, wanted).logprobs[0].tolist()
        return [abs(a - b) for a, b in zip(engine, ours, strict=True)]

    def _add(self, usage: Usage) -> None:
        self.usage += usage
