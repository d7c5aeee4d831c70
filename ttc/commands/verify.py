"""`ttc verify --verifier math`: judge answers given as JSON lines.

Input lines: {"id", "target", "text"} and, optionally, "thinking" and "finish_reason". Output lines, in the order of the
input: {"id", "verdict", "reason", "extracted", "score", "seconds", "version"}, and "parts" where there are any.

    ttc verify answers.jsonl --audit audit.jsonl        keep every verdict with its inputs
    ttc verify --rescore audit.jsonl --set rounding=0   judge a log again, show what changes
    ttc verify --against exact < answers.jsonl          show where two verifiers differ

The last two print the rows that differ: {"id", "target", "text", "first", "second"}; counts go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, get_args

from ttc.config.choices import PartChoice
from ttc.config.recipes import overrides
from ttc.config.registry import VERIFIERS
from ttc.config.values import why_no_file
from ttc.core import FinishReason, Submission, TargetLike, Verdict
from ttc.errors import ConfigError, RecordError
from ttc.records import encode
from ttc.verifiers.service.audit import Audit, read_audit, summary_lines, tally
from ttc.verifiers.service.service import Service

IN_FLIGHT = 64
"""Submissions judged at once."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """One submission to judge; `logged` is the verdict that an audit log has on it."""

    id: Any
    target: TargetLike
    submission: Submission
    logged: Verdict | None = None


_Judged: TypeAlias = asyncio.Queue[tuple[Asked, asyncio.Future[T]] | Exception | None]
"""What is being judged, in its order; an error of the source is the last, None is its end."""


def register(subparsers: Any) -> None:
    """Add `ttc verify`."""
    parser = subparsers.add_parser("verify", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the lines; absent or -: standard input")
    parser.add_argument("--verifier", default="math", metavar="NAME[:MODEL]", help="default: math; ttc list verifiers")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="parameter of the verifier"
    )
    parser.add_argument("--audit", type=Path, metavar="FILE", help="append every verdict to this log")
    parser.add_argument("--metrics", action="store_true", help="print counts, latency and error rates at the end")
    parser.add_argument(
        "--canaries",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the verifier's known cases first and stop when one fails (default)",
    )
    group = parser.add_argument_group("compare")
    group.add_argument("--rescore", type=Path, metavar="LOG", help="judge what this audit log holds instead of stdin")
    group.add_argument("--against", metavar="NAME[:MODEL]", help="a second verifier")
    group.add_argument(
        "--against-set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the second verifier"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge every line; 2 when a line or a name is broken, 1 when a verifier fails a known case."""
    args.file = None if args.file == Path("-") else args.file
    _check(args)
    choices = [PartChoice.of(VERIFIERS, args.verifier, overrides(args.settings))]
    if args.against is not None:
        choices.append(PartChoice.of(VERIFIERS, args.against, overrides(args.against_set)))
    audit = Audit(args.audit) if args.audit is not None else None
    services = [Service(choice.create_verifier(), audit=audit) for choice in choices]
    asyncio.run(_serve(args, services))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.against is None and args.against_set:
        raise ConfigError("--against-set needs --against")
    if args.rescore is not None and args.against is not None:
        raise ConfigError("--rescore compares with the log and --against with a second verifier; choose one")
    if args.file is not None and args.rescore is not None:
        raise ConfigError(f"--rescore judges its log alone: leave {args.file} out")
    if args.file is not None and not args.file.is_file():
        raise ConfigError(f"file {str(args.file)!r} {why_no_file(args.file)}; name a file of JSON lines")
    if args.rescore is not None and args.audit is not None and args.rescore.resolve() == args.audit.resolve():
        raise ConfigError(f"--audit {args.audit} is the log that is judged again; choose another file")


