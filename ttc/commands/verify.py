"""`ttc verify --verifier math`: judge answers from standard input, one JSON object a line.

Input lines: {"id", "target", "text"} and, optionally, "thinking" and "finish_reason". Output lines, in the order of the
input: {"id", "verdict", "reason", "extracted", "score", "seconds", "version"}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from ttc.core import FinishReason, Submission, Target, Verdict, Verifier
from ttc.errors import ConfigError, RecordError
from ttc.registry import VERIFIERS, bind

IN_FLIGHT = 64
"""Lines judged at once."""


def register(subparsers: Any) -> None:
    """Add `ttc verify`."""
    parser = subparsers.add_parser(
        "verify",
        help="judge answers given as JSON lines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--verifier", default="math", metavar="NAME", help="math (default), choice, exact, format")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="parameter of the verifier"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge every line of standard input; 2 when a line or a name is broken."""
    factory = VERIFIERS.load(args.verifier)
    verifier: Verifier = factory(**bind(factory, _settings(args.settings), supply={}))
    asyncio.run(_judge_all(verifier, sys.stdin))
    return 0


def _settings(pairs: Iterable[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ConfigError(f"--set takes KEY=VALUE, got {pair!r}")
        settings[name] = value
    return settings


async def _judge_all(verifier: Verifier, lines: Iterable[str]) -> None:
    """Judge with up to IN_FLIGHT lines at once; prints in the order of the input, each as soon as it can be.

    A broken line is reported after the verdicts on all lines before it.
    """
    queue: asyncio.Queue[_Pending | RecordError | None] = asyncio.Queue(IN_FLIGHT)
    reader = asyncio.create_task(_read_all(verifier, iter(lines), queue))
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, RecordError):
                raise item
            _print(item.identity, await item.verdict)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await verifier.close()


@dataclass(frozen=True, slots=True)
class _Pending:
    identity: Any
    verdict: asyncio.Task[Verdict]


async def _read_all(
    verifier: Verifier, lines: Iterator[str], queue: asyncio.Queue[_Pending | RecordError | None]
) -> None:
    number = 0
    # Reading may block on a slow writer, so it happens in a thread.
    while (line := await asyncio.to_thread(next, lines, None)) is not None:
        number += 1
        if not line.strip():
            continue
        try:
            identity, target, submission = _request(line, number)
        except RecordError as exc:
            await queue.put(exc)
            return
        await queue.put(_Pending(identity, asyncio.create_task(verifier.verify(target, submission))))
    await queue.put(None)


def _print(identity: Any, verdict: Verdict) -> None:
    row = {
        "id": identity,
        "verdict": verdict.status,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "score": verdict.score,
        "seconds": round(verdict.seconds, 6),
        "version": verdict.version,
    }
    if verdict.parts:
        row["parts"] = dict(verdict.parts)
    print(json.dumps(row), flush=True)


def _request(line: str, number: int) -> tuple[Any, Target, Submission]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as exc:
        raise RecordError(f"<stdin> line {number}: not JSON: {exc}") from exc
    if not isinstance(row, Mapping):
        raise RecordError(f"<stdin> line {number}: expected an object, got {type(row).__name__}")
    for field in ("id", "target", "text"):
        if field not in row:
            raise RecordError(f"<stdin> line {number}: field {field!r} is missing")
    for field in ("text", "thinking"):
        if not isinstance(row.get(field, ""), str):
            raise RecordError(f"<stdin> line {number}: field {field!r} must be a string")
    finish = row.get("finish_reason", "stop")
    if finish not in get_args(FinishReason):
        raise RecordError(f"<stdin> line {number}: field 'finish_reason' must be stop, length or abort, got {finish!r}")
    return row["id"], row["target"], Submission(row["text"], row.get("thinking", ""), cast("FinishReason", finish))
