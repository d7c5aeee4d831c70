"""An engine that is started again when it dies, with the weights it had; what it was asked is asked again.

A rollout worker may be killed in the middle of a round: by the system for its memory, by a machine that goes away. Its
draws are keyed by seed, problem, path and position, so drawing them again gives the same tokens, and nothing else of
the run is lost. Cost: a copy of the weights after every push. Tokens of a killed engine that it had not reported are
not on the ledger. Left out: saving what a dead engine had finished within a round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    LogprobEngine,
    Message,
    Prompt,
    Sampling,
    Usage,
    UsageSink,
    WeightSync,
)
from ttc.errors import EngineError

__all__ = ["Revived", "revived"]

T = TypeVar("T")
_MAX_DEATHS = 5
"""An engine that dies so often in one run is ill: its error is raised."""


def revived(make: Callable[[], Engine], log: Callable[[str], None]) -> Engine:
    """Return an engine made by `make` that is made again when it dies; one that takes no weights is left as it is."""
    engine = make()
    if not (isinstance(engine, LogprobEngine) and isinstance(engine, WeightSync)):
        return engine
    return Revived(engine, make, log)


class Revived:
    """Implements Engine, LogprobEngine and WeightSync over one that may die."""

    def __init__(self, engine: Any, make: Callable[[], Any], log: Callable[[str], None]) -> None:
        self._engine, self._make, self._log = engine, make, log
        self._deaths = 0
        self._before = Usage()
        self._weights: dict[str, Any] | None = None
        self._lock = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        found: Capabilities = self._engine.capabilities
        return found

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`."""
        found: Prompt = self._engine.render(messages, thinking)
        return found

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`."""
        found: tuple[int, ...] = self._engine.encode(text)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`."""
        found: str = self._engine.decode(ids)
        return found

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`; drawn again when the engine dies."""
        return await self._try(lambda engine: engine.generate(prompt, sampling, draws, on_usage))

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; asked again when the engine dies."""
        return await self._try(lambda engine: engine.logprobs(token_ids, start, on_usage))

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; a copy is kept for the next engine."""
        self._weights = {name: tensor.clone() for name, tensor in state.items()}
        await self._try(lambda engine: engine.load_weights(state))

    def counters(self) -> Usage:
        """See `ttc.core.Engine`; engines that died included."""
        total: Usage = self._before + self._engine.counters()
        return total

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
