"""One replica: an embedded engine in a process of its own, driven over a pipe.

The parent (`ttc.engines.embedded.replicas`) first sends options, then calls; each call is answered by its usage
reports, its tokens if it streams, and one end message. The process ends when it receives None or its parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from ttc.core import Usage
from ttc.engines.embedded.engine import EmbeddedEngine, embedded
from ttc.engines.embedded.wire import (
    Abort,
    Call,
    CallEnd,
    Drop,
    Generate,
    Load,
    NewTokens,
    Report,
    ScoreCall,
    UsageReport,
    receive,
    send,
)
from ttc.errors import TTCError


class _Replica:
    """Answers calls with the engine; everything but the reader runs in one event loop."""

    def __init__(self, engine: EmbeddedEngine, connection: Connection) -> None:
        self._engine, self._connection = engine, connection
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outbox: list[tuple[int, Report]] = []
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Serve until the pipe ends."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="ttc-replica", daemon=True).start()
        await self._ended.wait()
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._engine.close()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                message = receive(self._connection)
            except (EOFError, OSError):
                message = None
            if message is None:
                loop.call_soon_threadsafe(self._ended.set)
                return
            loop.call_soon_threadsafe(self._take, *message)

    def _take(self, number: int, call: Call) -> None:
        if isinstance(call, Abort):
            if number in self._tasks:
                self._tasks[number].cancel()
            return
        if isinstance(call, Drop):
            if call.path is None:
                self._engine.release(call.problem_id)
            else:
                self._engine.prune(call.problem_id, call.path)
            return
        self._tasks[number] = asyncio.create_task(self._answer(number, call))

    async def _answer(self, number: int, call: Call) -> None:
        try:
            ended = CallEnd("done", await self._do(number, call))
        except asyncio.CancelledError:
            ended = CallEnd("cancelled")
        except TTCError as exc:
            ended = CallEnd("failed", exc)
        except Exception as exc:  # the parent raises it where the call was made
            ended = CallEnd("failed", RuntimeError(f"{type(exc).__name__}: {exc}"))
        finally:
            del self._tasks[number]
        self._post(number, ended)

    async def _do(self, number: int, call: Call) -> Any:
        def used(usage: Usage) -> None:
            self._post(number, UsageReport(usage))

        if isinstance(call, Generate):
            if not call.streamed:
                return await self._engine.generate(call.prompt, call.sampling, call.draws, used)

            def came(ids: tuple[int, ...]) -> None:
                self._post(number, NewTokens(ids))

            return [await self._engine.stream(call.prompt, call.sampling, call.draws.start, used, came)]
        if isinstance(call, ScoreCall):
            if call.k is not None:
                return await self._engine.top_logprobs(call.ids, call.start, call.k, used)
            return await self._engine.logprobs(call.ids, call.start, used)
        if isinstance(call, Load):
            return await self._engine.load_weights(call.state)
        raise TypeError(f"not a call: {call!r}")

    def _post(self, number: int, message: Report) -> None:
        """Queue a message; messages queued in one iteration of the loop are sent together."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append((number, message))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        try:
            send(self._connection, outbox)
        except OSError:
            self._ended.set()


def main() -> None:
    """Serve over the file descriptor that is the only argument."""
    connection = Connection(int(sys.argv[1]))
    options = receive(connection)
    try:
        engine = embedded(**options)
    except TTCError as exc:
        send(connection, exc)
        return
    if not isinstance(engine, EmbeddedEngine):
        raise TypeError(f"not an embedded engine: {engine!r}")
    send(connection, engine.capabilities)
    asyncio.run(_Replica(engine, connection).run())


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # As multiprocessing ends its workers: a joined thread of torch may still be shutting down, and the teardown of the
    # interpreter and of C++ while it runs would abort the process.
    os._exit(0)
