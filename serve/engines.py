"""The engine as one request sees it: fair shares, tokens handed on while they are sampled, cache hits noted.

Strategies and thinking control run unchanged on top of it, so a streamed answer is the same answer. Draws go to the
engine one by one: equal prompts that arrive together share their computation there.
"""

from __future__ import annotations

from collections.abc import Sequence

from serve.deltas import Deltas
from serve.fair import FairGate, Share
from ttc.concurrent import gather
from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    Message,
    Path,
    Prompt,
    Sampling,
    StreamingEngine,
    Usage,
    UsageSink,
)
from ttc.extras import ExtraCompletion, Top

__all__ = ["RequestEngine"]


class RequestEngine:
    """`engine` for one choice of one request."""

    def __init__(self, engine: Engine, gate: FairGate, share: Share, deltas: Deltas | None) -> None:
        """`deltas` shows the one draw of a choice; None where many draws run at once."""
        self._engine, self._gate, self._share, self._deltas = engine, gate, share, deltas
        self._streaming = engine if deltas is not None and isinstance(engine, StreamingEngine) else None
        self.cached: dict[Path, int] = {}
        self.tops: dict[int, Top] = {}
        """The likeliest tokens at each position of the sequence, prompt included; for choices of one draw."""

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
        """Run each draw in a slot of this request's share."""
        return await gather(self._draw(prompt, sampling, draw, on_usage) for draw in draws)

    async def _draw(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        async with self._gate.slot(self._share):
            completion = await self._run(prompt, sampling, draw, on_usage)
        if not prompt.generated_text:
            self.cached[completion.path] = completion.usage.cached
        return completion

    async def _run(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        if self._deltas is not None:
            self._deltas.sync(prompt)
        if self._streaming is not None and self._deltas is not None:
            completion = await self._streaming.stream(prompt, sampling, draw, on_usage, self._deltas.add)
        else:
            (completion,) = await self._engine.generate(prompt, sampling, range(draw, draw + 1), on_usage)
            if self._deltas is not None:
                self._deltas.add(completion.token_ids)
        if isinstance(completion, ExtraCompletion):
            self.tops.update(enumerate(completion.top_logprobs, len(prompt.token_ids or ())))
        return completion

    def counters(self) -> Usage:
        """Those of the engine."""
        return self._engine.counters()

    async def close(self) -> None:
        """Leave the engine open: its owner closes it."""
