"""What arrives from vLLM: everything, in order, with few wake-ups; what it lost fails that request and nothing else."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ttc.engines.vllm.drivers import _Sink
from ttc.engines.vllm.requests import LoopCalls, SequenceRequest
from ttc.errors import EngineError


def test_calls_from_another_thread_arrive_in_order_and_wake_the_loop_once() -> None:
    async def go() -> tuple[list[int], int]:
        loop, got, wakes = asyncio.get_running_loop(), [], 0
        box, done, plain = LoopCalls(loop), asyncio.Event(), loop.call_soon_threadsafe

        def counted(*arguments: object) -> object:
            nonlocal wakes
            wakes += 1
            return plain(*arguments)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]

        def send() -> None:
            for number in range(1000):
                box.post(got.append, number)
            box.post(done.set)

        thread = threading.Thread(target=send)
        thread.start()
        thread.join()  # the loop is held up meanwhile, as by another request
        await asyncio.wait_for(done.wait(), 10)
        return got, wakes

    got, wakes = asyncio.run(go())
    assert got == list(range(1000))
    assert wakes == 1


def test_several_threads_lose_nothing() -> None:
    async def go() -> int:
        box, got = LoopCalls(asyncio.get_running_loop()), []

        def send() -> None:
            for number in range(2000):
                box.post(got.append, number)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(got) < 8000:
            await asyncio.sleep(0.001)
        return len(got)

    assert asyncio.run(asyncio.wait_for(go(), 20)) == 8000


def test_nobody_waits_in_a_loop_that_was_closed() -> None:
    loop = asyncio.new_event_loop()
    box = LoopCalls(loop)
    loop.close()
    box.post(print, "never")


class PausedError(Exception):
    """As vLLM 0.33 puts it into a request's queue, when it refuses what `add_request` took."""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (PausedError("generation is paused"), "PausedError: generation is paused"),
        (
            SimpleNamespace(
                outputs=[SimpleNamespace(token_ids=[5], logprobs=None, finish_reason="error", stop_reason=None)],
                finished=True,
            ),
            "internal error",
        ),
    ],
    ids=["refused late", "lost within vLLM"],
)
def test_what_vllm_could_not_finish_is_an_error_and_no_draw(output: Any, message: str) -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        request = SequenceRequest(
            "ttc-1", [1, 2], SimpleNamespace(logprobs=None), None, LoopCalls(loop), loop.create_future()
        )
        live = {request.name: request}
        _Sink(request, live).put(output)
        assert not live, "nobody may wait for it, and an abort would find nothing"
        with pytest.raises(EngineError, match=message):
            await asyncio.wait_for(request.future, 5)

    asyncio.run(go())
