"""An engine whose every step takes a set time, as a GPU's does, and whose words hang on the seed alone."""

from __future__ import annotations

import asyncio

from ttc import nano, seeds
from ttc.concurrent import gather
from ttc.core import Capabilities, Completion, Engine, Prompt, Sampling, Usage, UsageSink
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import TokenEngine


def stepping(model: str | None = None, *, delay: float = 0.0, slots: int = 4) -> Engine:
    """Make it.

    Args:
        model: a model folder, whose tokenizer is used.
        delay: seconds of a step, in which each running draw gets a token.
        slots: draws that run at once.
    """
    return Stepping(Text(nano.path("teacher")), delay, slots)


class Stepping(TokenEngine):
    """Thinks for some tokens, then answers one of three numbers."""

    def __init__(self, text: Text, delay: float, slots: int) -> None:
        capabilities = Capabilities(
            model="stepping",
            max_context=4096,
            logprobs=False,
            schedule_invariant=True,
            think_open=text.think_open,
            think_close=text.think_close,
            eos_ids=text.eos_ids,
            max_concurrency=slots,
        )
        super().__init__(text, capabilities)
        self._delay, self._slots = delay, asyncio.Semaphore(slots)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        length = len(self._check(prompt, sampling))
        return await gather(self._one(prompt, sampling, draw, length, on_usage) for draw in draws)

    async def close(self) -> None:
        """See `ttc.core.Engine`; nothing is held."""

    async def _one(self, prompt: Prompt, sampling: Sampling, draw: int, length: int, on_usage: UsageSink) -> Completion:
        key = seeds.derive(sampling.seed or 0, *prompt.path, draw)
        ids = self.encode(f"1+2=3{'1' * (key % 3)}</think>\\boxed{{{key % 3}}}") + self.capabilities.eos_ids[:1]
        async with self._slots:
            for _ in ids:
                await asyncio.sleep(self._delay)
        usage = Usage(prompt=length, generated=len(ids), calls=1, attempts=1)
        self._charge(usage, on_usage)
        return Completion(
            path=(*prompt.path, draw),
            text=self.decode(ids[:-1]),
            token_ids=ids,
            finish_reason="stop",
            stop_reason="eos",
            logprobs=None,
            usage=usage,
        )
