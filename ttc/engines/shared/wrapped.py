"""Engines in front of an engine: a subclass of `Wrapped` spells out only what it changes.

Optional protocols (streaming, log-probabilities, new weights) are not passed on: they are found by `isinstance`, so a
wrapper that offers one says so itself. `draw_shown` is what every display of tokens does with one draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    Message,
    Path,
    Prompt,
    Sampling,
    SearchAware,
    StreamingEngine,
    Usage,
    UsageSink,
)


class Wrapped:
    """Does everything as `engine` does, but for `close`: that stays with the engine's owner.

    A subclass spells out only what it changes. Optional protocols (streaming, log-probabilities, new weights) are not
    passed on: they are found by `isinstance`, so a wrapper that offers one says so itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self._engine.capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Render as the engine does."""
        return self._engine.render(messages, thinking)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode as the engine does."""
        return self._engine.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode as the engine does."""
        return self._engine.decode(ids)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Draw as the engine does."""
        return await self._engine.generate(prompt, sampling, draws, on_usage)

    def counters(self) -> Usage:
        """Those of the engine."""
        return self._engine.counters()

    def prune(self, problem_id: str, path: Path) -> None:
        """Tell the engine, where it wants to know."""
        if isinstance(self._engine, SearchAware):
            self._engine.prune(problem_id, path)

    def release(self, problem_id: str) -> None:
        """Tell the engine, where it wants to know."""
        if isinstance(self._engine, SearchAware):
            self._engine.release(problem_id)

    async def close(self) -> None:
        """Leave the engine open: its owner closes it."""


class DrawDisplay(Protocol):
    """What shows one draw while it is sampled."""

    def sync(self, prompt: Prompt) -> None:
        """Take over what `prompt` holds after its rendered part: it is final, injected text included."""
        ...

    def add(self, ids: tuple[int, ...]) -> None:
        """Take new sampled ids."""
        ...


async def draw_shown(
    engine: Engine, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, display: DrawDisplay
) -> Completion:
    """Run one draw and show its tokens as they come; where the engine cannot stream, all at once when it is done.

    What every display of tokens does with one draw.
    """
    display.sync(prompt)
    if isinstance(engine, StreamingEngine):
        return await engine.stream(prompt, sampling, draw, on_usage, display.add)
    (completion,) = await engine.generate(prompt, sampling, range(draw, draw + 1), on_usage)
    display.add(completion.token_ids)
    return completion
