"""The loop of a run: every problem is solved, verified and recorded once, even if the process is killed in between.

Each record is synced to the disk before the next one (`evals.run_folder`). Problems are keyed by id and seeds by (run
seed, id, path), so neither order, nor concurrency, nor the place of the cut changes a result on a deterministic engine.

A problem that fails is a record with its `error`, kept on resume unless errors are retried: then it is asked again, and
an answer without a verdict is only judged again, since it was paid for. What would fail every problem alike (a bad
parameter, an engine that fails `MAX_STREAK` times in a row, a broken verifier, code of the user's own that fails on
each of the first `MAX_STREAK` problems) stops the run. As failures often come sooner than answers, problems in flight
end first and may disprove it (`Trust`). The cost of a failed problem is in its record's provenance (`spent`) and counts
in every total, also after a retry (`spent_before`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.run_folder import (
    RECORDS,
    KeptRecords,
    StoredRecords,
    check_counting,
    digest,
    held,
    kept_records,
    stored,
)
from evals.task import Item
from ttc.config.plugins import described, leaf
from ttc.core import Answer, Candidate, Problem, Record, Submission, Verdict, Verifier
from ttc.errors import UNANSWERABLE, ConfigError, EngineError, PluginError, Unsupported
from ttc.records import RecordFile
from ttc.session.solve import charged, spent

MAX_STREAK = 8
"""This many engine failures in a row mean that the engine is gone; this many plug-in failures at the start, that the
plug-in never works.
"""

Solve = Callable[[Problem], Awaitable[Answer]]
OnRecord = Callable[[Record], None]


async def evaluate(
    folder: Path,
    config: Mapping[str, Any],
    items: Sequence[Item],
    solve: Solve,
    verifier: Verifier,
    *,
    concurrency: int,
    retry_errors: bool = False,
    started: float | None = None,
    on_kept: Callable[[int], None] = lambda count: None,
    on_record: OnRecord = lambda record: None,
) -> Sequence[Record]:
    """Solve and verify what `folder` does not hold yet; return all records in the order of `items`.

    The records are read from the folder; a large run's only when they are used (`evals.run_folder`). `started`
    (monotonic clock) is when the work of this session began, if before this call. `on_kept` gets the number of records
    kept, `on_record` each new one. Cancelling leaves a folder that can be continued.

    Raises:
        ConfigError: the folder holds another run, or its records belong to other data.
        EngineError: the engine failed `MAX_STREAK` problems in a row.
        PluginError: a strategy or scorer of the user's own failed each of the first `MAX_STREAK` problems.
        VerifierError: the verifier itself is broken.
    """
    with held(folder, config, items) as file:
        kept = kept_records(file.path, items, folder, retry_errors=retry_errors)
        places = kept.places
        if min(places, default=0) < 0:
            check_counting(folder, config)
        on_kept(sum(place >= 0 for place in places))
        labels = {"run": digest(config), "strategy": config.get("strategy"), "session": kept.num_sessions + 1}
        writer = _Writer(file, labels, kept, on_record, time.monotonic() if started is None else started)
        todo = ((index, item) for index, item in enumerate(items) if places[index] < 0)
        answered = {index: StoredRecords(file.path, [place]) for index, place in kept.unjudged.items()}
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(_work(todo, answered, solve, verifier, writer))
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        if writer.trust.error is not None and not writer.has_answers:
            raise writer.trust.error
    return stored(folder / RECORDS, places)


class Trust:
    """Whether to begin problems while others fail.

    Failures come early and answers late, so many failures in a row may only be the first to end. While an `error` would
    stop the run, no problem begins until those in flight have disproved it or ended, too.
    """

    def __init__(self) -> None:
        """Trust."""
        self.error: Exception | None = None
        self._under_way, self._change = 0, asyncio.Event()

    async def begin(self) -> Exception | None:
        """Count one more in flight once there is trust; return the error that stops the run where there is none."""
        while self.error is not None:
            if not self._under_way:
                return self.error
            await self._change.wait()
        self._under_way += 1
        return None

    def end(self, error: Exception | None) -> None:
        """Count one as ended; `error` would stop the run from now on, None restores the trust."""
        self._under_way -= 1
        self.error = error
        self._change.set()
        self._change = asyncio.Event()


class _Writer:
    """Appends records, remembers where they are, and notices when the engine or a plug-in keeps failing."""

    def __init__(
        self,
        file: RecordFile,
        labels: Mapping[str, Any],
        kept: KeptRecords,
        on_record: OnRecord,
        started: float,
    ) -> None:
        self._file, self._labels, self._kept, self._on_record = file, labels, kept, on_record
        self._started = started
        self.trust, self.has_answers = Trust(), False
        self._streak = self._num_written = self._num_faults = 0

    def write(
        self, index: int, item: Item, answer: Answer | None, verdicts: Sequence[Verdict], error: BaseException | None
    ) -> None:
        """Store the outcome of problem `index`; `verdicts` are the answer's and then those of its candidates."""
        provenance = {
            **self._labels,
            "at_s": round(time.monotonic() - self._started, 3),
            "cluster": item.group,
            "difficulty": item.difficulty,
        }
        if error is not None:
            provenance["spent"] = asdict(spent(error))
        if index in self._kept.spent_before:
            provenance["spent_before"] = asdict(self._kept.spent_before[index])
        record = Record(
            problem=item.problem,
            target=item.target,
            answer=answer,
            verdict=verdicts[0] if verdicts else None,
            verdicts=tuple(verdicts[1:]),
            error=None if error is None else described(error),
            provenance=provenance,
        )
        self._kept.places[index] = self._file.append(record)
        self._on_record(record)
        self.has_answers = self.has_answers or answer is not None
        self.trust.end(self._stops_by(error))

    def _stops_by(self, error: BaseException | None) -> Exception | None:
        """The error that stops the run, unless problems in flight disprove it."""
        self._num_written += 1
        self._num_faults += isinstance(error, PluginError)
        if self._num_faults == self._num_written >= MAX_STREAK:
            return PluginError(f"{error}; so did the first {MAX_STREAK} problems: fix it, and add --retry-errors")
        in_engine = isinstance(error, EngineError) and not isinstance(error, UNANSWERABLE)
        self._streak = self._streak + 1 if in_engine else 0
        if self._streak < MAX_STREAK:
            return None
        failure = EngineError(
            f"{self._streak} problems in a row failed in the engine, the last with: {error}; "
            "the run is stopped, retry them with --retry-errors"
        )
        failure.__cause__ = error
        return failure


