"""Gains of test-time compute on the packaged model: the claims of the README, with paired intervals.

    python -m benchmarks.strategies --out DIR [--limit 1000] [--seed 2026] [--save benchmarks/results/strategies.json]

Every run is an ordinary `ttc eval` in a folder of its own (so the script resumes), on held-out `arithmetic` problems:

1. search   greedy, single samples at a temperature tuned on other problems, majority of 32, tree of 16; and what the
            reward model answers itself, greedily, since it is a language model that was trained for longer
2. modes    thinking and no-think, on the easiest and on the default level
3. budgets  a thinking cap with the hand-over against hard truncation at the same cap, at seven caps
4. waits    one suppressed end of thinking against none

About 25 minutes on one core. Left out: other models and tasks; throughput is in the other benchmarks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import commit
from evals.numbers.compare import RunComparison, Side, compare_all
from evals.numbers.summary import read_summary
from evals.run_folder import read_run
from ttc.cli.cli import main as run_command

CAPS = (24, 32, 40, 48, 56, 64, 80)
"""Thinking tokens."""
TEMPERATURES = (0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Bench:
    """Where runs go and which problems they use."""

    out: Path
    limit: int
    seed: int

    def run(self, name: str, strategy: str, *options: str, seed: int | None = None, limit: int | None = None) -> Side:
        """Run (or resume) one `ttc eval` and return its records under `name`."""
        folder, picked = self.out / name, str(self.seed if seed is None else seed)
        code = run_command(
            [
                *("eval", "--strategy", strategy, "--baseline", "none", "--out", str(folder)),
                *("--limit", str(limit or self.limit), "--seed", picked, "--problems-seed", picked),
                *options,
            ]
        )
        if code != 0:
            raise SystemExit(f"{name}: ttc eval ended with exit code {code}")
        return Side(name, read_run(folder).records)

    def entry(self, name: str) -> dict[str, Any]:
        """The summary of a run."""
        return read_summary(self.out / name)[0]


def pair(first: Side, second: Side) -> RunComparison:
    """Second minus first."""
    return compare_all([first, second], seed=0)[0]


def search(bench: Bench) -> dict[str, Any]:
    """Claim 1."""
    tuning = {
        t: bench.run(f"tune-{t}", "direct", "--temperature", str(t), seed=bench.seed + 1, limit=400)
        for t in TEMPERATURES
    }
    best = max(TEMPERATURES, key=lambda t: bench.entry(tuning[t].label)["accuracy"])
    greedy = bench.run("greedy", "direct", "--temperature", "0")
    single = bench.run("single", "direct", "--temperature", str(best))
    vote = bench.run("majority-32", "majority", "--n", "32")
    tree = bench.run("tree-16", "tree", "--n", "16")
    judge = bench.run("reward-model-greedy", "direct", "--model", "ttc/nano/prm", "--temperature", "0")
    pairs = [pair(greedy, tree), pair(single, tree), pair(vote, tree), pair(greedy, vote), pair(judge, tree)]
    runs = [bench.entry(side.label) for side in (greedy, single, vote, tree, judge)]
    return {"tuned_temperature": best, "runs": runs, "pairs": [asdict(p) for p in pairs]}


def modes(bench: Bench, default_level: int) -> dict[str, Any]:
    """Claim 2."""
    found = {}
    for level in (1, default_level):
        on = bench.run(
            f"think-l{level}", "direct", "--temperature", "0", "--level", str(level), limit=_few(bench, level)
        )
        off = bench.run(
            f"no-think-l{level}",
            "direct",
            *("--temperature", "0", "--thinking", "off", "--level", str(level)),
            limit=_few(bench, level),
        )
        found[str(level)] = {"runs": [bench.entry(on.label), bench.entry(off.label)], "pair": asdict(pair(off, on))}
    return found


def _few(bench: Bench, level: int) -> int:
    """Cap a number of problems: the easiest level has fewer distinct held-out ones than a large run needs."""
    return min(bench.limit, 500) if level == 1 else bench.limit


def budgets(bench: Bench) -> list[dict[str, Any]]:
    """Claim 3."""
    rows = []
    for cap in CAPS:
        options = ("--temperature", "0", "--set", f"max_thinking={cap}")
        cut = bench.run(f"cut-{cap}", "budget_forcing", *options, "--set", "at_cap=stop")
        handed = bench.run(f"handover-{cap}", "budget_forcing", *options)
        rows.append(
            {"cap": cap, "runs": [bench.entry(cut.label), bench.entry(handed.label)], "pair": asdict(pair(cut, handed))}
        )
    return rows


def waits(bench: Bench) -> dict[str, Any]:
    """Claim 4."""
    none = bench.run("wait-0", "budget_forcing", "--temperature", "0", "--set", "num_waits=0")
    one = bench.run("wait-1", "budget_forcing", "--temperature", "0", "--set", "num_waits=1")
    return {"runs": [bench.entry(none.label), bench.entry(one.label)], "pair": asdict(pair(none, one))}


def line(name: str, comparison: dict[str, Any]) -> str:
    """One row of the printed table."""
    equal = comparison["equal_flops"]
    text = (
        f"{name:34} {100 * comparison['accuracy_first']:6.1f} {100 * comparison['accuracy_second']:6.1f}"
        f"  {100 * comparison['difference']:+6.1f} ({100 * comparison['low']:+.1f} to {100 * comparison['high']:+.1f})"
    )
    if equal:
        low, high = 100 * equal["low"], 100 * equal["high"]
        text += f"   at equal FLOPs (k={equal['k']}) {100 * equal['difference']:+.1f} ({low:+.1f} to {high:+.1f})"
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, print a table and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    from evals.tasks.arithmetic import DEFAULT_LEVEL

    bench = Bench(args.out, args.limit, args.seed)
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "level": DEFAULT_LEVEL,
        "problems": args.limit,
        "seed": args.seed,
        "search": search(bench),
        "modes": modes(bench, DEFAULT_LEVEL),
        "budgets": budgets(bench),
        "waits": waits(bench),
    }
    print(f"\n{'second against first, paired':34}  first second  difference (95 %)")
    for comparison in result["search"]["pairs"]:
        print(line(f"{comparison['second']} against {comparison['first']}", comparison))
    for level, row in result["modes"].items():
        print(line(f"level {level}: thinking against none", row["pair"]))
    for row in result["budgets"]:
        print(line(f"cap {row['cap']}: hand-over against cut", row["pair"]))
    print(line("one wait against none", result["waits"]["pair"]))
    if args.save:
        args.save.parent.mkdir(parents=True, exist_ok=True)
        args.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
