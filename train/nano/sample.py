"""Sample many continuations of many prompts: what the reward model is trained on and the report measures.

Runs on the toolkit's embedded engine, so a draw depends on (seed, number of the prompt) and not on its batch.
Cost: one core, 10,000 tokens/s and more for the teacher. Left out: metering, which nothing here needs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ttc.core import Prompt, Sampling, Usage
from ttc.engines.embedded import embedded


@dataclass(frozen=True, slots=True)
class Draw:
    """How to sample: `temperature` 0 is greedy; ends at the end of turn, an id of `stop`, or `max_tokens`."""

    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[int, ...] = ()


class Sampler:
    """A model folder, ready to continue token ids."""

    def __init__(self, folder: Path, device: str) -> None:
        """Load the folder in bf16 where the hardware multiplies it."""
        self._engine = embedded(str(folder), device=device)

    def __call__(self, prompts: Sequence[list[int]], draw: Draw) -> list[list[int]]:
        """Return one continuation per prompt, the stop id included when it was reached."""
        return asyncio.run(self._all(prompts, draw))

    async def _all(self, prompts: Sequence[list[int]], draw: Draw) -> list[list[int]]:
        sampling = Sampling(
            temperature=draw.temperature,
            max_tokens=draw.max_tokens,
            stop_token_ids=draw.stop,
            seed=draw.seed,
        )
        return list(
            await asyncio.gather(
                *(self._one(number, ids, sampling) for number, ids in enumerate(prompts))
            )
        )

    async def _one(self, number: int, ids: list[int], sampling: Sampling) -> list[int]:
        prompt = Prompt(text="", token_ids=tuple(ids), path=(number,))
        (completion,) = await self._engine.generate(prompt, sampling, range(1), _unmetered)
        return list(completion.token_ids)


def _unmetered(usage: Usage) -> None:
    """Drop what a draw cost: the report counts tokens itself."""
