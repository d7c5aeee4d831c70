"""The engine as one request sees it: fair shares, tokens handed on while they are sampled, cache hits noted.

Strategies and thinking control run unchanged on top of it, so a streamed answer is the same answer. Draws go to the
engine one by one: equal prompts that arrive together share their computation there.
"""

from __future__ import annotations

from serve.running.deltas import Deltas
from serve.running.fair import FairGate, Share
from ttc.concurrent import gather
from ttc.core import Completion, Engine, ExtraCompletion, Path, Prompt, Sampling, Top, UsageSink
from ttc.engines.shared.wrapped import Wrapped, draw_shown

__all__ = ["RequestEngine"]


class RequestEngine(Wrapped):
    """`engine` for one choice of one request."""

    def __init__(self, engine: Engine, gate: FairGate, share: Share, deltas: Deltas | None) -> None:
        """`deltas` shows the one draw of a choice; None where many draws run at once."""
        super().__init__(engine)
        self._gate, self._share, self._deltas = gate, share, deltas
        self.cached: dict[Path, int] = {}
        self.tops: dict[int, Top] = {}
        """The likeliest tokens at each position of the sequence, prompt included; for choices of one draw."""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Run each draw in a slot of this request's share."""
        return await gather(self._draw(prompt, sampling, draw, on_usage) for draw in draws)

    async def _draw(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        async with self._gate.slot(self._share):
            completion = await self._run(prompt, sampling, draw, on_usage)
        if not prompt.generated_text:
            self.cached[completion.path] = completion.usage.cached
        if isinstance(completion, ExtraCompletion):
            self.tops.update(enumerate(completion.top_logprobs, len(prompt.token_ids or ())))
        return completion

    async def _run(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        if self._deltas is not None:
            return await draw_shown(self._engine, prompt, sampling, draw, on_usage, self._deltas)
        (completion,) = await self._engine.generate(prompt, sampling, range(draw, draw + 1), on_usage)
        return completion
