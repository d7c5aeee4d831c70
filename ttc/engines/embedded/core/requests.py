"""The scheduler's data: requests, the state of each draw, and replies.

A reply runs in the event loop of its request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ttc.core import (
    Completion,
    ExtraCompletion,
    ExtraSampling,
    FinishReason,
    Path,
    Sampling,
    Top,
    Usage,
    UsageSink,
)
from ttc.engines.embedded.core.pool import Segment
from ttc.engines.embedded.core.sampler import Penalty
from ttc.engines.embedded.core.tenants import Tenant
from ttc.engines.shared.tokens import StopRule
from ttc.errors import EngineError, Unsupported

if TYPE_CHECKING:
    from ttc.engines.embedded.core.guide import Guide


@dataclass(slots=True, eq=False)
class GenerateRequest:
    """One `generate` call with a draw per key; `future` belongs to `loop` and gets the completions in order."""

    ids: tuple[int, ...]
    problem_id: str
    path: Path
    sampling: Sampling
    draws: range
    keys: tuple[int, ...]
    rule: StopRule
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Completion]]
    on_usage: UsageSink
    on_tokens: Callable[[tuple[int, ...]], None] | None = None
    make_guide: Callable[[], Guide] | None = None
    done: dict[int, Completion] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class LiveDraw:
    """One sequence being sampled, with its keys and values in `segment`; `feed` is the next step's input token."""

    request: GenerateRequest
    number: int
    key: int
    job: Job = field(init=False)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    certainty: list[float] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    computed: int = 0  # prompt tokens computed for this draw
    prompt: int = 0  # prompt tokens it was charged for: its prompt, and its own tokens again each time it was requeued
    ended: bool = False
    final: bool = False  # ended by the model itself, so it will not be continued
    late: int = 0  # tokens that a device had sampled by the time the end was noticed
    segment: Segment | None = None
    guide: Guide | None = None
    penalty: Penalty | None = None
    fault: Unsupported | None = None  # why its guide cannot continue

    @property
    def feed(self) -> int:
        """The newest token, whose keys and values are not cached yet."""
        return self.ids[-1]

    @property
    def position(self) -> int:
        """Absolute position of `feed`."""
        return len(self.request.ids) + len(self.ids) - 1

    @property
    def reserve(self) -> int:
        """Tokens that it may still add to its segment."""
        return self.request.sampling.max_tokens - len(self.ids)

    def take(self, token: int) -> None:
        """Append a token; an error of the guide is stored as this draw's `fault` and does not affect other draws."""
        self.ids.append(token)
        if self.guide is None:
            return
        try:
            self.guide.take(token)
        except Unsupported as exc:
            self.fault = exc

    def usage(self, flops: Callable[[int, int], float], aborted: bool) -> Usage:
        """The usage of this draw; `flops(new, before)` is the price of `new` tokens after `before` others."""
        length, count = len(self.request.ids), len(self.ids)
        prompt = self.prompt or (length if self.computed else 0)
        price = flops(self.computed, prompt - self.computed) if self.computed else 0.0
        return Usage(
            prompt=prompt,
            cached=prompt - self.computed,
            generated=0 if aborted else count,
            overrun=(count if aborted else 0) + self.late,
            calls=1,
            attempts=1,
            flops=price + (flops(count - 1, length) if count > 1 else 0.0),
        )

    def completion(self, text: str, finish: FinishReason, reason: str | int | None, usage: Usage) -> Completion:
        """The completion that the caller receives."""
        wants = self.request.sampling.logprobs
        columns: dict[str, Any] = {
            "path": (*self.request.path, self.number),
            "text": text,
            "token_ids": tuple(self.ids),
            "finish_reason": finish,
            "stop_reason": reason,
            "logprobs": tuple(self.logprobs) if wants else None,
            "certainty": tuple(self.certainty) if wants else None,
            "usage": usage,
        }
        if not num_top(self.request.sampling):
            return Completion(**columns)
        return ExtraCompletion(**columns, top_logprobs=tuple(self.tops))


def num_top(sampling: Sampling) -> int:
    """How many of the likeliest tokens to report beside each sampled one."""
    return sampling.top_logprobs if isinstance(sampling, ExtraSampling) and sampling.logprobs else 0


@dataclass(slots=True, eq=False)
class Job:
    """One distinct prompt of one problem, with all draws that wait for it or run on it."""

    ids: tuple[int, ...]
    tenant: Tenant
    waiting: list[LiveDraw] = field(default_factory=list)
    live: int = 0
    computed: int = 0
    segment: Segment | None = None  # the computed part of the prompt; complete once `logits` is set
    length: int = 0  # prompt tokens in `segment` when it was cached: the tree may append others to it
    logits: torch.Tensor | None = None  # (vocab,) after the last prompt token
    lead: Segment | None = None  # on a device: the last prompt token, which each draw's first step computes

    def charge(self) -> int:
        """Prompt tokens computed so far, charged to the first draw that starts; 0 afterwards."""
        computed, self.computed = self.computed, 0
        return computed


@dataclass(slots=True, eq=False)
class PromptRow:
    """The row that feeds the last prompt token of a job, once for all its draws."""

    job: Job

    @property
    def feed(self) -> int:
        """The last prompt token."""
        return self.job.ids[-1]

    @property
    def reserve(self) -> int:
        """Tokens that it may still add."""
        return 1


class Reply(Protocol):
    """A message to a request."""

    request: GenerateRequest

    def run(self) -> None:
        """Deliver it, in the request's loop."""
        ...


@dataclass(slots=True)
class StreamedTokens:
    """New token ids of a streamed draw."""

    request: GenerateRequest
    ids: tuple[int, ...]

    def run(self) -> None:
        """Call the caller's `on_tokens`."""
        if self.request.on_tokens is not None:
            self.request.on_tokens(self.ids)


@dataclass(slots=True)
class Reported:
    """A draw ended."""

    request: GenerateRequest
    usage: Usage

    def run(self) -> None:
        """Report its usage."""
        self.request.on_usage(self.usage)


@dataclass(slots=True)
class Finished:
    """All draws of a request ended, or it was aborted."""

    request: GenerateRequest

    def run(self) -> None:
        """Resolve the future."""
        if not self.request.future.done():
            self.request.future.set_result([self.request.done[d] for d in sorted(self.request.done)])


@dataclass(slots=True)
class Failed:
    """The engine failed or was closed."""

    request: GenerateRequest
    error: EngineError

    def run(self) -> None:
        """Fail the future."""
        if not self.request.future.done():
            self.request.future.set_exception(self.error)


def deliver(replies: list[Reply]) -> None:
    """Run replies in order; an error in a caller's callback fails only that caller's request."""
    for reply in replies:
        try:
            reply.run()
        except Exception as exc:
            if not reply.request.future.done():
                reply.request.future.set_exception(exc)


class Outbox:
    """The replies of one tick; each event loop is woken once for all of its replies."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[Reply]] = {}

    def send(self, reply: Reply) -> None:
        """Add a reply."""
        self._waiting.setdefault(reply.request.loop, []).append(reply)

    def flush(self) -> None:
        """Deliver all replies."""
        waiting, self._waiting = self._waiting, {}
        for loop, replies in waiting.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no receiver
                loop.call_soon_threadsafe(deliver, replies)
