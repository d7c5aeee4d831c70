"""Programs in Python, run in a sandbox against unit tests, input and output, or the values of functions.

The program is the last fenced block of the answer but for those that only try it (kind `code`). Its target says how it
is tested: see `ttc/verifiers/programs/target.py`. The score is the share of checks that pass: each assert, case, drawn
case and script run counts once. The verdict is correct when the share reaches `min_share`, by default only when all
checks pass.

What a program can do to its verdict. It runs alone in a process without files, network or other processes
(`ttc.sandbox`), and all it can send out is bytes on one stream. It never has an expected value: asserts run in another
process, where the functions under test are proxies whose calls the host carries over as bytes; script output is
compared here. Values come back as plain data of built-in types, so a patched `==`, a subclass, `os._exit(0)`, a
printed "all tests passed", a changed runner found through frames or the garbage collector, a forged reply, a thread or
an exit handler that answers in the program's place all come to the same: a claim about what a function returns, which
is right or wrong. A program that ends, hangs, floods its stream or breaks the format fails the checks that are left.
What it can do: see the arguments of earlier and present calls, and answer them by a table (hidden or drawn cases are
for that); tell that it is being tested.

A program that runs out of time, memory or output has failed those checks, and the verdict is `incorrect`: an endless
loop is not a way around a reward. One that ran out of time without having had the processor is run once more, because a
busy machine is not its fault. `error` is kept for tests that are broken and for a sandbox that is. Syntax errors
are `incorrect` as well; no program at all is `no_answer`.

Tests may use classes under test, pass functions, build lists and trees of the question's own classes (`ListNode`),
look at what was done in place, await, and take from endless generators; a program may use an event loop, temporary
files (in memory) and numpy, where it is installed. Values are compared by the test's own `==` on plain data: no object
of the program decides what it is equal to (see `ttc/sandbox/remote.py`).

Cost: two forks of a warm interpreter per program with function tests, one per script run, about 12 ms and 5 ms of a
core. Left out: languages other than Python, packages other than the standard library and numpy, objects of a test's own
classes, problems with several right outputs.

Args:
    timeout_s: Seconds for all checks of one program; twice that for one that had little of the processor.
    case_s: Seconds for one run of a script; absent: `timeout_s`.
    memory_mb: Memory of the program, in MiB.
    workers: How many programs run at once.
    min_share: The share of checks that makes a program correct.
    unsafe: Run programs without protection when this machine has no sandbox.
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

import dataclasses
import time

from ttc.config.values import above, at_least
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError, VerifierError
from ttc.sandbox.limits import MIN_MEMORY_MB
from ttc.sandbox.pool import Sandbox
from ttc.sandbox.probe import probe
from ttc.verifiers.programs.target import Exercise, defines, read_target
from ttc.verifiers.programs.trial import Trial, TrialResult
from ttc.verifiers.shared.contract import Canary, Card, Clock, TargetVerifier, read_answer

VERSION = "8"
_GRACE_S = 5.0
"""Seconds beyond the program's own time in which its verdict is there."""


def code(
    *,
    timeout_s: float = 10.0,
    case_s: float | None = None,
    memory_mb: int = 512,
    workers: int = 2,
    min_share: float = 1.0,
    unsafe: bool = False,
    allow_truncated: bool = False,
) -> CodeVerifier:
    """Return the verifier of programs; raises ConfigError when nothing contains programs on this machine."""
    above("code", 0, timeout_s=timeout_s, case_s=case_s)
    if not 0 < min_share <= 1:
        raise ConfigError(f"code: min_share must be in (0, 1], got {min_share}")
    at_least("code", MIN_MEMORY_MB, memory_mb=memory_mb)
    at_least("code", 1, workers=workers)
    sandbox = Sandbox(probe(unsafe=unsafe), workers=workers)
    return CodeVerifier(sandbox, timeout_s, case_s or timeout_s, memory_mb, min_share, allow_truncated)


