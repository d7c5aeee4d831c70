"""What the worker sends back; each runs in the event loop of the request it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

from ttc.core import Usage
from ttc.engines.embedded.requests import GenerateRequest
from ttc.errors import EngineError

__all__ = ["Failed", "Finished", "Outbox", "Reply", "Reported", "StreamedTokens", "deliver"]


class Reply(Protocol):
    """One message to a request."""

    request: GenerateRequest

    def run(self) -> None:
        """Act on it, in the request's loop."""
        ...


@dataclass(slots=True)
class StreamedTokens:
    """New token ids of a streamed draw."""

    request: GenerateRequest
    ids: tuple[int, ...]

    def run(self) -> None:
        """Hand them to the caller."""
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
    """Run replies in order; an error raised by a caller's own callback fails that caller's request only."""
    for reply in replies:
        try:
            reply.run()
        except Exception as exc:
            if not reply.request.future.done():
                reply.request.future.set_exception(exc)


class Outbox:
    """Replies of one tick; each event loop is woken once for all of its own."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[Reply]] = {}

    def send(self, reply: Reply) -> None:
        """Let a reply go out with the others."""
        self._waiting.setdefault(reply.request.loop, []).append(reply)

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, {}
        for loop, replies in waiting.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed under us: nobody is left to tell
                loop.call_soon_threadsafe(deliver, replies)
