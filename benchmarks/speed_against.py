"""Is this checkout slower than another? CPU seconds of the engine, a search and the controller.

    python -m benchmarks.speed_against OTHER --save benchmarks/results/speed_against.json

The same commands run alternately in both checkouts, `--rounds` times, and each goes first in turn; reported are
medians, and the range of the ratio over neighbouring runs. `engine`: 16 samples each of 12 problems on the packaged
model. `search`: a tree of 16 with the packaged reward model. `controller`: a tree of 64 over 40 problems on the
simulated engine, which takes no time. The start of the process (the same command for one problem) is subtracted from
each. Left out: wall time, which other work on the machine would change; the server (`serve_overhead`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

SEED = ["--seed", "3107"]
EVALUATIONS: Mapping[str, tuple[int, list[str]]] = {
    "engine": (12, ["--strategy", "majority", "--n", "16"]),
    "search": (12, ["--strategy", "tree", "--n", "16"]),
    "controller": (40, ["--engine", "simulated", "--scorer", "simulated", "--strategy", "tree", "--n", "64"]),
}
"""Name -> number of problems, and options of `ttc eval`."""


def evaluate(root: Path, limit: int, options: list[str]) -> float:
    """Processor seconds of one `ttc eval` of the checkout, its own processes included."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "ttc", "eval", *options, *SEED, "--limit", str(limit), "--out", f"{folder}/run"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *command], cwd=root, env=_environment(root), check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _without_start(root: Path, limit: int, options: list[str]) -> float:
    return evaluate(root, limit, options) - evaluate(root, 1, options)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def compare(ours: Path, other: Path, rounds: int, only: Sequence[str]) -> dict[str, dict[str, object]]:
    """Name -> medians of both and the ratio of ours to the other's, with its range."""
    tasks: dict[str, Callable[[Path], float]] = {
        name: partial(_without_start, limit=limit, options=options)
        for name, (limit, options) in EVALUATIONS.items()
        if name in only
    }
    table: dict[str, dict[str, object]] = {}
    for name, task in tasks.items():
        pairs: list[tuple[float, float]] = []
        for number in range(rounds):
            order = (ours, other) if number % 2 else (other, ours)
            values = {root: task(root) for root in order}
            pairs.append((values[ours], values[other]))
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        table[name] = {
            "ours": round(statistics.median(mine for mine, _ in pairs), 3),
            "other": round(statistics.median(theirs for _, theirs in pairs), 3),
            "ratio": round(statistics.median(ratios), 3),
            "range": [round(ratios[0], 3), round(ratios[-1], 3)],
            "commits": [_commit(ours), _commit(other)],
            "rounds": rounds,
        }
        print(f"{name:12} {json.dumps(table[name])}", flush=True)
    return table


def _commit(root: Path) -> str:
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(EVALUATIONS), default=list(EVALUATIONS))
    parser.add_argument("--save", type=Path, help="where the numbers go; those of other tasks stay")
    args = parser.parse_args()
    table = compare(Path().resolve(), args.other.resolve(), args.rounds, args.only)
    if args.save:
        kept = json.loads(args.save.read_text(encoding="utf-8")) if args.save.exists() else {}
        args.save.write_text(json.dumps({**kept, **table}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
