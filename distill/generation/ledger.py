"""Units of work, and the ledger that pays for each of them once, even if the job is killed in between.

    key = digest(prompt digest, teacher digest, sampling digest without n and max_tokens, number of the sample)
    seed = hash of the key

A unit is one answer of one teacher to one prompt: the same request is the same unit, whenever, in whatever order and by
whichever job it is made. The problem is asked under its prompt's digest, so two problems with one prompt are one unit.

The ledger is one SQLite file. A row is (unit, max_tokens): done with its answer, or failed with its error. A unit is
finished when one of its rows ended by itself, or was cut at the cap wanted now. So a higher cap repeats only the cut
ones and keeps their old rows, and a higher n asks only for units that are missing. A failed unit is tried again at the
next run; the new row replaces the old one and keeps the cost of the failures. Verdicts are stored beside the rows, by
verifier and version.

A row is written in a transaction of its own as soon as its answer ends. A killed process loses what was in flight
(those tokens are spent without a row); a power failure may lose the last rows, which are then made again. Its exports
and its digest are in the order of keys, independent of what finished first. Left out: several writers.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from distill.spec.method import Assignment
from distill.spec.teacher import name_of
from evals.task import Item
from ttc.config.recipes import dump
from ttc.core import Answer, Problem, Sampling, Usage, Verdict
from ttc.errors import ConfigError, RecordError
from ttc.records import decode, encode
from ttc.session.thinking import Thinking

LEDGER = "ledger.sqlite"
"""The name of its file in a job's folder."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """One request to a teacher. `problem` has no target; its id is the digest of its prompt."""

    key: str
    problem: Problem
    teacher: str
    sampling: Sampling
    thinking: Thinking
    index: int

    @property
    def seed(self) -> int:
        """The seed of the session that makes it."""
        return int(self.key[:15], 16)

    @property
    def max_tokens(self) -> int:
        """The cap of one draw."""
        return self.sampling.max_tokens


def units_of(assignment: Assignment, seed: int) -> Iterator[tuple[Item, WorkUnit]]:
    """The units of an assignment: all first samples, then all second ones, so that a prefix covers all problems."""
    teacher, how = assignment.teacher.digest, sampling_digest(assignment.sampling, assignment.thinking, seed)
    problems = [(item, replace(item.problem, id=prompt_digest(item.problem), meta={})) for item in assignment.items]
    for index in range(assignment.n):
        for item, problem in problems:
            key = name_of([problem.id, teacher, how, index])
            yield item, WorkUnit(key, problem, teacher, assignment.sampling, assignment.thinking, index)


def prompt_digest(problem: Problem) -> str:
    """Digest of the question and of how answers to it are read."""
    return name_of([problem.kind, *([message.role, message.content] for message in problem.messages)])


def sampling_digest(sampling: Sampling, thinking: Thinking, seed: int) -> str:
    """Digest of the sampling of a draw, without the cap on its tokens; `seed` is the job's."""
    settings = {item.name: dump(getattr(sampling, item.name)) for item in fields(Sampling)}
    return name_of({**settings, "max_tokens": None, "seed": seed, "thinking": dump(thinking)})


def distinct(pairs: Iterable[tuple[Item, WorkUnit]]) -> list[WorkUnit]:
    """The units in order, each once."""
    return list({unit.key: unit for _, unit in pairs}.values())


