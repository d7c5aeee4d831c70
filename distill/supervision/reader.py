"""A teacher that reads what the student wrote: a model folder in this process, or an engine that scores given ids.

    render(messages, thinking)      -> the prompt as the teacher's own template writes it
    score(readings)                 -> log-probability of every wanted token, nats
    compare(readings, divergence)   -> an Opinion: divergences at wanted tokens, given the student's log-probabilities

A reader sees ids only: the prompt in the teacher's own rendering, then exactly the ids that the student sampled
(promise 4). Positions are those of wanted tokens, reading by reading. Its cost is one prefill per reading; `usage` adds
it up as `scored` tokens.

`LocalReader` has the whole vocabulary at every position. Its pass runs per micro-batch, together with the student's
own, and goes through the head in the same chunks of tokens, so the (tokens, V) logits of a step never exist at once.
Vocabularies may differ in rows that no token uses: both are cut to the tokenizer's size. `EngineReader` has what
servers give: the sampled token's log-probability and the teacher's own k likeliest tokens, so `sampled`, and
divergences over these and one bucket of all others (`distill.supervision.divergence.coarse`). Left out: a teacher
spread over several devices; the student's own top-k, which no server gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from distill.supervision.divergence import Divergence, coarse
from train.base.models import load_model, logits_of
from train.update.batch import pad
from train.update.logprobs import token_logprobs
from ttc.core import Engine, LogprobEngine, Message, Prompt, TopLogprobEngine, Usage
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Passage:
    """One completion as a teacher reads it; `wanted` is True at the completion ids that count."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    wanted: tuple[bool, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids."""
        return self.prompt_ids + self.token_ids


