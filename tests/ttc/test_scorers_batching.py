"""The worker thread of scorers: results in order, one wake-up for what ends together, errors where they belong."""

from __future__ import annotations

import asyncio

import pytest

from ttc.core import Usage
from ttc.errors import ScorerError
from ttc.scorers.reward_models.batching import Batcher, WorkItem, finish_all

Work = list[WorkItem[int, int]]


def squares(batch: Work) -> None:
    """Finish the jobs of a batch together, the last one first."""
    finish_all([(job, Usage(scored=1), job.item**2) for job in reversed(batch)])


def test_results_come_in_order_and_every_item_is_charged_once() -> None:
    async def go() -> None:
        batcher, spent = Batcher("squares", squares), []
        first, second = await asyncio.gather(
            batcher.submit([3, 1, 2], spent.append), batcher.submit([5], lambda usage: None)
        )
        assert (first, second) == ([9, 1, 4], [25])
        assert spent == [Usage(scored=1)] * 3
        assert await batcher.submit([], spent.append) == []

    asyncio.run(go())


def test_what_ends_together_wakes_the_event_loop_once() -> None:
    async def go() -> int:
        loop, woken = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe

        def counted(callback, *args, **options):
            woken.append(callback)
            return wake(callback, *args, **options)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        assert await Batcher("squares", squares).submit(list(range(20)), lambda usage: None) == [
            n * n for n in range(20)
        ]
        await asyncio.sleep(0.05)
        return len(woken)

    assert asyncio.run(go()) <= 2  # the results, and the end of the batch


def test_an_item_that_fails_fails_its_own_call_only() -> None:
    def work(batch: Work) -> None:
        for job in batch:
            if job.item < 0:
                job.fail(ScorerError("negative"))
            else:
                job.finish(job.item)

    async def go() -> list[object]:
        batcher = Batcher("roots", work)
        calls = [batcher.submit(items, lambda usage: None) for items in ([1, -1, 2], [3, 4])]
        return await asyncio.gather(*calls, return_exceptions=True)

    failed, fine = asyncio.run(go())
    assert isinstance(failed, ScorerError) and fine == [3, 4]


def test_work_that_breaks_fails_what_had_not_ended_and_the_next_batch_runs() -> None:
    def work(batch: Work) -> None:
        for job in batch:
            if job.item == 0:
                raise ZeroDivisionError("zero")
            job.finish(1)

    async def go() -> None:
        batcher = Batcher("inverse", work)
        calls = [batcher.submit(items, lambda usage: None) for items in ([1], [2, 0], [3])]
        done, broken, late = await asyncio.gather(*calls, return_exceptions=True)
        assert done == [1]
        assert isinstance(broken, ScorerError) and isinstance(late, ScorerError)
        with pytest.raises(ScorerError, match="inverse failed: zero"):
            await batcher.submit([0], lambda usage: None)
        assert await batcher.submit([4], lambda usage: None) == [1]

    asyncio.run(go())


def test_a_caller_that_left_is_charged_and_nobody_else_notices() -> None:
    async def go() -> None:
        batcher, spent = Batcher("squares", squares), []
        leaving = asyncio.create_task(batcher.submit([1, 2], spent.append))
        staying = asyncio.create_task(batcher.submit([3], lambda usage: None))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == [9]
        assert leaving.cancelled() and len(spent) == 2

    asyncio.run(go())
