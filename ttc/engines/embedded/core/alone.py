"""Run set-up work so that it leaves no compute threads behind.

GNU's OpenMP counts the compute threads of every thread that ever ran a parallel part. Once they exceed the cores, all
of them stop spinning at barriers and sleep instead: with two threads, weights packed in the caller's thread made every
later decoding step of the worker slower than with one. So loading computes with one thread, in a thread that then ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["alone"]

T = TypeVar("T")


def alone(action: Callable[[], T]) -> T:
    """Return `action()`, run with one compute thread in a thread of its own; its errors are raised here."""
    with ThreadPoolExecutor(1, thread_name_prefix="ttc-load") as pool:
        return pool.submit(_with_one_thread, action).result()


def _with_one_thread(action: Callable[[], T]) -> T:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return action()
    finally:
        torch.set_num_threads(before)  # torch also keeps the number as the default of threads to come
