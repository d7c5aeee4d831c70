"""Hostile and honest programs on every tier of this machine, as root and as an ordinary user, with their outcomes.

    python -m benchmarks.sandbox_battery --save benchmarks/results/sandbox_battery.json --table ttc/sandbox/README.md

Escape attempts, programs that exhaust resources, answers that forge their own verdict
(tests/ttc/data/hostile_programs), programs that return deceptive objects and functions to tests, and honest programs
(tests/ttc/honest_programs.py). Each escape must be contained, each exhausting program ended by a limit or a failure, no
forgery and no deceptive object judged correct, every honest program judged correct; afterwards the tier must run an
honest program, no process may be left, a witness file must be untouched and nothing new may lie in the temporary
folders. Root runs the ordinary user's part as an unused user id, with the first interpreter that this user can read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.ttc.honest_programs import HONEST, LIARS, NEEDS_NUMPY
from tests.ttc.hostile_programs import ESCAPES, EXHAUSTIONS, FORGERIES, TARGET
from tests.ttc.processes import descendants
from ttc.core import Submission
from ttc.sandbox.limits import ResourceLimits, Tier, python, unused_user
from ttc.sandbox.pool import Sandbox
from ttc.sandbox.probe import candidates, failure
from ttc.sandbox.running import Script
from ttc.verifiers.code import CodeVerifier

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ResourceLimits(wall_s=2.0, cpu_s=2.0, memory_mb=128, output_kb=64)
LIBRARY = ResourceLimits(wall_s=5.0, cpu_s=5.0)
FORGERY_S, HONEST_S = 2.0, 5.0
WITNESS = Path("/tmp/ttc-witness")
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")
SECRET = "sk-not-for-programs"
_READABLE = "import os, sys; sys.exit(not os.access(os.path.realpath(sys._base_executable), os.R_OK))"
DOUBLE = "```python\ndef double(x):\n    return x + x\n```"


def main() -> None:
    """Run everything, or with --here the tiers of this user."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="this user only; the result as JSON on stdout")
    parser.add_argument("--save", metavar="FILE.json")
    parser.add_argument("--table", metavar="FILE.md")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(battery()))
        return
    runs = [run for command in commands() for run in _child(command)]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "num_programs": len(ESCAPES) + len(EXHAUSTIONS) + len(FORGERIES) + len(LIARS) + len(HONEST),
        "runs": runs,
    }
    for run in runs:
        print(
            f"{run['user']}, {run['tier']}: {run['num_contained']} of {run['num_programs']} contained; {run['after']}"
        )
    if args.save:
        Path(args.save).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.table:
        Path(args.table).write_text(table(result), encoding="utf-8")
    sys.exit(0 if all(run["num_contained"] == run["num_programs"] and run["clean"] for run in runs) else 1)


# -- users -------------------------------------------------------------------------------------------------------------
def commands() -> list[Sequence[str]]:
    """How to run this script as each user there is."""
    mine: Sequence[str] = (sys.executable, "-m", "benchmarks.sandbox_battery", "--here")
    user = unused_user(os.getpid())
    if user is None:
        return [mine]
    become = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--")
    for interpreter in (sys.executable, python(), "/usr/bin/python3", "/usr/local/bin/python3"):
        readable = [*become, interpreter, "-c", _READABLE]
        if shutil.which(interpreter) and subprocess.run(readable, capture_output=True).returncode == 0:
            return [mine, (*become, interpreter, *mine[1:])]
    print("no interpreter here can be read by an ordinary user", file=sys.stderr)
    return [mine]


def _child(command: Sequence[str]) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TTC_TEST_SECRET": SECRET}
    WITNESS.write_text("here", encoding="utf-8")
    WITNESS.chmod(0o644)
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    finally:
        WITNESS.unlink()
    runs: list[dict[str, Any]] = json.loads(done.stdout)
    return runs


# -- one user ----------------------------------------------------------------------------------------------------------
def battery() -> list[dict[str, Any]]:
    """Run the programs on every tier of this user."""
    user = "root" if os.geteuid() == 0 else "ordinary user"
    tiers = [tier for tier in candidates() if isinstance(tier, Tier)]
    missing = [why for tier in tiers if (why := failure(tier))]
    if missing:
        print("\n".join(missing), file=sys.stderr)
    return [{"user": user, **_on(tier)} for tier in tiers if not failure(tier)]


def _on(tier: Tier) -> dict[str, Any]:
    before, files = descendants(), _files()
    state = WITNESS.stat()
    began = time.perf_counter()
    sandbox = Sandbox(tier, workers=2)
    rows = _scripts(sandbox) + asyncio.run(_forgeries(sandbox))
    rows += asyncio.run(_tested(sandbox, "liar", LIARS, "incorrect"))
    has_numpy = sandbox.submit(Script("import numpy", LIBRARY)).result().cause == ""
    programs = {name: pair for name, pair in HONEST.items() if has_numpy or name not in NEEDS_NUMPY}
    rows += asyncio.run(_tested(sandbox, "honest", programs, "correct"))
    honest = sandbox.submit(Script("print(6 * 7)", LIMITS)).result().output == "42\n"
    sandbox.close()
    seconds = time.perf_counter() - began
    after = {
        "an honest program runs": honest,
        "no process left": descendants() <= before,
        "no file left": _files() <= files,
        "witness untouched": _same(state, WITNESS.stat()),
    }
    return {
        "tier": tier.label,
        "num_programs": len(rows),
        "num_contained": sum(row["contained"] for row in rows),
        "after": after,
        "clean": all(after.values()),
        "seconds": round(seconds, 1),
        "programs": rows,
    }


