"""The outbox of an event loop: everything arrives, in order, with few wake-ups; a closed loop is no error."""

from __future__ import annotations

import asyncio
import threading

from ttc.engines.vllm.requests import LoopCalls


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
