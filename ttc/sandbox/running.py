"""Work for the sandbox: a script with its input, or a program together with its tests.

    Script("print(input())", limits, stdin="4")     -> ScriptResult(output, errors, cause, cpu_s)
    Suite(source, groups, limits)                   -> SuiteResult(notes per group, cause, cpu_s)

The tests and the program run in two cells; the host passes calls and replies between them as bytes that it does not
read. The cell with the tests holds the expected values, the cell with the program never does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttc.sandbox import wire
from ttc.sandbox.limits import ResourceLimits
from ttc.sandbox.pool import Cell, Worker
from ttc.sandbox.wire import CALL, DONE, GONE, NOTE, REPLY

_ERRORS_KEPT = 4096
_MORE = ("numpy", "asyncio", "async ")


def wants_more(*sources: str) -> bool:
    """Whether some code uses what only a rich zygote has: numpy, or an event loop."""
    return any(word in source for source in sources for word in _MORE)


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """A script's outcome: `cause` is why it failed, empty for exit code 0; `errors` is the end of standard error."""

    output: str
    errors: str
    cause: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Script:
    """A program that reads standard input and writes standard output."""

    source: str
    limits: ResourceLimits
    stdin: str = ""

    @property
    def is_rich(self) -> bool:
        """Whether it needs a rich zygote."""
        return wants_more(self.source)

    def run(self, worker: Worker) -> ScriptResult:
        """Run it to its end or its limits."""
        cell = worker.start(
            {"mode": "script", "source": self.source, "stdin": self.stdin}, self.limits, role=0, listens=True
        )
        try:
            caps = {cell.output: self.limits.output_kb << 10, cell.errors: -_ERRORS_KEPT}
            outputs, over = wire.drain(caps, cell.deadline)
        except BaseException:
            worker.finish(cell)
            raise
        end = worker.finish(cell, kill=over is not None)
        output, errors = (outputs[each].decode("utf-8", "replace") for each in (cell.output, cell.errors))
        return ScriptResult(output, errors, "output" if over is not None else end.cause, end.cpu_s)


@dataclass(frozen=True, slots=True)
class Note:
    """One check: whether it passed, and why not; `broken` when the test itself is at fault."""

    ok: bool
    why: str
    broken: bool


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """Results of the tests: notes per group; `cause` is why they broke off, empty when all were run."""

    notes: tuple[tuple[Note, ...], ...]
    cause: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Suite:
    """A program whose functions are tested; `groups` as `driving` expects them.

    `records` names the classes whose objects both sides share; with `in_place` the program's changes to its arguments
    are applied to the test's, whatever it returns.
    """

    source: str
    groups: Sequence[Mapping[str, Any]]
    limits: ResourceLimits
    records: tuple[str, ...] = ()
    in_place: bool = False

    @property
    def is_rich(self) -> bool:
        """Whether program or tests need a rich zygote."""
        return wants_more(self.source, json.dumps(self.groups))

    def run(self, worker: Worker) -> SuiteResult:
        """Load the program, run the groups against it."""
        job = {"mode": "serve", "source": self.source, "records": self.records, "in_place": self.in_place}
        program = worker.start(job, self.limits, role=0)
        try:
            tests = worker.start({"mode": "drive", "groups": list(self.groups)}, self.limits, role=1)
        except BaseException:
            worker.finish(program)
            raise
        notes: list[list[Note]] = [[] for _ in self.groups]
        cause, broke_off = "", False
        try:
            cause = _fault_in_loading(program)
            if not cause:
                _relay(program, tests, notes)
        except wire.StreamEnded:
            broke_off = True
        finally:
            ends = worker.finish(program), worker.finish(tests)
        if broke_off:
            # killed by `finish`, or ended with exit code 0: without an error of its own
            silent = ends[0].cause in ("killed by SIGKILL", "")
            late = any(end.late for end in ends)
            cause = "wall time" if late else "the program broke off" if silent else ends[0].cause
        return SuiteResult(tuple(map(tuple, notes)), cause, sum(end.cpu_s for end in ends))


def _fault_in_loading(program: Cell) -> str:
    """Wait until the program is loaded; returns the error if that fails, else "". Raises StreamEnded if it ends."""
    kind, text = wire.receive(program.report, program.deadline)
    return "" if kind == REPLY else f"not loaded: {text[:300].decode(errors='replace')}"


def _relay(program: Cell, tests: Cell, notes: list[list[Note]]) -> None:
    """Pass calls and replies in both directions until the tests are done; raises StreamEnded when they broke off.

    One side works at a time: the side that received a frame sends the next one, and only the tests send notes.
    """
    here, there = tests, program
    while True:
        kind, payload = wire.receive(here.report, here.deadline)
        if here is tests and kind == DONE:
            return
        if here is tests and kind == NOTE:
            row = json.loads(payload)
            notes[row["group"]].append(Note(row["ok"], row["why"], row["broken"]))
            continue
        wire.send(there.job, kind if kind in (CALL, REPLY) else GONE, payload, there.deadline)
        here, there = there, here
