"""Every strategy on vLLM and on the embedded engine: the same model, the same problems, the same accuracy?

    VLLM_PYTHON -m benchmarks.vllm_accuracy [--problems 150] [--level 3] [--save FILE.json] [--page FILE.md]

vLLM draws without seeds, as in a command without `--seed`. Accuracy is compared, not tokens: paired by problem, with a
95 % interval of the difference and the exact test of `ttc compare`, which counts the problems of a cluster as one
observation, adjusted over the strategies (Holm 1979). Strategies and their parameters are those of the conformance
suite. Left out: other models; the embedded engine is the reference, checked on its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import placed
from benchmarks.vllm_tree import facts
from evals.numbers.statistics import holm, paired_test
from evals.task import Item
from evals.tasks.arithmetic import arithmetic
from tests.ttc import conformance as suite
from ttc import answers
from ttc.core import Engine
from ttc.engines.embedded.engine import embedded
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import VllmOptions

MAX_TOKENS = 200
IN_FLIGHT = 64


async def right(engine: Engine, case: suite.Case, items: Sequence[Item]) -> list[int]:
    """1 for every problem that is answered correctly, in order."""
    found = await suite.solve_in_order(engine, case, [item.problem for item in items], IN_FLIGHT, MAX_TOKENS)
    return [_correct(found[item.problem.id].final, item) for item in items]


def _correct(final: str | None, item: Item) -> int:
    kind = item.problem.kind
    return int(final is not None and answers.key(final, kind) == answers.key(str(item.target), kind))


async def measure(cases: Mapping[str, suite.Case], problems: int, level: int, seed: int) -> list[dict[str, Any]]:
    """One row per strategy: both accuracies, the difference with its interval, and the adjusted p-value."""
    items = list(arithmetic(level=level).items(problems, seed))
    clusters = [item.group for item in items]
    reference, engine = embedded(), vllm(None, VllmOptions(max_context=1024, seeded=False))
    rows: list[dict[str, Any]] = []
    try:
        for name, case in cases.items():
            first, second = await right(reference, case, items), await right(engine, case, items)
            rows.append(compared(name, first, second, clusters))
    finally:
        await engine.close()
        await reference.close()
    adjusted = holm([row["p"] for row in rows])
    return [{**row, "p_adjusted": value} for row, value in zip(rows, adjusted, strict=True)]


def compared(name: str, first: Sequence[int], second: Sequence[int], clusters: Sequence[Hashable]) -> dict[str, Any]:
    """The row of a strategy from 1 or 0 for every problem, on the embedded engine and on vLLM."""
    tested = paired_test(first, second, clusters, pairs=len(clusters))
    return {
        "strategy": name,
        "embedded": sum(first) / len(first),
        "vllm": sum(second) / len(second),
        "difference": tested.interval.value,
        "low": tested.interval.low,
        "high": tested.interval.high,
        "p": tested.p_value,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per strategy and optionally save them with their conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--page", type=Path, help="the page to put the table into")
    args = parser.parse_args(arguments)
    rows = asyncio.run(measure(suite.cases("embedded"), args.problems, args.level, args.seed))
    for row in rows:
        print(
            f"{row['strategy']:<32} embedded {100 * row['embedded']:5.1f} %  vllm {100 * row['vllm']:5.1f} %  "
            f"{100 * row['difference']:+5.1f} ({100 * row['low']:+5.1f} to {100 * row['high']:+5.1f})  "
            f"p {row['p']:.2f}, adjusted {row['p_adjusted']:.2f}"
        )
    if args.save:
        conditions = {"problems": args.problems, "level": args.level, "seed": args.seed}
        args.save.write_text(json.dumps({**facts(), **conditions, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if args.page:
        page = args.page.read_text(encoding="utf-8")
        args.page.write_text(placed(page, {"accuracy": table(rows)}), encoding="utf-8")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each strategy, and below them how many differ."""
    lines = ["| strategy | embedded % | vLLM % | difference in points (95 %) |", "|---|---|---|---|"]
    for row in rows:
        own, other, by, low, high = (100 * row[key] for key in ("embedded", "vllm", "difference", "low", "high"))
        lines.append(f"| {row['strategy']} | {own:.1f} | {other:.1f} | {by:+.1f} ({low:+.1f} to {high:+.1f}) |")
    outside = [row["strategy"] for row in rows if row["low"] > 0 or row["high"] < 0]
    least = min(row["p_adjusted"] for row in rows)
    names = f" (not: {', '.join(outside)})" if outside else ""
    share = f"The interval holds zero for {len(rows) - len(outside)} of {len(rows)}{names}"
    return "\n".join([*lines, "", f"{share}; the least p, adjusted for so many tests, is {least:.2f}."])


if __name__ == "__main__":
    main()
