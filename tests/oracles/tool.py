"""Mutants of a standard tool (cosmic-ray) in the search code, and which of them the oracles kill.

    make mutants                                         both kinds; this one after the seeded defects
    python -m tests.oracles.tool --num 400 --json FILE   a seeded random sample of all mutants

The mutants are cosmic-ray's own: every operator at every place of `ttc/search`, `ttc/strategies`, `ttc/selection.py`,
`ttc/voting.py` and `ttc/planning.py`. A sample of them is drawn, and the share that is killed gets its exact binomial
interval. In place of the tool's runner, which starts an interpreter for each mutant, a process that has imported pytest
and nothing of this toolkit forks for each; the oracles asked are those that `mutants.toml` names for the file. Left
out: `|` (here it joins types in annotations, which nothing evaluates), and files that no oracle is about.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tests.oracles.mutants import ROOT, load

PATHS = ("ttc/search", "ttc/strategies", "ttc/selection.py", "ttc/voting.py", "ttc/planning.py")
TESTS = {"ttc/planning.py": {"allocation"}, "ttc/strategies/auto.py": {"allocation"}}
GOAL, TIMEOUT_S, BROKEN = 0.8, 600, 99
SKIPPED = ("BitOr",)


@dataclass(frozen=True)
class Change:
    """One mutant: an operator's n-th place in a file."""

    file: str
    operator: str
    occurrence: int
    line: int


def changes(file: str) -> Iterator[Change]:
    """Every mutant of a file, in the tool's order."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast((ROOT / file).read_text(encoding="utf-8"))
    nodes = list(ast_nodes(tree))
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or any(word in name for word in SKIPPED):
            continue
        places = (start for node in nodes for start, _ in operator().mutation_positions(node))
        for occurrence, (line, _) in enumerate(places):
            yield Change(file, name, occurrence, line)


def mutated(change: Change) -> str | None:
    """The text of the file with the change; None where the tool finds nothing to change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (ROOT / change.file).read_text(encoding="utf-8")
    found: str | None = mutate_code(code, get_operator(change.operator)(), change.occurrence)
    return None if found == code else found


def asked() -> dict[str, list[str]]:
    """The oracle files to ask about each source file."""
    tests: dict[str, set[str]] = {name: set(more) for name, more in TESTS.items()}
    for mutant in load():
        tests.setdefault(mutant.file, set()).update(mutant.tests.split())
    return {file: [f"tests/oracles/test_{name}.py" for name in sorted(names)] for file, names in tests.items()}


def passes(copy: pathlib.Path, tests: list[str]) -> bool:
    """Whether the tests pass in the copy; in a fork, so that every mutant meets fresh modules."""
    child = os.fork()
    if child == 0:
        try:
            _run_tests(copy, tests)
        finally:  # whatever happens, the child must not go on as its parent
            os._exit(BROKEN)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == BROKEN:
                raise RuntimeError(f"the tests could not be started: {' '.join(tests)}")
            return code == 0
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False  # a search that no longer ends has been noticed


def _run_tests(copy: pathlib.Path, tests: list[str]) -> None:
    import pytest

    os.chdir(copy)
    sys.path.insert(0, str(copy))
    for name in [name for name in sys.modules if name.split(".")[0] in ("ttc", "evals", "tests")]:
        del sys.modules[name]
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    early = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis was imported before pytest could rewrite it
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", early, "--no-header", *tests])))


def explore(chosen: list[Change], copy: pathlib.Path, save: pathlib.Path | None, total: int) -> float:
    """Run the chosen mutants; print and save what became of each."""
    tests, rows = asked(), []
    if broken := [file for file in {change.file for change in chosen} if not passes(copy, tests[file])]:
        raise SystemExit(f"the tests of {', '.join(broken)} fail without any mutant")
    for number, change in enumerate(chosen, start=1):
        text = mutated(change)
        if text is None:
            continue
        target = copy / change.file
        before = target.read_text(encoding="utf-8")
        target.write_text(text, encoding="utf-8")
        try:
            outcome = "survived" if passes(copy, tests[change.file]) else "killed"
        finally:
            target.write_text(before, encoding="utf-8")
        rows.append({**asdict(change), "outcome": outcome})
        killed = sum(row["outcome"] == "killed" for row in rows)
        sys.stdout.write(f"{number} {outcome:9s} {change.file}:{change.line} {change.operator}\n")
        sys.stdout.flush()
        if save:
            low, high = interval(killed, len(rows))
            result = {"tool": "cosmic-ray", "mutants_in_all": total, "run": len(rows), "killed": killed / len(rows)}
            save.write_text(json.dumps({**result, "low": low, "high": high, "mutants": rows}, indent=1) + "\n")
    return sum(row["outcome"] == "killed" for row in rows) / max(len(rows), 1)


def interval(hits: int, num: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    z, share = 1.96, hits / num
    middle, reach = share + z**2 / (2 * num), z * (share * (1 - share) / num + z**2 / (4 * num**2)) ** 0.5
    return (middle - reach) / (1 + z**2 / num), (middle + reach) / (1 + z**2 / num)


def main() -> int:
    """Draw, run and report; 0 when enough are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[""], help="words of file names")
    parser.add_argument("--json", type=pathlib.Path, help="where to save the outcome")
    args = parser.parse_args()
    import hypothesis  # noqa: F401  what every fork needs, but nothing of the toolkit
    import numpy  # noqa: F401
    import pytest  # noqa: F401

    sys.dont_write_bytecode = True
    known = asked()
    files = [str(file.relative_to(ROOT)) for path in PATHS for file in _python(ROOT / path)]
    asked_for = [file for file in files if file in known and any(word in file for word in args.only)]
    every = [change for file in asked_for for change in changes(file)]
    chosen = random.Random(args.seed).sample(every, min(args.num, len(every)))
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for name in ("ttc", "evals", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        killed = explore(chosen, copy, args.json, len(every))
    sys.stdout.write(f"killed {100 * killed:.0f} % of {len(chosen)} drawn from {len(every)}\n")
    return int(killed < GOAL)


def _python(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main())