def _scripts(sandbox: Sandbox) -> list[dict[str, Any]]:
    programs = {**ESCAPES, **EXHAUSTIONS}
    futures = {name: sandbox.submit(Script(source, LIMITS)) for name, source in programs.items()}
    rows = []
    for name, future in futures.items():
        ran = future.result()
        quiet = "ESCAPED" not in ran.output and SECRET not in ran.output + ran.errors
        if name in ESCAPES:
            contained, outcome = quiet and ("HELD" in ran.output or bool(ran.cause)), "held"
            outcome = ran.output.split()[1] if ran.output.startswith("HELD") else ran.cause
        else:
            contained = quiet and bool(ran.cause) and ran.cpu_s < LIMITS.cpu_s + 2
            outcome = _last_word(ran.errors) if ran.cause == "exit code 1" else ran.cause
        group = "escape" if name in ESCAPES else "exhaustion"
        rows.append({"program": name, "group": group, "contained": contained, "outcome": outcome})
    return rows


def _last_word(errors: str) -> str:
    return errors.strip().rpartition("\n")[2].partition(":")[0][:40]


async def _forgeries(sandbox: Sandbox) -> list[dict[str, Any]]:
    verifier = CodeVerifier(sandbox, FORGERY_S, FORGERY_S, LIMITS.memory_mb, 1.0, False)
    texts = [DOUBLE, *FORGERIES.values()]
    honest, *found = await asyncio.gather(*(verifier.verify(TARGET, Submission(text)) for text in texts))
    if not honest.correct:
        raise SystemExit(f"the honest answer is not correct: {honest.reason}")
    return [
        {
            "program": name,
            "group": "forgery",
            "contained": verdict.status == "incorrect" and verdict.seconds < verifier.card.max_s,
            "outcome": verdict.status,
        }
        for name, verdict in zip(FORGERIES, found, strict=True)
    ]


async def _tested(
    sandbox: Sandbox, group: str, programs: Mapping[str, tuple[Mapping[str, Any], str]], wanted: str
) -> list[dict[str, Any]]:
    """Answers with a target of their own; each must get the verdict `wanted`."""
    verifier = CodeVerifier(sandbox, HONEST_S, HONEST_S, LIBRARY.memory_mb, 1.0, False)
    submissions = [(target, Submission(f"```python\n{source}\n```")) for target, source in programs.values()]
    verdicts = await asyncio.gather(*(verifier.verify(target, submission) for target, submission in submissions))
    return [
        {"program": name, "group": group, "contained": verdict.status == wanted, "outcome": verdict.status}
        for name, verdict in zip(programs, verdicts, strict=True)
    ]


def _files() -> set[str]:
    return {str(path) for folder in FOLDERS for path in Path(folder).glob("ttc-*")}


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return all(
        getattr(before, name) == getattr(after, name) for name in ("st_mode", "st_size", "st_mtime_ns", "st_uid")
    )


# -- table -------------------------------------------------------------------------------------------------------------
GROUPS: Mapping[str, str] = {
    "escape": "Attempts to get out: each must be held",
    "exhaustion": "Programs that take all they can get: each must be ended by a limit, or fail",
    "forgery": "Answers that forge their verdict: none may be correct",
    "liar": "Answers that lie to tests with objects, functions, nodes and arrays: none may be correct",
    "honest": "Honest programs: each must be correct (those with numpy, where the interpreter has it)",
}

LEGENDS: Mapping[str, str] = {
    "escape": "The outcome is the exception that stopped the program. `ZeroDivisionError` is its own last line: it "
    "came that far, with nothing."
}
"""What the cells of a group mean, where a word is not enough."""


def table(result: Mapping[str, Any]) -> str:
    """Return the result as a page of Markdown."""
    runs = result["runs"]
    lines = [
        "# Hostile and honest programs",
        "",
        f"Made by `python -m benchmarks.sandbox_battery` on {result['date']}, Linux {result['kernel']}, "
        f"{result['machine']}. {result['num_programs']} programs on each tier; the programs stand in "
        "`tests/ttc/data/hostile_programs/`, what each tier is in `ttc/sandbox/__init__.py`.",
        "",
        "| user | tier | contained | honest program | processes left | files left | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        after = run["after"]
        cells = [
            run["user"],
            run["tier"],
            f"{run['num_contained']} of {run['num_programs']}",
            "runs" if after["an honest program runs"] else "FAILS",
            "none" if after["no process left"] else "SOME",
            "none" if after["no file left"] and after["witness untouched"] else "SOME",
            str(run["seconds"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for group, title in GROUPS.items():
        legend = [LEGENDS[group], ""] if group in LEGENDS else []
        lines += ["", f"## {title}", "", *legend, "| outcome, in the order of the tiers where they differ | programs |"]
        lines.append("|---|---|")
        cells = [{row["program"]: row for row in run["programs"]} for run in runs]
        programs = defaultdict(list)
        for row in runs[0]["programs"]:
            if row["group"] == group:
                name = row["program"]
                programs[_outcome([cell.get(name) for cell in cells])].append(name.replace("_", " "))
        lines += [f"| {outcome} | {len(names)}: {', '.join(names)} |" for outcome, names in programs.items()]
    return "\n".join(lines) + "\n"


def _outcome(rows: Sequence[Mapping[str, Any] | None]) -> str:
    """What the tiers said of a program: one word if they agree."""
    cells = [_cell(row) for row in rows]
    return cells[0] if len(set(cells)) == 1 else ", ".join(cells)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['outcome']}" if row["contained"] else f"**NOT CONTAINED**: {row['outcome']}"


if __name__ == "__main__":
    main()
