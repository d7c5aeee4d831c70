"""Search under a small budget: `tree` against `majority` at equal budgets of tokens, paired.

    python -m benchmarks.tight_budgets --out DIR [--limit 1200] [--seed 3107] [--budgets 150 300] [--save FILE]

Every run is an ordinary `ttc eval` on held-out `arithmetic` problems of the default level, in a folder of its own, so
the script resumes. The budget is per problem and counts generated and scored tokens; `majority` may draw as many
samples as fit. Budgets were fixed beforehand. About 90 minutes on one core, most of it for the two largest. Left out:
budgets in calls, FLOPs and seconds, which are tested on the simulated reasoner; other models.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import commit
from benchmarks.strategies import Bench, pair
from evals.numbers.compare import Side

BUDGETS = (150, 300, 600, 1200, 2400)
"""Tokens a problem."""


def measure(bench: Bench, tokens: int, n: int) -> dict[str, Any]:
    """Both strategies at one budget."""
    budget = ("--budget", f"tokens={tokens}", "--concurrency", "256")
    vote = bench.run(f"majority-{tokens}", "majority", "--n", "64", *budget)
    tree = bench.run(f"tree-{tokens}", "tree", "--n", str(n), *budget)
    return {"tokens": tokens, "pair": asdict(pair(vote, tree)), "majority": spending(vote), "tree": spending(tree)}


def spending(side: Side) -> dict[str, float]:
    """What a run spent a problem, the most that one problem took, and how many were left without an answer."""
    answers = [record.answer for record in side.records if record.answer is not None]
    used = [answer.usage.tokens for answer in answers]
    return {
        "mean_tokens": sum(used) / len(used),
        "most_tokens": max(used),
        "unanswered": sum(answer.final is None for answer in answers) / len(answers),
    }


def line(row: dict[str, Any]) -> str:
    """One row of the printed table."""
    both = row["pair"]
    return (
        f"{row['tokens']:6} {100 * both['accuracy_first']:8.1f} {100 * both['accuracy_second']:6.1f} "
        f"{100 * both['difference']:+6.1f} ({100 * both['low']:+.1f} to {100 * both['high']:+.1f}) "
        f"{row['majority']['mean_tokens']:8.0f} {row['tree']['mean_tokens']:6.0f} "
        f"{100 * row['majority']['unanswered']:6.1f} {100 * row['tree']['unanswered']:5.1f}"
    )


def main() -> None:
    """Run, print the table, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--limit", type=int, default=1200, help="problems")
    parser.add_argument("--seed", type=int, default=3107, help="seed of problems and draws")
    parser.add_argument("--n", type=int, default=16, help="paths of the tree")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="tokens a problem, each a row")
    parser.add_argument("--save", type=Path, help="where the numbers go")
    args = parser.parse_args()
    bench = Bench(args.out, args.limit, args.seed)
    rows = [measure(bench, tokens, args.n) for tokens in args.budgets]
    print("budget majority   tree  tree - majority (95 %)   tokens: majority, tree   unanswered %")
    for row in rows:
        print(line(row))
    if args.save:
        conditions = {
            "model": "packaged teacher, scored by the packaged reward model",
            "task": "arithmetic, default level, held out",
            "problems": args.limit,
            "seed": args.seed,
            "n": args.n,
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "machine": platform.machine(),
        }
        args.save.write_text(json.dumps({**conditions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
