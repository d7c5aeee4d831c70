"""A teacher in this process: its whole vocabulary at every position, from one forward pass without a gradient.

The pass runs per micro-batch, when the student's own does, and goes through the head in the same chunks of tokens, so
the (tokens, V) logits of a step never exist at once. Vocabularies may differ in rows that no token uses: both are cut
to the tokenizer's size. Cost: a prefill of prompt and completion. Left out: a teacher spread over several devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from distill.supervision.divergence import Divergence
from distill.supervision.reader import At, Opinion, Reading
from train.base.models import load_model
from train.update.batch import pad
from train.update.logprobs import token_logprobs
from ttc.core import Message, Prompt, Usage
from ttc.engines.shared.text import Text

__all__ = ["LocalReader"]

_ROWS = 32
"""Readings of one forward pass where nobody else cuts them."""


class LocalReader:
    """See `distill.supervision.reader.Reader`."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        """Load the model of `folder`, fp32; raises ConfigError naming the folder when it cannot be read."""
        self.name = name
        self.usage = Usage()
        self._text = Text(folder)
        self._model = load_model(folder, device).eval().requires_grad_(False)
        self._device = device

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `Reader.render`."""
        return self._text.render(messages, thinking)

    async def score(self, readings: Sequence[Reading]) -> list[torch.Tensor]:
        """See `Reader.score`."""
        self._count(readings)
        found: list[torch.Tensor] = []
        for start in range(0, len(readings), _ROWS):
            some = readings[start : start + _ROWS]
            ids, wanted = self._laid(some)
            with torch.no_grad():
                picked = token_logprobs(self._model, ids, wanted).logprobs[wanted]
            found += torch.split(picked.cpu(), [reading.num_wanted for reading in some])
        return found

    async def compare(self, readings: Sequence[Reading], divergence: Divergence) -> Opinion:
        """See `Reader.compare`."""
        self._count(readings)
        head, size = self._model.get_output_embeddings(), self._text.size

        def opinion(numbers: Sequence[int]) -> At:
            ids, wanted = self._laid([readings[number] for number in numbers])
            with torch.no_grad():
                hidden = self._model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]

            def at(student: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    teacher = torch.log_softmax(head(hidden[positions]).float()[:, :size], -1)
                used = student if student.shape[1] == size else torch.log_softmax(student[:, :size], -1)
                return divergence(used, teacher)

            return at

        return opinion

    def same_as(self, model: Any) -> bool:
        """Whether `model` has exactly the teacher's weights: then every divergence must be 0."""
        own, other = (dict(found.named_parameters()) for found in (self._model, model))
        if {name: tensor.shape for name, tensor in own.items()} != {n: t.shape for n, t in other.items()}:
            return False
        return all(torch.equal(tensor, other[name]) for name, tensor in own.items())

    async def close(self) -> None:
        """See `Reader.close`."""
        self._model = None

    def _laid(self, readings: Sequence[Reading]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids (R, L), and the wanted target positions (R, L - 1)."""
        ids = pad([reading.ids for reading in readings], 0)
        wanted = torch.zeros(len(readings), ids.shape[1] - 1, dtype=torch.bool)
        for row, reading in enumerate(readings):
            first = len(reading.prompt_ids) - 1
            wanted[row, first : first + len(reading.token_ids)] = torch.tensor(reading.wanted)
        return ids.to(self._device), wanted.to(self._device)

    def _count(self, readings: Sequence[Reading]) -> None:
        self.usage += Usage(scored=sum(len(reading.ids) for reading in readings), calls=len(readings))