SCHEMA = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS units (
    key TEXT NOT NULL, max_tokens INTEGER NOT NULL, prompt TEXT NOT NULL, teacher TEXT NOT NULL,
    sample INTEGER NOT NULL, seed INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ('done', 'failed')),
    finish_reason TEXT NOT NULL, answer BLOB, usage TEXT NOT NULL, seconds REAL NOT NULL, error TEXT NOT NULL,
    attempts INTEGER NOT NULL, PRIMARY KEY (key, max_tokens)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (
    key TEXT NOT NULL, max_tokens INTEGER NOT NULL, verifier TEXT NOT NULL, target TEXT NOT NULL, verdict TEXT NOT NULL,
    PRIMARY KEY (key, max_tokens, verifier, target)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no answer: the reason and its cost."""

    error: str
    usage: Usage = Usage()
    seconds: float = 0.0


Outcome = Answer | Failure


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A row: the outcome of one unit at one cap."""

    key: str
    max_tokens: int
    state: Literal["done", "failed"]
    answer: Answer | None
    usage: Usage
    seconds: float
    error: str
    attempts: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row as a trace shows it; `verdicts` are (verifier, status and reason)."""

    teacher: str
    sample: int
    seed: int
    max_tokens: int
    state: str
    finish_reason: str
    error: str
    tokens: int
    verdicts: tuple[tuple[str, str], ...]


_NO_ROOM = ("SQLITE_FULL", *(f"SQLITE_IOERR_{part}" for part in ("WRITE", "TRUNCATE", "SHMSIZE", "SHMOPEN", "FSYNC")))


def _connected(path: Path) -> sqlite3.Connection:
    """Open the database; read-only if its folder is not writable and its file alone suffices."""
    waiting = path.with_name(f"{path.name}-wal")
    is_whole = path.is_file() and not (waiting.is_file() and waiting.stat().st_size)
    if is_whole and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
    base = sqlite3.connect(path, timeout=30.0, isolation_level=None)
    try:
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        base.close()
        raise
    return base


def _told(error: sqlite3.Error, path: Path) -> Exception:
    """What a database error means: disk full, not writable, in use, or damaged."""
    name = str(getattr(error, "sqlite_errorname", ""))
    if name in _NO_ROOM:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return RecordError(
            f"{path} cannot be opened for writing ({error}): make it and its folder writable, or copy the job to one "
            "of yours"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return RecordError(f"{path} is in use by another program ({error}); wait for it")
    if name.startswith("SQLITE_NOTADB"):
        return RecordError(f"{path} is not a ledger ({error}); put it back, or move it away to start over")
    if name.startswith("SQLITE_CORRUPT"):
        return RecordError(
            f"{path} is cut or damaged ({error}); put back a complete copy, with its -wal, or move it away"
        )
    return RecordError(f"{path} cannot be used ({error})")


class AnswerLedger:
    """One job's ledger, open for this process. Raises RecordError, saying why, when the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._base = _connected(path)
            schema = self._schema()
        except sqlite3.Error as exc:
            raise _told(exc, path) from exc
        if schema not in (0, SCHEMA):
            self._base.close()
            raise RecordError(f"{path} is a ledger of schema {schema}; this version reads {SCHEMA}")

    def _schema(self) -> int:
        """The schema of the file; a new file gets its tables first."""
        try:
            (schema,) = self._base.execute("PRAGMA user_version").fetchone()
            if schema == 0:
                self._base.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
        except sqlite3.Error:
            self._base.close()
            raise
        return int(schema)

    def missing(self, units: Iterable[WorkUnit]) -> list[WorkUnit]:
        """Units that must be answered, in order: absent, failed, or cut at a lower cap than wanted now."""
        finished = {key for (key,) in self._base.execute(
            "SELECT DISTINCT key FROM units WHERE state = 'done' AND finish_reason = 'stop'"
        )}  # fmt: skip
        caps: dict[str, int] = dict(
            self._base.execute("SELECT key, MAX(max_tokens) FROM units WHERE state = 'done' GROUP BY key")
        )
        return [u for u in units if u.key not in finished and caps.get(u.key, 0) < u.max_tokens]

    def record(self, unit: WorkUnit, outcome: Outcome) -> None:
        """Store the outcome of a unit durably. Raises ConfigError when it was already paid for."""
        before = self._base.execute(
            "SELECT attempts, usage FROM units WHERE key = ? AND max_tokens = ?", (unit.key, unit.max_tokens)
        ).fetchone()
        attempts, usage = (0, Usage()) if before is None else (before[0], _usage(before[1]))
        lost = isinstance(outcome, Failure)
        row = (
            unit.key, unit.max_tokens, unit.problem.id, unit.teacher, unit.index, unit.seed,
            "failed" if lost else "done",
            "" if isinstance(outcome, Failure) else outcome.finish_reason,
            None if isinstance(outcome, Failure) else _pack(outcome),
            json.dumps(asdict(usage + outcome.usage)), outcome.seconds,
            outcome.error if isinstance(outcome, Failure) else "", attempts + 1,
        )  # fmt: skip
        marks = ", ".join("?" * len(row))
        # only a failed row may be replaced: an answer that was paid for is never overwritten
        cursor = self._write(
            f"INSERT INTO units VALUES ({marks}) ON CONFLICT (key, max_tokens) DO UPDATE SET state = excluded.state, "
            "finish_reason = excluded.finish_reason, answer = excluded.answer, usage = excluded.usage, "
            "seconds = excluded.seconds, error = excluded.error, attempts = excluded.attempts "
            "WHERE units.state = 'failed'",
            row,
        )
        if cursor.rowcount != 1:
            raise ConfigError(f"unit {unit.key} is on the ledger already; it was asked for twice")

    def _write(self, statement: str, row: Sequence[Any]) -> sqlite3.Cursor:
        """Execute; raises OSError where the disk has no room, RecordError where the file cannot be used."""
        try:
            return self._base.execute(statement, row)
        except sqlite3.Error as exc:
            raise _told(exc, self.path) from exc

    def answered(self, units: Iterable[WorkUnit]) -> dict[str, int]:
        """Units whose answers here are those that another job would get, and the caps of these answers.

        Such an answer ended by itself under a cap no higher than the one wanted, or was cut at exactly that cap.
        """
        wanted = {unit.key: unit.max_tokens for unit in units}
        rows = self._base.execute("SELECT key, max_tokens, finish_reason FROM units WHERE state = 'done'")
        return {
            key: cap
            for key, cap, finish in rows
            if key in wanted and (cap == wanted[key] or (finish == "stop" and cap < wanted[key]))
        }

    def take_over(self, other: AnswerLedger, units: Iterable[WorkUnit]) -> int:
        """Copy the answers, with their cost, that another job's ledger has to units missing here; returns how many.

        A key covers everything that an answer depends on but its cap, so the copy is what this job would have made.
        """
        missing = self.missing(units)
        rows = (
            other._base.execute("SELECT * FROM units WHERE key = ? AND max_tokens = ?", place).fetchone()
            for place in other.answered(missing).items()
        )
        try:
            with self._base:
                self._base.execute("BEGIN")
                self._base.executemany(f"INSERT OR IGNORE INTO units VALUES ({', '.join('?' * 13)})", rows)
        except sqlite3.Error as exc:
            raise _told(exc, self.path) from exc
        return len(missing) - len(self.missing(missing))  # one that failed here at that cap keeps its row

    def entries(self, units: Iterable[WorkUnit]) -> Iterator[tuple[WorkUnit, LedgerEntry]]:
        """(unit, its row) in the order of `units`, for those that are there: the finished row, else the last."""
        for unit in units:
            row = self._base.execute(
                "SELECT max_tokens, state, answer, usage, seconds, error, attempts FROM units WHERE key = ? "
                "ORDER BY state = 'done' DESC, finish_reason = 'stop' DESC, max_tokens DESC LIMIT 1",
                (unit.key,),
            ).fetchone()
            if row is not None:
                yield unit, _entry(unit.key, row)

    def usages(self, keys: Container[str]) -> list[tuple[Usage, int | None]]:
        """The cost of these units' answers and the caps that cut them, in the order of keys; answers are not read."""
        rows = self._base.execute(
            "SELECT key, usage, max_tokens, finish_reason FROM units WHERE state = 'done' ORDER BY key, max_tokens"
        )
        return [(_usage(text), None if end == "stop" else cap) for key, text, cap, end in rows if key in keys]

    def verdict(self, entry: LedgerEntry, verifier: str, target: str) -> Verdict | None:
        """The verdict of a verifier (name and version) on an entry for a target (its digest); None: not asked yet."""
        row = self._base.execute(
            "SELECT verdict FROM verdicts WHERE key = ? AND max_tokens = ? AND verifier = ? AND target = ?",
            (entry.key, entry.max_tokens, verifier, target),
        ).fetchone()
        return None if row is None else decode(Verdict, json.loads(row[0]))

    def add_verdicts(self, verdicts: Sequence[tuple[LedgerEntry, str, str, Verdict]]) -> None:
        """Write verdicts (entry, verifier, digest of the target, verdict) in one transaction; seconds are left out."""
        rows = [
            (entry.key, entry.max_tokens, verifier, target, json.dumps(encode(replace(verdict, seconds=0.0))))
            for entry, verifier, target, verdict in verdicts
        ]
        try:
            with self._base:
                self._base.execute("BEGIN")
                self._base.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as exc:
            raise _told(exc, self.path) from exc

    def story(self, key: str) -> list[LedgerRow]:
        """All rows of a unit, the lowest cap first, with their verdicts."""
        rows = self._base.execute(
            "SELECT teacher, sample, seed, max_tokens, state, finish_reason, error, usage FROM units WHERE key = ? "
            "ORDER BY max_tokens",
            (key,),
        ).fetchall()
        return [
            LedgerRow(
                teacher, sample, seed, cap, state, finish, error, _usage(text).tokens, self._verdict_lines(key, cap)
            )
            for teacher, sample, seed, cap, state, finish, error, text in rows
        ]

    def _verdict_lines(self, key: str, max_tokens: int) -> tuple[tuple[str, str], ...]:
        rows = self._base.execute(
            "SELECT verifier, verdict FROM verdicts WHERE key = ? AND max_tokens = ? ORDER BY verifier",
            (key, max_tokens),
        )
        verdicts = [(verifier, json.loads(text)) for verifier, text in rows]
        return tuple((verifier, f"{data['status']} {data['reason']}".strip()) for verifier, data in verdicts)

    def digest(self) -> str:
        """Digest of everything generated, independent of order, time and attempts."""
        rows = self._base.execute(
            "SELECT key, max_tokens, prompt, teacher, sample, seed, state, answer FROM units ORDER BY key, max_tokens"
        )
        return name_of([*row[:-1], _content(row[-1])] for row in rows)

    def totals(self) -> dict[str, Any]:
        """Rows by state, cut ones, attempts, seconds, and usage by teacher digest."""
        states = dict(self._base.execute("SELECT state, COUNT(*) FROM units GROUP BY state"))
        num_cut, attempts, seconds = self._base.execute(
            "SELECT COALESCE(SUM(finish_reason NOT IN ('stop', '')), 0), COALESCE(SUM(attempts), 0), "
            "COALESCE(SUM(seconds), 0) FROM units"
        ).fetchone()
        usages: dict[str, Usage] = {}
        for teacher, text in self._base.execute("SELECT teacher, usage FROM units ORDER BY key, max_tokens"):
            usages[teacher] = usages.get(teacher, Usage()) + _usage(text)
        return {
            "done": states.get("done", 0),
            "failed": states.get("failed", 0),
            "cut": num_cut,
            "attempts": attempts,
            "seconds": seconds,
            "usage": {teacher: asdict(usage) for teacher, usage in usages.items()},
        }

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def __enter__(self) -> Self:
        """Return the ledger."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


def _usage(text: str) -> Usage:
    return Usage(**json.loads(text))


def _pack(answer: Answer) -> bytes:
    """The answer without its trace, which is large, and without seconds, which differ from run to run."""
    stripped = replace(answer, trace=(), seconds=0.0)
    return zlib.compress(json.dumps(encode(stripped), sort_keys=True, separators=(",", ":")).encode(), 6)


def _content(packed: bytes | None) -> Mapping[str, Any] | None:
    """The part of an answer that the digest covers: not the tokens that a cache saved, which depend on the schedule."""
    if packed is None:
        return None
    answer: dict[str, Any] = json.loads(zlib.decompress(packed))
    return {key: value for key, value in answer.items() if key != "usage"}


def _entry(key: str, row: tuple[Any, ...]) -> LedgerEntry:
    max_tokens, state, packed, usage, seconds, error, attempts = row
    answer = None if packed is None else decode(Answer, json.loads(zlib.decompress(packed)))
    return LedgerEntry(key, max_tokens, state, answer, _usage(usage), seconds, error, attempts)