At: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(student's log-probabilities (m, V), which positions of the chosen readings (m,)) -> divergences (m,)."""
Opinion: TypeAlias = Callable[[Sequence[int]], At]
"""Numbers of some readings -> a function for the divergences at their positions, numbered in this order."""


class TeacherReader(Protocol):
    """A teacher that reads."""

    name: str
    usage: Usage

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """The prompt by the teacher's own template."""
        ...

    async def score(self, readings: Sequence[Passage]) -> list[torch.Tensor]:
        """Log-probabilities (number wanted,) of each reading's wanted tokens."""
        ...

    async def compare(self, readings: Sequence[Passage], divergence: Divergence) -> Opinion:
        """What the teacher would have said at each wanted token; raises ConfigError where it can only score."""
        ...

    async def close(self) -> None:
        """Free the teacher."""
        ...


_ROWS = 32
"""Readings of one forward pass, where the caller does not split them."""


class LocalReader:
    """See `distill.supervision.reader.TeacherReader`."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        """Load the model of `folder`, fp32; raises ConfigError naming the folder when it cannot be read."""
        self.name = name
        self.usage = Usage()
        self._text = Text(folder)
        self._model = load_model(folder, device).eval().requires_grad_(False)
        self._device = device

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `TeacherReader.render`."""
        return self._text.render(messages, thinking)

    async def score(self, readings: Sequence[Passage]) -> list[torch.Tensor]:
        """See `TeacherReader.score`."""
        self._count(readings)
        scores: list[torch.Tensor] = []
        for start in range(0, len(readings), _ROWS):
            some = readings[start : start + _ROWS]
            ids, mask = self._padded(some)
            with torch.no_grad():
                logprobs = token_logprobs(self._model, ids, mask).logprobs[mask]  # (wanted tokens of all readings,)
            scores += torch.split(logprobs.cpu(), [sum(reading.wanted) for reading in some])
        return scores

    async def compare(self, readings: Sequence[Passage], divergence: Divergence) -> Opinion:
        """See `TeacherReader.compare`."""
        self._count(readings)
        logits, size = logits_of(self._model), self._text.size

        def opinion(numbers: Sequence[int]) -> At:
            ids, mask = self._padded([readings[number] for number in numbers])
            with torch.no_grad():
                hidden = self._model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[mask]

            def at(student: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    teacher = torch.log_softmax(logits(hidden[positions]).float()[:, :size], -1)  # (m, V)
                ours = student if student.shape[1] == size else torch.log_softmax(student[:, :size], -1)
                return divergence(ours, teacher)

            return at

        return opinion

    def same_as(self, model: Any) -> bool:
        """Whether `model` has exactly the teacher's weights: then every divergence must be 0."""
        own, other = (dict(weights.named_parameters()) for weights in (self._model, model))
        if {name: tensor.shape for name, tensor in own.items()} != {n: t.shape for n, t in other.items()}:
            return False
        return all(torch.equal(tensor, other[name]) for name, tensor in own.items())

    async def close(self) -> None:
        """See `TeacherReader.close`."""
        self._model = None

    def _padded(self, readings: Sequence[Passage]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids (R, L), and the wanted target positions (R, L - 1)."""
        ids = pad([reading.ids for reading in readings], 0)  # (R, L)
        mask = torch.zeros(len(readings), ids.shape[1] - 1, dtype=torch.bool)
        for row, reading in enumerate(readings):
            first = len(reading.prompt_ids) - 1
            mask[row, first : first + len(reading.token_ids)] = torch.tensor(reading.wanted)
        return ids.to(self._device), mask.to(self._device)

    def _count(self, readings: Sequence[Passage]) -> None:
        self.usage += Usage(scored=sum(len(reading.ids) for reading in readings), calls=len(readings))


class EngineReader:
    """See `distill.supervision.reader.TeacherReader`."""

    def __init__(self, name: str, engine: Engine, *, top_k: int | None, in_flight: int = 32) -> None:
        """`top_k` None: it only scores. Raises ConfigError when the engine can do neither."""
        if not isinstance(engine, LogprobEngine) or not engine.capabilities.token_ids:
            raise ConfigError(
                f"teacher {name}: {engine.capabilities.model} cannot score given token ids; serve it with vLLM and "
                "give the engine its tokenizer folder, or use a model folder"
            )
        if top_k is not None and not isinstance(engine, TopLogprobEngine):
            raise ConfigError(
                f"teacher {name}: {engine.capabilities.model} does not report its likeliest tokens; leave top_k out "
                "and use divergence = sampled, or use a model folder"
            )
        self.name = name
        self.usage = Usage()
        self._engine, self._top_k = engine, top_k
        self._slots = asyncio.Semaphore(in_flight)

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `TeacherReader.render`."""
        return self._engine.render(messages, thinking)

    async def score(self, readings: Sequence[Passage]) -> list[torch.Tensor]:
        """See `TeacherReader.score`."""
        return list(await asyncio.gather(*(self._score(reading) for reading in readings)))

    async def compare(self, readings: Sequence[Passage], divergence: Divergence) -> Opinion:
        """See `TeacherReader.compare`."""
        if self._top_k is None:
            raise ConfigError(f"teacher {self.name}: give top_k, or use divergence = sampled")
        top_tokens = await asyncio.gather(*(self._top(reading, self._top_k) for reading in readings))

        def opinion(numbers: Sequence[int]) -> At:
            ids = torch.cat([top_tokens[number][0] for number in numbers])
            logprobs = torch.cat([top_tokens[number][1] for number in numbers])

            def at(student: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
                where = positions.cpu()
                theirs = ids[where].to(student.device), logprobs[where].to(student.device)
                return divergence(*coarse(student, *theirs))

            return at

        return opinion

    async def close(self) -> None:
        """See `TeacherReader.close`."""
        await self._engine.close()

    async def _score(self, reading: Passage) -> torch.Tensor:
        async with self._slots:
            logprobs = await self._engine.logprobs(reading.ids, len(reading.prompt_ids), self._add)
        return torch.tensor([value for value, keep in zip(logprobs, reading.wanted, strict=True) if keep])

    async def _top(self, reading: Passage, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and nats (wanted, k) of the teacher's likeliest tokens."""
        engine = self._engine
        if not isinstance(engine, TopLogprobEngine):  # checked when it was made; this is for the type checker
            raise ConfigError(f"teacher {self.name} does not report its likeliest tokens")
        async with self._slots:
            top_tokens = await engine.top_logprobs(reading.ids, len(reading.prompt_ids), k, self._add)
        entries = [entry for entry, keep in zip(top_tokens, reading.wanted, strict=True) if keep]
        rows = [sorted(entry.items(), key=lambda pair: (-pair[1], pair[0]))[:k] for entry in entries]
        ids = torch.tensor([[token for token, _ in row] for row in rows], dtype=torch.long).reshape(len(rows), k)
        return ids, torch.tensor([[value for _, value in row] for row in rows]).reshape(len(rows), k)

    def _add(self, usage: Usage) -> None:
        self.usage += usage