class CodeVerifier(TargetVerifier[Exercise]):
    """Runs programs; see the module."""

    name = "code"
    read = staticmethod(read_target)

    def __init__(
        self, sandbox: Sandbox, timeout_s: float, case_s: float, memory_mb: int, min_share: float, allow_truncated: bool
    ) -> None:
        self._sandbox = self._workers = sandbox
        self._timeout_s, self._case_s, self._memory_mb = timeout_s, case_s, memory_mb
        self._min_share, self._allow_truncated = min_share, allow_truncated
        settings = f"{timeout_s:g}s-{case_s:g}s-{memory_mb}mb-{min_share:g}-{'ny'[allow_truncated]}"
        self.version = f"code-{VERSION} {sandbox.tier.label} {settings}"
        self.card = _card(self.name, self.version, timeout_s, case_s, memory_mb, min_share)

    async def judge(self, goal: Exercise, submission: Submission, clock: Clock) -> Verdict:
        """Run the program of `submission`."""
        extraction = read_answer(submission, "code", self._allow_truncated)
        if isinstance(extraction, Verdict):
            return extraction
        source = assemble(goal, extraction.final or "")
        began = time.perf_counter()
        try:
            outcome = await self._sandbox.run(Trial(source, goal, self._timeout_s, self._case_s, self._memory_mb))
        except VerifierError as exc:
            return Verdict("error", reason=str(exc)[:300])
        clock.waited = time.perf_counter() - began - outcome.seconds
        return dataclasses.replace(self._judge(outcome), extracted=extraction.final, span=extraction.span)

    def _judge(self, outcome: TrialResult) -> Verdict:
        if outcome.fault:
            return Verdict("error", reason=f"the test is broken: {outcome.fault}")
        passed, total = (sum(getattr(share, name) for share in outcome.shares) for name in ("passed", "total"))
        score = passed / total
        parts = {share.name: share.passed / share.total for share in outcome.shares}
        why = next((share.why for share in outcome.shares if share.why), "")
        reason = f"{passed} of {total} checks passed{f'; {why}' if why else ''}"
        return Verdict("correct" if score >= self._min_share else "incorrect", score, parts, reason)


def assemble(exercise: Exercise, answer: str) -> str:
    """The program that is run: the prelude, the stub where the answer only continues it, and the answer."""
    name = exercise.entry_point
    continues = exercise.stub and (answer[:1] in " \t" or (name is not None and not defines(answer, name)))
    body = f"{exercise.stub.rstrip()}\n{answer}" if continues else answer
    return f"{exercise.prelude}\n{body}\n" if exercise.prelude else f"{body}\n"


def _card(name: str, version: str, timeout_s: float, case_s: float, memory_mb: int, min_share: float) -> Card:
    target = {"entry_point": "double", "tests": ["assert double(2) == 4", "assert double(-1) == -2"]}
    right = "```python\ndef double(x):\n    return 2 * x\n```"
    return Card(
        name,
        version,
        inputs="target: entry_point, stub, prelude and tests, cases, random or io; reads the last fenced program",
        max_s=2 * timeout_s + _GRACE_S,
        limits=f"{timeout_s:g} s for all checks of a program, {case_s:g} s for one script run, {memory_mb} MiB, 32 "
        "threads, 4 MiB of output, no files, no network, no processes: beyond them checks fail; 64 KiB of program",
        partial_credit="the share of checks that pass; each group of checks in `parts`",
        correct_when="all checks pass" if min_share == 1 else f"at least {min_share:g} of the checks pass",
        weaknesses=(
            "a program may answer the known tests by a table; hidden, drawn cases catch that",
            "programs that need files, child processes or packages beyond the standard library and numpy fail",
            "in-place changes of arguments are seen where a function returns nothing, or the target says in_place",
            "`numpy.allclose` and `.all()` of a test hold for an array of no elements, whatever is expected",
            "a class under test that defines its own equality is compared by identity",
            "on a machine that stays overloaded a slow program may run out of its time, twice",
        ),
        canaries=(
            Canary(target, right, "correct"),
            Canary(target, right.replace("2 * x", "x + 2"), "incorrect"),
            Canary(target, "```python\nimport os\nprint('all tests passed')\nos._exit(0)\n```", "incorrect"),
            Canary(target, "I cannot say.", "no_answer"),
            Canary({"io": [{"input": "4", "output": "8"}]}, "```python\nprint(2 * int(input()))\n```", "correct"),
        ),
    )
