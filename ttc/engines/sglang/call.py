"""One request to SGLang under way, and what a place to send it to must do.

The two places are `http` and `local`. A request is never simply dropped: when the caller is cancelled
it is aborted in the engine and its answer awaited, so that the tokens it had decoded are known. Cost of that: at most
one decoding step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ttc.core import Json
from ttc.engines.sglang.wire import Received, ServerInfo
from ttc.errors import EngineError

__all__ = ["Call", "Server", "until_done"]

ABORT_AGAIN_S = 0.25
ABORT_LIMIT_S = 15.0


@dataclass(slots=True, eq=False)
class Call:
    """One request; `received` is that of the attempt under way, `lost` counts tokens of attempts that failed.

    `key` names what it shares a prefix with (its problem); `on_ids` is given new ids as they come, which makes the
    request a streamed one.
    """

    body: Mapping[str, Json]
    key: str
    on_ids: Callable[[tuple[int, ...]], None] | None = None
    received: Received = field(default_factory=Received)
    attempts: int = 0
    lost: int = 0

    def begin(self) -> None:
        """Count a new attempt; what the one before it had received is lost."""
        self.lost += len(self.received.ids)
        self.received = Received()
        self.attempts += 1

    def take(self, raw: Json) -> None:
        """Take in an answer or an event of a stream."""
        new = self.received.add(raw)
        if new and self.on_ids is not None:
            self.on_ids(new)


class Server(Protocol):
    """Where requests go: one or several HTTP servers, or the engine in this process."""

    @property
    def info(self) -> ServerInfo:
        """What it said of itself at the start."""
        ...

    @property
    def served(self) -> Mapping[str, str]:
        """See `ttc.core.Served`; nothing where the weights are read in this process."""
        ...

    @property
    def senders(self) -> tuple[Callable[[Mapping[str, Json]], Json], ...]:
        """For each server, a way to send one request and wait for its answer outside any event loop, at the start."""
        ...

    async def send(self, call: Call) -> None:
        """Run `call` to its end, which fills `call.received`; when cancelled, abort it and fill in what it had.

        Raises:
            EngineError: it failed, after the retries that apply.
        """
        ...

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """Replace the weights by `state` (Hugging Face names) and drop the prefix cache."""
        ...

    async def close(self) -> None:
        """Let go of it; may be called twice."""
        ...


async def until_done(call: Call, request: asyncio.Future[None], abort: Callable[[], Awaitable[None]]) -> None:
    """Await `request`; when cancelled, call `abort` and wait until the engine has answered, then propagate."""
    try:
        await asyncio.shield(request)
    except asyncio.CancelledError:
        call.on_ids = None
        await _settle(request, abort)
        raise


async def _settle(request: asyncio.Future[None], abort: Callable[[], Awaitable[None]]) -> None:
    """Abort until the answer is there: the first abort may overtake the request and find nothing to abort."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ABORT_LIMIT_S
    while not request.done() and loop.time() < deadline:
        try:
            with suppress(EngineError):  # a server out of reach: the request itself will end by that
                await abort()
            await asyncio.wait({request}, timeout=ABORT_AGAIN_S)
        except asyncio.CancelledError:  # cancelled again: still leave only once the tokens are known
            continue
    request.cancel()
    if request.done() and not request.cancelled():
        request.exception()  # the caller is being cancelled and will not look at why the request failed
