"""A teacher behind an engine that scores given ids: a server with vLLM's prompt log-probabilities, or one in process.

Servers give the sampled token's log-probability and the teacher's own k likeliest tokens, not the student's: so
`sampled`, and divergences over the teacher's k tokens and one bucket of all others
(`distill.supervision.divergence.coarse`). Cost: one prefill per completion, no generation but the one token that a
server insists on. Left out: the student's own top-k, which no server gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch

from distill.supervision.divergence import Divergence, coarse
from distill.supervision.reader import At, Opinion, Reading
from ttc.core import Engine, LogprobEngine, Message, Prompt, Usage, UsageSink
from ttc.errors import ConfigError

__all__ = ["EngineReader", "TopEngine"]


@runtime_checkable
class TopEngine(Protocol):
    """An engine that tells its k likeliest tokens at every place of given ids."""

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """Id to nats of the k likeliest tokens at the place of each of token_ids[start:]."""
        ...


class EngineReader:
    """See `distill.supervision.reader.Reader`."""

    def __init__(self, name: str, engine: Engine, *, top_k: int | None, in_flight: int = 32) -> None:
        """`top_k` None: it only scores. Raises ConfigError when the engine can do neither."""
        if not isinstance(engine, LogprobEngine) or not engine.capabilities.token_ids:
            raise ConfigError(
                f"teacher {name}: {engine.capabilities.model} cannot score given token ids; serve it with vLLM and "
                "give the engine its tokenizer folder, or use a model folder"
            )
        if top_k is not None and not isinstance(engine, TopEngine):
            raise ConfigError(
                f"teacher {name}: {engine.capabilities.model} does not tell its likeliest tokens; leave top_k out and "
                "use divergence = sampled, or use a model folder"
            )
        self.name = name
        self.usage = Usage()
        self._engine, self._scorer, self._top_k = engine, engine, top_k
        self._slots = asyncio.Semaphore(in_flight)

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `Reader.render`."""
        return self._engine.render(messages, thinking)

    async def score(self, readings: Sequence[Reading]) -> list[torch.Tensor]:
        """See `Reader.score`."""
        return list(await asyncio.gather(*(self._score(reading) for reading in readings)))

    async def compare(self, readings: Sequence[Reading], divergence: Divergence) -> Opinion:
        """See `Reader.compare`."""
        if self._top_k is None:
            raise ConfigError(f"teacher {self.name}: give top_k, or use divergence = sampled")
        told = await asyncio.gather(*(self._top(reading, self._top_k) for reading in readings))

        def opinion(numbers: Sequence[int]) -> At:
            ids = torch.cat([told[number][0] for number in numbers])
            known = torch.cat([told[number][1] for number in numbers])

            def at(student: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
                where = positions.cpu()
                theirs = ids[where].to(student.device), known[where].to(student.device)
                return divergence(*coarse(student, *theirs))

            return at

        return opinion

    async def close(self) -> None:
        """See `Reader.close`."""
        await self._engine.close()

    async def _score(self, reading: Reading) -> torch.Tensor:
        async with self._slots:
            found = await self._scorer.logprobs(reading.ids, len(reading.prompt_ids), self._add)
        return torch.tensor([value for value, keep in zip(found, reading.wanted, strict=True) if keep])

    async def _top(self, reading: Reading, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and nats (wanted, k) of the teacher's likeliest tokens."""
        engine = self._engine
        if not isinstance(engine, TopEngine):  # checked when it was made; this tells the type checker
            raise ConfigError(f"teacher {self.name} does not tell its likeliest tokens")
        async with self._slots:
            found = await engine.top_logprobs(reading.ids, len(reading.prompt_ids), k, self._add)
        kept = [entry for entry, keep in zip(found, reading.wanted, strict=True) if keep]
        rows = [sorted(entry.items(), key=lambda pair: (-pair[1], pair[0]))[:k] for entry in kept]
        ids = torch.tensor([[token for token, _ in row] for row in rows], dtype=torch.long).reshape(len(rows), k)
        return ids, torch.tensor([[value for _, value in row] for row in rows]).reshape(len(rows), k)

    def _add(self, usage: Usage) -> None:
        self.usage += usage
