"""What a driver is handed and what comes back: one request per draw, one reply, in the caller's event loop.

A driver runs in a thread of its own, so everything that reaches a caller goes through `post`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ttc.core import FinishReason
from ttc.errors import EngineError
from ttc.vllm_engine.counts import Counts

__all__ = ["Driver", "Reply", "Request", "post"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished or aborted request. `stop` is vLLM's stop reason; `num_cached` of the prompt were not computed."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: FinishReason
    stop: str | int | None
    num_cached: int
    prompt_logprobs: Any


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to sample; `future` lives in `loop`. `params` and `lora` are vLLM's objects."""

    name: str
    ids: list[int]
    params: Any
    lora: Any
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Reply]
    on_tokens: Callable[[tuple[int, ...]], None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def take(self, output: Any) -> None:
        """Take one `RequestOutput` of vLLM, a delta or the whole; called in the driver's thread."""
        (part,) = output.outputs
        new = tuple(part.token_ids)
        self.token_ids += new
        if part.logprobs is not None:
            self.logprobs += part.logprobs.logprobs  # flat: the sampled token only, one number each
        if new and self.on_tokens is not None:
            post(self.loop, self.on_tokens, new)
        if output.finished:
            reply = Reply(
                token_ids=tuple(self.token_ids),
                logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
                finish=cast("FinishReason", part.finish_reason),
                stop=part.stop_reason,
                num_cached=output.num_cached_tokens or 0,
                prompt_logprobs=output.prompt_logprobs,
            )
            post(self.loop, _resolve, self.future, reply)

    def fail(self, error: EngineError) -> None:
        """End the request with an error; called in any thread."""
        post(self.loop, _reject, self.future, error)


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


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Run `function` in `loop`, from any thread; a loop that was closed has nobody left who waits."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _reject(future: asyncio.Future[Reply], error: EngineError) -> None:
    if not future.done():
        future.set_exception(error)
