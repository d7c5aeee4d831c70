"""Mutants of a standard tool (cosmic-ray) in the search code, and which of them the oracles kill.

    make mutants                                         both kinds; this one after the seeded defects
    python -m tests.oracles.tool --num 400 --json FILE   a seeded random sample of all mutants

The mutants are cosmic-ray's own: every operator at every place of `ttc/search`, `ttc/strategies` and the modules of
selection, voting and planning. A sample of them is drawn, and the share that is killed gets its exact binomial
interval. In place of the tool's runner, which starts an interpreter for each mutant, a process that has imported pytest
and nothing of this toolkit forks for each; all oracles that call the mutant's function are asked, the quickest first,
up to `--patience` seconds of them. Left out: `|` (here it joins types in annotations, which nothing evaluates), the
star of keyword parameters, which it takes for a product, and files that no oracle calls anything of.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import pathlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tests.oracles.forks import copy_packages, import_what_every_fork_needs, in_fork, run_tests, will_change
from tests.oracles.reach import Reach, Recorder, affordable, owner, read

PATHS = (
    "ttc/search",
    "ttc/strategies",
    "ttc/choosing/selection.py",
    "ttc/choosing/selection.py",
    "ttc/allocation/plan.py",
    "ttc/allocation/plan.py",
)
GOAL = 0.8
SKIPPED = ("BitOr",)


@dataclass(frozen=True)
class Change:
    """One mutant: an operator's n-th place in a file."""

    file: str
    operator: str
    occurrence: int
    line: int


def changes(root: pathlib.Path, file: str) -> Iterator[Change]:
    """Every mutant of a file, in the tool's order."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast((root / file).read_text(encoding="utf-8"))
    nodes = list(ast_nodes(tree))
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or any(word in name for word in SKIPPED):
            continue
        places = (start for node in nodes for start, _ in operator().mutation_positions(node))
        for occurrence, (line, _) in enumerate(places):
            yield Change(file, name, occurrence, line)


def mutated(code: str, change: Change) -> str | None:
    """The text of the file with the change; None where the tool finds nothing to change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    found: str | None = mutate_code(code, get_operator(change.operator)(), change.occurrence)
    return None if found == code else found


def comparable(before: str, after: str) -> bool:
    """Whether the change keeps every signature; the tool takes the bare star of keyword parameters for a product."""
    try:
        return _keywords(before) == _keywords(after)
    except SyntaxError:
        return False


def _keywords(text: str) -> list[list[str]]:
    signatures = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.arguments))
    return [[argument.arg for argument in node.kwonlyargs] for node in signatures]


def learn(copy: pathlib.Path, files: Sequence[str], save: pathlib.Path) -> Reach:
    """Run all oracles once without a mutant, unless `save` knows them, and see that each can be asked by its name."""
    if not save.is_file() and in_fork(lambda: run_tests(copy, ["tests/oracles"], [Recorder(copy, save)]), 3600) != 0:
        raise SystemExit("the oracles fail without any mutant")
    reach = read(save)
    if in_fork(lambda: run_tests(copy, ["--collect-only", *reach.seconds]), 600) != 0:
        raise SystemExit("the oracles cannot be asked by their names")
    will_change(copy, files)
    return reach


def judge(change: Change, copy: pathlib.Path, reach: Reach, patience: float) -> dict[str, Any] | None:
    """What becomes of one mutant; None where the tool finds nothing to change, or changes no operator."""
    target = copy / change.file
    before = target.read_text(encoding="utf-8")
    text = mutated(before, change)
    if text is None or not comparable(before, text):
        return None
    tests = affordable(reach.tests(change.file, owner(before, change.line)), reach, patience)
    seconds = sum(reach.seconds[test] for test in tests)
    target.write_text(text, encoding="utf-8")
    try:
        # A search that no longer ends has been noticed.
        survived = not tests or in_fork(lambda: run_tests(copy, tests), 10 + 4 * seconds) == 0
    finally:
        target.write_text(before, encoding="utf-8")
    return {**asdict(change), "asked": len(tests), "outcome": "survived" if survived else "killed"}


def explore(
    chosen: Sequence[Change],
    known: Mapping[Change, Any],
    ask: Callable[[Change], dict[str, Any] | None],
    save: Callable[[list[Any]], None],
) -> float:
    """Run the chosen mutants whose outcome is not known; print what became of each, and save after each."""
    rows: list[Any] = []
    for number, change in enumerate(chosen, start=1):
        row = known.get(change) or ask(change)
        if row is not None:
            rows.append(row)
            save(rows)
            sys.stdout.write(f"{number} {row['outcome']:9s} {change.file}:{change.line} {change.operator}\n")
            sys.stdout.flush()
    return _killed(rows)


def recall(path: pathlib.Path | None, again: bool) -> dict[Change, Any]:
    """What a saved outcome tells of mutants; with `again`, only of those that were killed."""
    if path is None or not path.is_file():
        return {}
    names = [field.name for field in fields(Change)]
    rows = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    return {Change(*(row[name] for name in names)): row for row in rows if row["outcome"] == "killed" or not again}


def interval(hits: int, num: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share (Clopper, Pearson 1934), by bisection of the binomial tails."""

    def tail(share: float, low: int, high: int) -> float:
        return sum(math.comb(num, k) * share**k * (1 - share) ** (num - k) for k in range(low, high + 1))

    def solve(rises: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if rises(middle) else (middle, high)
        return high

    lower = solve(lambda share: tail(share, hits, num) >= 0.025) if hits else 0.0
    return lower, solve(lambda share: tail(share, 0, hits) <= 0.025) if hits < num else 1.0


def _killed(rows: Sequence[Any]) -> float:
    return sum(row["outcome"] == "killed" for row in rows) / max(len(rows), 1)


def main() -> int:
    """Draw, run and report; 0 when enough are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[""], help="words of file names")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds of tests a mutant")
    parser.add_argument("--json", type=pathlib.Path, help="where to save the outcome; one that is there is continued")
    parser.add_argument("--reach", type=pathlib.Path, help="where to keep which oracle calls what, for another run")
    parser.add_argument("--again", action="store_true", help="ask again about the saved survivors")
    args = parser.parse_args()
    import_what_every_fork_needs()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder).resolve()
        copy_packages(copy)
        files = [str(file.relative_to(copy)) for path in PATHS for file in _python(copy / path)]
        reach = learn(copy, files, (args.reach or copy / "reach.json").resolve())  # tests run in the copy
        missing = sorted(set(files) - reach.files())
        asked = [file for file in files if file not in missing and any(word in file for word in args.only)]
        every = [change for file in asked for change in changes(copy, file)]
        chosen = random.Random(args.seed).sample(every, min(args.num, len(every)))

        def save(rows: list[Any]) -> None:
            low, high = interval(sum(row["outcome"] == "killed" for row in rows), len(rows))
            result = {"tool": "cosmic-ray", "seed": args.seed, "mutants_in_all": len(every), "run": len(rows)}
            result |= {"killed": _killed(rows), "low": low, "high": high, "patience_s": args.patience}
            if args.json:
                args.json.write_text(json.dumps({**result, "not_called": missing, "mutants": rows}, indent=1) + "\n")

        known = recall(args.json, args.again)
        killed = explore(chosen, known, lambda change: judge(change, copy, reach, args.patience), save)
    sys.stdout.write(f"killed {100 * killed:.0f} % of {len(chosen)} drawn from {len(every)}\n")
    return int(killed < GOAL)


def _python(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main())
