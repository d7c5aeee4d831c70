"""Coroutines at once: order, the first failure, and what is left of a caller that handles it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from ttc.concurrent import Reminder, SteadyLog, gather


async def after(turns: int, value: int, ended: list[int]) -> int:
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
    finally:
        ended.append(value)
    if value < 0:
        raise ValueError(f"no {value}")
    return value


def test_results_come_in_order_whoever_ends_first():
    ended: list[int] = []
    assert asyncio.run(gather(after(5 - i, i, ended) for i in range(5))) == [0, 1, 2, 3, 4]
    assert ended == [4, 3, 2, 1, 0]
    assert asyncio.run(gather([])) == []


def test_the_first_failure_is_raised_bare_when_every_sibling_has_ended():
    ended: list[int] = []

    async def work() -> None:
        with pytest.raises(ValueError, match="no -1"):
            await gather([after(9, 1, ended), after(2, -1, ended), after(9, 2, ended), after(5, -2, ended)])
        assert sorted(ended) == [-2, -1, 1, 2]

    asyncio.run(work())


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_caller_that_handles_a_failure_is_not_marked_as_cancelled(width):
    async def work() -> int:
        with pytest.raises(ValueError, match="no -1"):
            await gather(after(i, -1, []) for i in range(width))
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(work()) == 0


def test_cancelling_the_caller_cancels_all_and_waits_for_them():
    ended: list[int] = []

    async def work() -> None:
        task = asyncio.ensure_future(gather(after(10**6, i, ended) for i in range(3)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert sorted(ended) == [0, 1, 2]


def test_an_interrupt_after_a_handled_failure_is_still_an_interrupt():
    async def work() -> None:
        with pytest.raises(ValueError, match="no -1"):
            await gather([after(1, -1, []), after(1, 1, [])])
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())


def test_a_reminder_is_due_once_in_each_pause():
    reminder = Reminder(every_s=0.05)
    assert not reminder.due()
    time.sleep(0.06)
    assert reminder.due()
    assert not reminder.due()


def test_work_that_says_nothing_for_long_is_said_to_go_on():
    lines: list[str] = []
    with SteadyLog(lines.append, quiet_s=0.1) as log:
        log("begun")
        time.sleep(0.25)
        log("ended")
    assert lines[0] == "begun"
    assert lines[-1] == "ended"
    assert lines[1:-1]
    assert all(line.startswith("still working, ") for line in lines[1:-1])


def test_work_that_says_enough_has_no_lines_between_its_own():
    lines: list[str] = []
    with SteadyLog(lines.append, quiet_s=1.0) as log:
        for number in range(15):
            log(str(number))
            time.sleep(0.1)
    assert lines == list(map(str, range(15)))
