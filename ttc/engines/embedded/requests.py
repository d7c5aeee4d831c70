"""What the scheduler is handed and what it keeps per draw; the way back into the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ttc.core import Completion, FinishReason, Path, Sampling, Usage, UsageSink
from ttc.engines.embedded.cache import Segment
from ttc.engines.embedded.decode import Group
from ttc.engines.shared.tokens import StopRule

__all__ = ["GenerateRequest", "Job", "LiveDraw", "PromptRow"]


@dataclass(slots=True, eq=False)
class GenerateRequest:
    """One `generate` call: as many draws as `keys`; `future` lives in `loop` and gets the completions in order."""

    ids: tuple[int, ...]
    path: Path
    sampling: Sampling
    draws: range
    keys: tuple[int, ...]
    rule: StopRule
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Completion]]
    on_usage: UsageSink
    on_tokens: Callable[[tuple[int, ...]], None] | None = None
    done: dict[int, Completion] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class LiveDraw:
    """One sequence being sampled. `feed` is the token of the next step, at absolute `position`."""

    request: GenerateRequest
    job: Job
    number: int
    key: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    certainty: list[float] = field(default_factory=list)
    computed: int = 0  # prompt tokens computed for this draw
    ended: bool = False

    @property
    def feed(self) -> int:
        """The newest token, not yet in the cache."""
        return self.ids[-1]

    @property
    def position(self) -> int:
        """Absolute position of `feed`."""
        return len(self.job.ids) + len(self.ids) - 1

    def usage(self, flops: Callable[[int, int], float], aborted: bool) -> Usage:
        """The report of this draw; `flops(new, before)` prices tokens."""
        length, count = len(self.job.ids), len(self.ids)
        price = flops(self.computed, length - self.computed) if self.computed else 0.0
        return Usage(
            prompt=length if count or self.computed else 0,
            cached=length - self.computed if count or self.computed else 0,
            generated=0 if aborted else count,
            overrun=count if aborted else 0,
            calls=1,
            attempts=1,
            flops=price + (flops(count - 1, length) if count > 1 else 0.0),
        )

    def completion(self, text: str, finish: FinishReason, reason: str | int | None, usage: Usage) -> Completion:
        """What the caller gets."""
        wants = self.request.sampling.logprobs
        return Completion(
            path=(*self.request.path, self.number),
            text=text,
            token_ids=tuple(self.ids),
            finish_reason=finish,
            stop_reason=reason,
            logprobs=tuple(self.logprobs) if wants else None,
            certainty=tuple(self.certainty) if wants else None,
            usage=usage,
        )


@dataclass(slots=True, eq=False)
class Job:
    """One distinct prompt and all draws that wait for it or run on it."""

    ids: tuple[int, ...]
    waiting: list[LiveDraw] = field(default_factory=list)
    live: int = 0
    room: int = 0  # tokens the prompt and its longest draw may come to
    segment: Segment | None = None  # keys and values of ids[:-1] once prefilled
    computed: int = 0  # prompt tokens computed for this job and not yet charged to a draw
    group: Group | None = None
    last: torch.Tensor | None = None  # keys and values of the last prompt token
    logits: torch.Tensor | None = None  # (vocab,) after the last prompt token

    def charge(self) -> int:
        """Prompt tokens computed so far, for the first draw that asks; 0 afterwards."""
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
    def position(self) -> int:
        """Its absolute position."""
        return len(self.job.ids) - 1
