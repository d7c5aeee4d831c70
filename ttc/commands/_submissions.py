"""What `ttc verify` judges: JSON lines from a stream, or the entries of an audit log; many at once, told in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args

from ttc.core import FinishReason, Submission, Target, Verdict
from ttc.errors import RecordError
from ttc.verifiers.service.audit import read_audit

__all__ = ["Asked", "from_audit", "from_lines", "judge_all"]

IN_FLIGHT = 64
"""Submissions judged at once."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """One submission to judge; `logged` is the verdict that an audit log has on it."""

    id: Any
    target: Target
    submission: Submission
    logged: Verdict | None = None


def from_lines(lines: Iterable[str], source: str) -> Iterator[Asked]:
    """Read {"id", "target", "text", "thinking", "finish_reason"}; raises RecordError naming line and field."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parsed(line, f"{source} line {number}")
    except UnicodeDecodeError as exc:
        raise RecordError(f"{source} after line {number}: not UTF-8: {exc.reason}") from exc


def from_audit(path: Path) -> Iterator[Asked]:
    """Read an audit log; raises like `read_audit`."""
    for entry in read_audit(path):
        yield Asked(entry.id, entry.target, entry.submission, entry.verdict)


async def judge_all(
    source: Iterator[Asked], judge: Callable[[Asked], Awaitable[T]], tell: Callable[[Asked, T], None]
) -> None:
    """Judge with up to IN_FLIGHT at once; `tell` is called in the order of the source, each as soon as it can be.

    A broken line is raised after the verdicts on all before it have been told.
    """
    queue: asyncio.Queue[_Pending[T] | Exception | None] = asyncio.Queue(IN_FLIGHT)
    reader = asyncio.create_task(_read_all(source, judge, queue))
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            tell(item.asked, await item.verdict)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Pending(Generic[T]):
    asked: Asked
    verdict: asyncio.Future[T]


async def _read_all(
    source: Iterator[Asked],
    judge: Callable[[Asked], Awaitable[T]],
    queue: asyncio.Queue[_Pending[T] | Exception | None],
) -> None:
    while True:
        try:
            # Reading may block on a slow writer, so it happens in a thread.
            item = await asyncio.to_thread(next, source, None)
        except Exception as exc:  # handed over, and raised in its turn
            await queue.put(exc)
            return
        if item is None:
            break
        await queue.put(_Pending(item, asyncio.ensure_future(judge(item))))
    await queue.put(None)


def _parsed(line: str, where: str) -> Asked:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as exc:
        raise RecordError(f"{where}: not JSON: {exc}") from exc
    except RecursionError as exc:
        raise RecordError(f"{where}: nested too deeply") from exc
    if not isinstance(row, Mapping):
        raise RecordError(f"{where}: expected an object, got {type(row).__name__}")
    for field in ("id", "target", "text"):
        if field not in row:
            raise RecordError(f"{where}: field {field!r} is missing")
    for field in ("text", "thinking"):
        if not isinstance(row.get(field, ""), str):
            raise RecordError(f"{where}: field {field!r} must be a string")
    finish = row.get("finish_reason", "stop")
    if finish not in get_args(FinishReason):
        raise RecordError(f"{where}: field 'finish_reason' must be stop, length or abort, got {finish!r}")
    submission = Submission(row["text"], row.get("thinking", ""), cast("FinishReason", finish))
    return Asked(row["id"], row["target"], submission)
