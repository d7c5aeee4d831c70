"""Random requests through the batch of a GPU, on an emulated one: prompts that share starts, draws that end, aborts.

Each draw is then checked against the family's own equations over its whole text, with its own uniform numbers.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import torch

from tests.ttc import gpu_reference
from tests.ttc.device_model import Model
from tests.ttc.device_traffic import expected_token, lowered
from tests.ttc.emulated_cuda import EmulatedCuda
from ttc.core import Sampling
from ttc.engines.embedded.core.batch import BatchLimits
from ttc.engines.embedded.core.pool import PAGE
from ttc.engines.embedded.core.requests import GenerateRequest, LiveDraw
from ttc.engines.embedded.device.rows import RowStart
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.gpu.batch import DeviceBatch
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.decoder import DeviceDecoder
from ttc.engines.shared.tokens import StopRule

LOOP = asyncio.new_event_loop()


def emulated(model: Model, cuda: EmulatedCuda, num_pages: int = 150) -> DeviceBody:
    """The model on the emulated device."""
    runtime = CudaRuntime(torch.device("cuda", cuda.home), cuda)
    kernels, ops = gpu_reference.attention(cuda), gpu_reference.operations(cuda)
    return DeviceBody(model.weights, runtime, num_pages=num_pages, max_context=512, kernels=kernels, ops=ops)


class Residues:
    """A grammar of numbers: a token is 1 or 2 more than the one before, by remainders of 3."""

    def __init__(self, vocab: int = 50) -> None:
        self._vocab, self._newest = vocab, 0

    def allows(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each token may come next, (vocab)."""
        return (np.arange(self._vocab) - self._newest) % 3 > 0

    def words(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """See `ttc.engines.embedded.core.guide.Guide`."""
        bits = np.pad(self.allows(), (0, -self._vocab % 32))
        return np.packbits(bits, bitorder="little").view(np.int32)

    def take(self, token: int) -> None:
        """Go on behind `token`."""
        assert self.allows()[token]
        self._newest = token


def request(
    ids: list[int],
    keys: list[int],
    *,
    problem: str = "",
    stop: tuple[int, ...] = (),
    guide: Any = None,
    **settings: Any,
) -> GenerateRequest:
    """Draws of one prompt; the rule ends them at `stop` on the device, and where 1 follows 2 on the host."""
    rule = StopRule(("ba",), stop, (), [chr(97 + i % 26) for i in range(50)], _text)
    sampling = Sampling(**{"max_tokens": 20, "temperature": 1.0, "seed": 0, "logprobs": True, **settings})
    future: asyncio.Future[Any] = LOOP.create_future()
    draws = range(len(keys))
    return GenerateRequest(
        tuple(ids), problem, (), sampling, draws, tuple(keys), rule, LOOP, future, lambda _: None, make_guide=guide
    )


def _text(ids: Any) -> str:
    return "".join(chr(97 + i % 26) for i in ids)


class BatchTraffic:
    """`events` random events, then all that is open runs to its end."""

    def __init__(self, model: Model, body: DeviceBody, *, seed: int, events: int = 25) -> None:
        self.model, self.body, self.events = model, body, events
        self.random = random.Random(seed)
        num_pages, itemsize = body.device_pool.shelf.num_pages, body.dtype.itemsize
        limits = BatchLimits(self.random.choice([1, 3, 8]), (num_pages - 8) * PAGE * model.dims.kv_bytes(itemsize))
        self.batch = DeviceBatch(self.body, DeviceDecoder, limits, self.look)
        self.gap = 0.0
        """The largest distance of a log-probability."""
        self.texts: list[list[int]] = []
        self.live: list[GenerateRequest] = []
        self.draws: list[LiveDraw] = []

    def run(self) -> None:
        """All of it; `check` then says whether every draw is what it must be."""
        for _ in range(self.events):
            self.random.choice([self.add, self.abort, self.tick, self.tick, self.tick])()
        for _ in range(3000):
            if self.batch.idle:
                break
            self.batch.tick()
        assert self.batch.idle
        self.batch._decoder.reset()

    def add(self) -> None:
        chance = self.random
        ids = list(chance.choice(self.texts)) if self.texts and chance.random() < 0.7 else []
        ids = ids[: chance.randint(0, len(ids))] + [chance.randrange(50) for _ in range(chance.choice([1, 2, 16, 40]))]
        ids = ids[-200:]
        keys = [chance.getrandbits(64) for _ in range(chance.choice([1, 2, 5]))]
        problem = chance.choice(["", "p", "q"])
        new = request(
            ids,
            keys,
            problem=problem,
            stop=chance.choice([(), (3, 7, 11)]),
            temperature=chance.choice([0.0, 0.7, 1.0]),
            top_p=chance.choice([1.0, 0.9]),
            top_k=chance.choice([None, 12]),
            max_tokens=chance.choice([1, 3, 12, 50]),
            logprobs=chance.random() < 0.5,
            guide=chance.choice([None, None, None, Residues]),
            min_p=(0.0, 0.0, 0.2)[keys[0] % 3],
            repetition_penalty=(1.0, 1.0, 1.5, 0.7)[(keys[0] >> 8) % 4],
        )
        self.texts.append(ids)
        self.live.append(new)
        self.batch.add(new)

    def abort(self) -> None:
        if self.live and self.random.random() < 0.4:
            for draw in self.batch.remove(self.live.pop(self.random.randrange(len(self.live)))):
                draw.ended = True

    def tick(self) -> None:
        if not self.batch.idle:
            self.batch.tick()

    def look(self, draw: LiveDraw) -> None:
        """What the scheduler does with a token."""
        if draw not in self.draws:
            self.draws.append(draw)
        reason = draw.request.rule.reason(draw.ids) if draw.ids[-1] in draw.request.rule.watch else None
        if reason is not None or len(draw.ids) >= draw.request.sampling.max_tokens:
            draw.ended = True
            self.texts.append([*draw.request.ids, *draw.ids])

    def check(self, *, exact: bool = True) -> None:
        """Raises AssertionError where a draw is another; where not `exact`, only ends and log-probabilities count."""
        for draw in self.draws:
            self._check(draw, exact)

    def _check(self, draw: LiveDraw, exact: bool) -> None:
        settings, prompt = draw.request.sampling, draw.request.ids
        logits, _ = self.model.run([*prompt, *draw.ids])
        start = RowStart(
            0, 0, 0, (), 1, draw.key, settings.temperature, settings.top_p, settings.top_k or 0, settings.min_p
        )  # fmt: skip
        guide = draw.request.make_guide and Residues()
        for number, (token, scores) in enumerate(zip(draw.ids, logits[len(prompt) - 1 :], strict=False)):
            open_scores = lowered(scores, settings.repetition_penalty, [*prompt, *draw.ids[:number]])
            if guide:
                closed = ~torch.from_numpy(guide.allows()).to(scores.device)
                open_scores = open_scores.masked_fill(closed, float("-inf"))
                guide.take(token)
            # A number within rounding of an edge may fall on either side of it.
            near = {expected_token(open_scores, start, len(prompt) + number, shift) for shift in (0.0, 1e-5, -1e-5)}
            assert not exact or token in near, (draw.ids, number)
            if settings.logprobs:
                self.gap = max(self.gap, abs(float(torch.log_softmax(scores, -1)[token]) - draw.logprobs[number]))
        assert not exact or self.gap < 1e-3
        assert len(draw.ids) <= settings.max_tokens and draw.late < 4
        ends = [draw.request.rule.reason(draw.ids[: n + 1]) for n in range(len(draw.ids))]
        assert not any(end is not None for end in ends[:-1])
