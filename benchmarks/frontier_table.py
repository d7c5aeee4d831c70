"""Print the Markdown tables of a result that `benchmarks.frontier` saved.

python -m benchmarks.frontier_table benchmarks/results/frontier.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.tables import share, spread

NAMES = {"direct": "direct, greedy"}
"""Rows whose strategy alone does not say how they were drawn."""


def points(result: Mapping[str, Any]) -> Iterator[str]:
    """Every strategy with its accuracy at the tokens that it took."""
    yield "| strategy | accuracy % at tokens per problem | problems |"
    yield "|---|---|---|"
    names = dict.fromkeys(spot["strategy"] for spot in result["spots"])
    for name in names:
        line = sorted((s for s in result["spots"] if s["strategy"] == name), key=lambda spot: spot["tokens"])
        known = ", ".join(f"{share(spot['value'])} at {spot['tokens']:,.0f}" for spot in line)
        problems = " or ".join(str(number) for number in sorted({spot["problems"] for spot in line}))
        yield f"| {NAMES.get(name, name)} | {known} | {problems} |"


def regrets(result: Mapping[str, Any]) -> Iterator[str]:
    """What auto leaves, by budget and on the whole: on all problems, on those without a say, and held out."""
    held = ("regret", "regret_of_the_others", "regret_to_the_other_halfs_envelope", "regret_at_budget")
    columns = ("regret", "on the others", "to a mixture chosen on the other half", "with all tokens spent")
    yield f"| budget | tokens | auto % | {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|"
    for rows in zip(*(result[name]["budgets"] for name in held), strict=True):
        figures = " | ".join(spread(row, "value") for row in rows)
        yield f"| {rows[0]['budget']} | {rows[0]['tokens']:,.0f} | {share(rows[0]['auto'])} | {figures} |"
    yield f"| mean | | | {' | '.join(spread(result[name]['mean'], 'value') for name in held)} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    result = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    print("\n".join((*points(result), "", *regrets(result))))


if __name__ == "__main__":
    main()
