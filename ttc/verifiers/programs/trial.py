"""One program held to one target: every check is run in cells of one worker within one time.

A program that ran out of wall time while it had little of the processor may have been starved by other work on the
machine, and then it is not the program that failed: such a run is made once more, and the second one counts. A program
that sleeps gains nothing by that.

Output is compared as contest sites do: white space at the ends of lines and empty lines at the end do not count. Lines
that differ are equal when they have the same number of words and each pair of words is the same text or the same
plain decimal number (`1.0` is `1`). A number is plain when it is a sign, ASCII digits and perhaps a point, without a
leading zero: `0010` and `07` are texts, and nothing is `1_0` or `1e5`. A line that is expected to begin with blanks, as
in a pattern, must begin with as many. A tolerance belongs to a checker of the problem's own. Left out: problems with
several right outputs.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from decimal import Decimal

from ttc.sandbox.limits import ResourceLimits
from ttc.sandbox.pool import Worker
from ttc.sandbox.running import Script, ScriptResult, Suite, SuiteResult
from ttc.verifiers.programs.target import Exercise

MAX_DIGITS = 400
_PLAIN = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


def same_output(got: str, expected: str) -> bool:
    """Whether two outputs are equal."""
    left, right = _lines(got), _lines(expected)
    return len(left) == len(right) and all(_same_line(a, b) for a, b in zip(left, right, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(left: str, right: str) -> bool:
    if left == right:
        return True
    if right[:1].isspace() and left[: len(left) - len(left.lstrip())] != right[: len(right) - len(right.lstrip())]:
        return False
    a, b = left.split(), right.split()
    return len(a) == len(b) and all(x == y or _same_number(x, y) for x, y in zip(a, b, strict=True))


def _same_number(left: str, right: str) -> bool:
    if max(len(left), len(right)) > MAX_DIGITS or not (_PLAIN.fullmatch(left) and _PLAIN.fullmatch(right)):
        return False
    return Decimal(left) == Decimal(right)


LEAST_S = 0.05
"""Seconds below which a script is not started any more."""
STARVED = 0.5
"""The share of its wall time below which a program had little of the processor."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The outcome of one group: checks passed of `total`, and why the first one failed."""

    name: str
    passed: int
    total: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcomes of all groups, in `seconds`; `fault` says what is wrong with the test itself, if something is."""

    shares: tuple[GroupResult, ...]
    fault: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A program, its tests and its limits: `timeout_s` for all of it, `case_s` for one run of a script."""

    source: str
    exercise: Exercise
    timeout_s: float
    case_s: float
    memory_mb: int

    @property
    def is_rich(self) -> bool:
        """Whether program or tests want more than the usual library."""
        return self._suite().is_rich

    def _suite(self) -> Suite:
        exercise, limits = self.exercise, self._limits(self.timeout_s)
        return Suite(self.source, exercise.groups, limits, exercise.records, exercise.in_place)

    def run(self, worker: Worker) -> TrialResult:
        """Run it, in at most twice its time; what there is no time left for has failed."""
        began = time.monotonic()
        shares: list[GroupResult] = []
        fault, is_second = "", False
        if self.exercise.groups:
            suite = self._suite()
            tested = suite.run(worker)
            if _starved(tested, self.timeout_s):
                tested, is_second = suite.run(worker), True
            shares += _shares(self.exercise, tested)
            fault = next((note.why for notes in tested.notes for note in notes if note.broken), "")
        if self.exercise.io:
            shares.append(self._scripts(worker, began + self.timeout_s * (1 + is_second), is_second))
        return TrialResult(tuple(shares), fault, time.monotonic() - began)

    def _scripts(self, worker: Worker, end: float, is_second: bool) -> GroupResult:
        passed, why = 0, ""
        for number, case in enumerate(self.exercise.io, start=1):
            left = min(self.case_s, end - time.monotonic())
            ran = ScriptResult("", "", "wall time", 0.0)
            if left > LEAST_S:
                script = Script(self.source, self._limits(left), case.input)
                ran = script.run(worker)
                if not is_second and _starved(ran, left):
                    ran, is_second, end = script.run(worker), True, end + left
            right = not ran.cause and same_output(ran.output, case.output)
            passed += right
            if not right and not why:
                why = f"io {number}: {_last_line(ran) or 'another output'}"
        return GroupResult("io", passed, len(self.exercise.io), why)

    def _limits(self, seconds: float) -> ResourceLimits:
        return ResourceLimits(wall_s=seconds, cpu_s=seconds, memory_mb=self.memory_mb)


def _starved(ran: ScriptResult | SuiteResult, limit_s: float) -> bool:
    return ran.cause == "wall time" and ran.cpu_s < STARVED * limit_s


def _last_line(ran: ScriptResult) -> str:
    """Why a script failed: the last line of its traceback, or how it was ended."""
    lines = ran.errors.strip().splitlines()
    return lines[-1][:160] if lines and ran.cause.startswith("exit code") else ran.cause


def _shares(exercise: Exercise, tested: SuiteResult) -> list[GroupResult]:
    shares = []
    for name, notes, expected in zip(exercise.names, tested.notes, exercise.num_checks, strict=True):
        passed = sum(note.ok for note in notes)
        # Asserts in a loop are more than stand in the source, those in a branch not taken fewer.
        whole = not tested.cause and passed == len(notes) > 0
        total = passed if whole else max(expected, len(notes), passed + 1)
        failed = next((f"{name} {n}: {note.why}" for n, note in enumerate(notes, start=1) if not note.ok), "")
        shares.append(GroupResult(name, passed, total, "" if whole else failed or tested.cause or "no check was run"))
    return shares