async def _serve(args: argparse.Namespace, services: Sequence[Service]) -> None:
    async with AsyncExitStack() as stack:
        for service in services:
            stack.push_async_callback(service.close)
        if args.canaries:
            for service in services:
                await asyncio.to_thread(service.start)
        lines = sys.stdin if args.file is None else stack.enter_context(args.file.open(encoding="utf-8"))
        source = from_lines(lines, str(args.file or "<stdin>"))
        if args.rescore is not None:
            entries = read_audit(args.rescore)
            source = (Asked(entry.id, entry.target, entry.submission, entry.verdict) for entry in entries)
        if args.rescore is None and len(services) == 1:
            await judge_all(source, lambda item: _ask(services[0], item), _print)
        else:
            pairs: list[tuple[Verdict, Verdict]] = []
            await judge_all(source, lambda item: _ask_both(services, item), lambda *both: _compare(pairs, *both))
            logged = sorted({first.version for first, _ in pairs}) if args.rescore else [services[0].version]
            summary = summary_lines(", ".join(logged), services[-1].version, tally(pairs))
            print("\n".join(summary), file=sys.stderr)
        if args.metrics:
            for service in services:
                figures = {"version": service.version, **encode(service.metrics())}
                print(json.dumps(figures), file=sys.stderr)


async def _ask(service: Service, item: Asked) -> Verdict:
    return await asyncio.wrap_future(service.submit(item.target, item.submission, item.id))


async def _ask_both(services: Sequence[Service], item: Asked) -> tuple[Verdict, Verdict]:
    """The verdict in the log, or of the first verifier, and that of the last."""
    verdicts = await asyncio.gather(*(_ask(service, item) for service in services))
    return item.logged or verdicts[0], verdicts[-1]


def _print(item: Asked, verdict: Verdict) -> None:
    print(json.dumps({"id": item.id, **_row(verdict)}), flush=True)


def _row(verdict: Verdict) -> dict[str, Any]:
    row = {
        "verdict": verdict.status,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "score": verdict.score,
        "seconds": round(verdict.seconds, 6),
        "version": verdict.version,
    }
    return row | ({"parts": dict(verdict.parts)} if verdict.parts else {})


def _compare(pairs: list[tuple[Verdict, Verdict]], item: Asked, verdicts: tuple[Verdict, Verdict]) -> None:
    pairs.append(verdicts)
    first, second = verdicts
    if first.status != second.status:
        row = {"id": item.id, "target": item.target, "text": item.submission.text}
        print(json.dumps({**row, "first": _row(first), "second": _row(second)}), flush=True)


def from_lines(lines: Iterable[str], source: str) -> Iterator[Asked]:
    """Read {"id", "target", "text", "thinking", "finish_reason"}; raises RecordError naming line and field."""
    number = 0
    try:
        for number, text in enumerate(lines, start=1):
            line = text.removeprefix("\ufeff") if number == 1 else text
            if line.strip():
                yield _parsed(line, f"{source} line {number}")
    except UnicodeDecodeError as exc:
        raise RecordError(f"{source} after line {number}: not UTF-8: {exc.reason}") from exc


async def judge_all(
    source: Iterator[Asked], judge: Callable[[Asked], Awaitable[T]], tell: Callable[[Asked, T], None]
) -> None:
    """Judge up to IN_FLIGHT at once; `tell` is called in the order of the source, as early as possible.

    The error of a broken line is raised after `tell` has had the verdicts on all lines before it.
    """
    queue: _Judged[T] = asyncio.Queue(IN_FLIGHT)
    reader = asyncio.create_task(_read_all(source, judge, queue))
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            asked, verdict = item
            tell(asked, await verdict)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read_all(source: Iterator[Asked], judge: Callable[[Asked], Awaitable[T]], queue: _Judged[T]) -> None:
    while True:
        try:
            # Reading may block on a slow writer, so it happens in a thread.
            item = await asyncio.to_thread(next, source, None)
        except Exception as exc:  # handed over, and raised in its turn
            await queue.put(exc)
            return
        if item is None:
            break
        await queue.put((item, asyncio.ensure_future(judge(item))))
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
