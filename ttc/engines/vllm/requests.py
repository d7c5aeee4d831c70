"""What a driver is handed and what comes back: one request per draw, one reply, in the caller's event loop.

A driver runs in a thread of its own, so everything that reaches a caller goes through the outbox of its loop, which
wakes the loop once for all that a step of vLLM brings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ttc.core import FinishReason, Top
from ttc.engines.vllm.counts import Counts
from ttc.errors import EngineError

__all__ = ["Driver", "Outbox", "Reply", "Request"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished or aborted request. `stop` is vLLM's stop reason; `num_cached` of the prompt were not computed."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: FinishReason
    stop: str | int | None
    num_cached: int
    prompt_logprobs: Any
    tops: tuple[Top, ...] = ()


class Outbox:
    """Calls into one event loop, in order, from any thread; those that wait already are run by one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._woken = False

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Run `function` in the loop; a loop that was closed has nobody left who waits."""
        self._calls.append((function, arguments))
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _run(self) -> None:
        self._woken = False  # before looking: what is added from now on wakes the loop again
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to sample; `future` lives in the loop of `outbox`. `params` and `lora` are vLLM's objects."""

    name: str
    ids: list[int]
    params: Any
    lora: Any
    outbox: Outbox
    future: asyncio.Future[Reply]
    on_tokens: Callable[[tuple[int, ...]], None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    salt: str | None = None

    @property
    def prompt(self) -> dict[str, Any]:
        """The prompt in vLLM's words."""
        salt = {} if self.salt is None else {"cache_salt": self.salt}
        return {"type": "token", "prompt_token_ids": self.ids, **salt}

    def take(self, output: Any) -> None:
        """Take one `RequestOutput` of vLLM, a delta or the whole; called in the driver's thread."""
        (part,) = output.outputs
        new = tuple(part.token_ids)
        self.token_ids += new
        if part.logprobs is not None:
            self._take_logprobs(part.logprobs)
        if new and self.on_tokens is not None:
            self.outbox.post(self.on_tokens, new)
        if output.finished:
            reply = Reply(
                token_ids=tuple(self.token_ids),
                logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
                finish=cast("FinishReason", part.finish_reason),
                stop=part.stop_reason,
                num_cached=output.num_cached_tokens or 0,
                prompt_logprobs=output.prompt_logprobs,
                tops=tuple(self.tops),
            )
            self.outbox.post(_resolve, self.future, reply)

    def _take_logprobs(self, flat: Any) -> None:
        """Of each position the sampled token comes first, then the likeliest ones, when they were asked for."""
        if not self.params.logprobs:
            self.logprobs += flat.logprobs
            return
        for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
            self.logprobs.append(flat.logprobs[start])
            likeliest = zip(flat.token_ids[start + 1 : end], flat.logprobs[start + 1 : end], strict=True)
            self.tops.append(tuple(likeliest))

    def fail(self, error: EngineError) -> None:
        """End the request with an error; called in any thread."""
        self.outbox.post(_reject, self.future, error)


class Driver(Protocol):
    """Runs vLLM; every method may be called from any thread."""

    max_context: int
    counts: Counts

    def submit(self, requests: Sequence[Request]) -> None:
        """Start requests; each one's future is resolved exactly once, also when vLLM fails."""
        ...

    def abort(self, requests: Sequence[Request]) -> None:
        """End requests early; each still gets its reply, with what was sampled so far."""
        ...

    async def call_workers(self, method: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Call a method of `weights.WeightLoader` in every worker."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached key and value; False when requests still use them."""
        ...

    def close(self) -> None:
        """End vLLM; what is running fails."""
        ...


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _reject(future: asyncio.Future[Reply], error: EngineError) -> None:
    if not future.done():
        future.set_exception(error)
