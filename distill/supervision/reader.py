"""The seam between on-policy distillation and a teacher that reads what the student wrote.

    render(messages, thinking)      -> the prompt as the teacher's own template writes it
    score(readings)                 -> log-probability of every wanted token, nats
    compare(readings, divergence)   -> an Opinion: divergences at wanted tokens, given the student's log-probabilities

A reader sees ids only: the prompt in the teacher's own rendering, then exactly the ids that the student sampled
(promise 4). Positions are those of wanted tokens, reading by reading. Its cost is one prefill per reading; `usage` adds
it up as `scored` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from distill.supervision.divergence import Divergence
from ttc.core import Message, Prompt, Usage

__all__ = ["At", "Opinion", "Reader", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One completion as a teacher reads it; `wanted` is True at completion ids that count."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    wanted: tuple[bool, ...]

    @property
    def num_wanted(self) -> int:
        """How many positions it has."""
        return sum(self.wanted)

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids."""
        return self.prompt_ids + self.token_ids


At: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(student's log-probabilities (m, V), which positions of the chosen readings (m,)) -> divergences (m,)."""
Opinion: TypeAlias = Callable[[Sequence[int]], At]
"""Numbers of some readings -> what gives the divergences at their positions, counted through in this order."""


class Reader(Protocol):
    """A teacher that reads."""

    name: str
    usage: Usage

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """The prompt by the teacher's own template."""
        ...

    async def score(self, readings: Sequence[Reading]) -> list[torch.Tensor]:
        """Log-probabilities (number wanted,) of each reading's wanted tokens."""
        ...

    async def compare(self, readings: Sequence[Reading], divergence: Divergence) -> Opinion:
        """What the teacher would have said at each wanted token; raises ConfigError where it can only score."""
        ...

    async def close(self) -> None:
        """Free the teacher."""
        ...
