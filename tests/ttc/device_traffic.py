"""Random traffic through the device step on an emulated GPU: rows come, end, are aborted, grow; pools are replaced.

Every row is then checked against the family's own equations over its whole text, with the draw's own uniform numbers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tests.ttc.device_model import Model, PagePool
from tests.ttc.emulated_cuda import EmulatedCuda
from ttc.engines.embedded.device.ops import StepOps
from ttc.engines.embedded.device.rows import RowStart
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import PAGE
from ttc.engines.embedded.device.step import DeviceStep
from ttc.seeds import uniform


@dataclass
class Text:
    """A row from outside: `masks` one set of allowed tokens per token asked for."""

    prompt: list[int]
    start: RowStart
    pages: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    masks: list[set[int]] = field(default_factory=list)
    ended: str | None = None
    overrun: int = 0


class Traffic:
    """`events` random events with at most `most_rows` rows at a time, then all rows run to their end."""

    def __init__(
        self, model: Model, cuda: EmulatedCuda, ops: StepOps, *, seed: int, events: int = 25, most_rows: int = 6
    ) -> None:
        self.model, self.cuda, self.events, self.most_rows = model, cuda, events, most_rows
        self.random = random.Random(seed)
        self.pool = PagePool(model.dims, 4)
        self.ahead = self.random.choice([1, 2, 4])
        runtime = CudaRuntime(torch.device("cuda", cuda.home), cuda)
        self.step = DeviceStep(model.weights, self.pool, runtime, max_rows=1, ahead=self.ahead, ops=ops)
        self.live: dict[int, Text] = {}
        self.texts: dict[int, Text] = {}

    def run(self) -> None:
        """Raises AssertionError where a row is not what it must be."""
        for _ in range(self.events):
            self.random.choice([self.add, self.add, self.abort, self.look, self.look, self.look])()
        while not self.step.idle:
            self.look()
        with self.host():
            for text in self.texts.values():
                self.check(text)

    def host(self) -> contextlib.AbstractContextManager[None]:
        """Arithmetic of the test, which is none of the device's."""

        @contextlib.contextmanager
        def apart():
            self.cuda.running, before = True, self.cuda.running
            yield
            self.cuda.running = before

        return apart()

    def add(self) -> None:
        if len(self.live) >= self.most_rows:
            return
        draw, vocab = self.random, self.model.dims.vocab
        prompt = [draw.randrange(vocab) for _ in range(draw.choice([1, 2, 15, 16, 17, 40]))]
        pages = [self.page() for _ in range(-(-len(prompt) // PAGE))]
        with self.host():
            _, states = self.model.run(prompt)
        for position in range(len(prompt) - 1):
            page, offset = pages[position // PAGE], position % PAGE
            self.pool.keys[:, page, :, offset] = states[:, 0, :, position].float()
            self.pool.values[:, page, :, offset] = states[:, 1, :, position].float()
        limit, key = len(prompt) - 1 + draw.randint(1, 20), draw.getrandbits(64)
        start = RowStart(
            token=prompt[-1],
            position=len(prompt) - 1,
            first=0,
            pages=tuple(pages),
            limit=limit,
            key=key,
            temperature=draw.choice([0.0, 0.7, 1.0]),
            top_p=draw.choice([1.0, 0.9]),
            top_k=draw.choice([0, 12]),
            stop_ids=draw.choice([(), (3, 7, 11), tuple(range(8))]),
            wants_logprobs=draw.random() < 0.5,
            masked=draw.random() < 0.15,
            min_p=(0.0, 0.0, 0.2)[key % 3],
            penalty=(1.0, 1.0, 1.5, 0.7)[(key >> 8) % 4],
            text=tuple(prompt),
        )
        ticket = self.step.start(start)
        self.live[ticket] = self.texts[ticket] = Text(prompt, start, pages)

    def abort(self) -> None:
        if self.live:
            ticket = self.random.choice(list(self.live))
            self.step.stop(ticket)
            self.forget(ticket)

    def look(self) -> None:
        for ticket, text in self.live.items():
            self.supply(ticket, text)
        look = self.step.look()
        for ticket, row in look.rows.items():
            text = self.texts[ticket]
            text.tokens += row.tokens
            text.logprobs += row.logprobs
            text.ended = row.ended
            if row.ended:
                self.forget(ticket)
        for ticket, count in look.overrun.items():
            assert self.texts[ticket].ended is None
            self.texts[ticket].overrun += count

    def supply(self, ticket: int, text: Text) -> None:
        """Pages for two blocks, or for now none; a mask for the next token where the row waits for one."""
        reach = len(text.prompt) + len(text.tokens) + 2 * self.ahead
        missing = -(-reach // PAGE) - len(text.pages)
        if missing > 0 and self.random.random() < 0.8:
            text.pages += [self.page() for _ in range(missing)]
            self.step.grow(ticket, text.pages)
        if text.start.masked and len(text.masks) == len(text.tokens):
            vocab = self.model.dims.vocab
            allowed = set(self.random.sample(range(vocab), self.random.randint(1, 9)))
            bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
            bits[list(allowed)] = 1
            self.step.constrain(ticket, np.packbits(bits, bitorder="little").view(np.int32))
            text.masks.append(allowed)

    def page(self) -> int:
        """A free page; a pool without one is replaced by a larger one."""
        if not self.pool.free:
            self.pool.grow(2 * self.pool.keys.shape[1])
        return self.pool.free.pop(self.random.randrange(len(self.pool.free)))

    def forget(self, ticket: int) -> None:
        """Its pages may go to another row at once."""
        self.pool.free += self.live.pop(ticket).pages

    def check(self, text: Text) -> None:
        ids, start = text.prompt + text.tokens, text.start
        logits, _ = self.model.run(ids)
        for number, (token, scores) in enumerate(zip(text.tokens, logits[len(text.prompt) - 1 :], strict=False)):
            plain, position = scores, len(text.prompt) + number
            scores = lowered(scores, start.penalty, ids[:position])
            if start.masked:
                outside = [t for t in range(len(scores)) if t not in text.masks[number]]
                scores = scores.index_fill(0, torch.tensor(outside), float("-inf"))
            assert token == expected_token(scores, start, position), (text, number)
            if start.wants_logprobs:
                assert abs(float(torch.log_softmax(plain, -1)[token]) - text.logprobs[number]) < 1e-3
        assert text.overrun <= 2 * self.ahead
        stops = [token in start.stop_ids for token in text.tokens]
        assert not any(stops[:-1])
        if text.ended == "stop":
            assert stops[-1]
        elif text.ended == "length":
            assert len(ids) - 1 == start.limit and not stops[-1]

    @staticmethod
    def first_logits(model: Model, ops: StepOps, ids: list[int]) -> torch.Tensor:
        """Logits (vocab) behind `ids`, of which the last goes through one eager step."""
        dtype = model.weights.embed.dtype
        pool, cuda = PagePool(model.dims, 2, dtype), EmulatedCuda()
        _, states = model.run(ids)
        for position in range(len(ids) - 1):
            pool.keys[:, 1, :, position] = states[:, 0, :, position].to(dtype)
            pool.values[:, 1, :, position] = states[:, 1, :, position].to(dtype)
        step = DeviceStep(model.weights, pool, CudaRuntime(torch.device("cuda:0"), cuda), max_rows=1, ops=ops)
        step.start(RowStart(ids[-1], len(ids) - 1, 0, (1,), len(ids), key=0))
        step._send()
        step.eager(1)
        return step._buffers.logits[0]


def lowered(scores: torch.Tensor, penalty: float, ids: Sequence[int]) -> torch.Tensor:
    """Logits (V) under a repetition penalty for the tokens `ids`."""
    values = scores[list(ids)]
    lower = torch.where(values > 0, values / penalty, values * penalty)
    return scores.index_copy(0, torch.tensor(ids, device=scores.device), lower)


def expected_token(scores: torch.Tensor, start: RowStart, position: int, shift: float = 0.0) -> int:
    """The draw's token by the definition: temperature, top-k, top-p, the inverse of the cumulative weights.

    `shift` is added to the uniform number.
    """
    if start.temperature == 0:
        return int(scores.argmax())
    probs = torch.softmax(scores / start.temperature, -1)
    values = probs.sort(descending=True).values[: start.top_k or None]
    inside = (values.cumsum(0) - values < start.top_p * values.sum()) & (values > 0)
    least = torch.maximum(values[inside][-1], start.min_p * values[0])
    weights = torch.where(probs >= least, probs, 0.0)
    edges = weights.cumsum(0)
    return min(int((edges <= (uniform(start.key, position) + shift) * edges[-1]).sum()), len(edges) - 1)