async def _work(
    todo: Iterator[tuple[int, Item]],
    answered: Mapping[int, Sequence[Record]],
    solve: Solve,
    verifier: Verifier,
    writer: _Writer,
) -> None:
    """Take problems from the shared iterator until it is empty; those in `answered` are only judged."""
    for index, item in todo:
        stop = await writer.trust.begin()
        if stop is not None:
            raise stop
        try:
            before = answered[index][0].answer if index in answered else None
            answer = await solve(item.problem) if before is None else before
        except Exception as raised:  # whatever a strategy does wrong is data; its siblings go on
            error = leaf(raised)
            if isinstance(error, ConfigError | Unsupported):  # would fail every problem alike
                raise error from None
            writer.write(index, item, None, (), charged(error, spent(raised)))
            continue
        writer.write(index, item, answer, await verdicts_of(item, answer, verifier), None)


async def verdicts_of(item: Item, answer: Answer, verifier: Verifier) -> list[Verdict]:
    """Return the verdict of the answer and then those of its candidates; equal submissions are verified once."""
    judges_form = item.problem.kind == "format"  # only such a verifier reads the thinking
    paths: list[Answer | Candidate] = [answer, *answer.candidates]
    submissions = [Submission(path.text, path.thinking if judges_form else "", path.finish_reason) for path in paths]
    unique = list(dict.fromkeys(submissions))
    verdicts = await asyncio.gather(*(verifier.verify(item.target, submission) for submission in unique))
    by_submission = dict(zip(unique, verdicts, strict=True))
    return [by_submission[submission] for submission in submissions]
