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


def points(result: Mapping[str, Any]) -> Iterator[str]:
    """Every strategy with its accuracy at the tokens that it took."""
    yield "| strategy | accuracy % at so many tokens a problem | problems |"
    yield "|---|---|---|"
    names = dict.fromkeys(spot["strategy"] for spot in result["spots"])
    for name in names:
        line = sorted((s for s in result["spots"] if s["strategy"] == name), key=lambda spot: spot["tokens"])
        known = ", ".join(f"{share(spot['value'])} at {spot['tokens']:,.0f}" for spot in line)
        yield f"| {name} | {known} | {line[0]['problems']} |"


def regrets(result: Mapping[str, Any]) -> Iterator[str]:
    """What auto leaves, by budget and on the whole."""
    yield "| budget | tokens | auto % | below the best mixture on the same problems | below the one chosen on others |"
    yield "|---|---|---|---|---|"
    same, other = result["regret"], result["regret_to_the_other_halfs_envelope"]
    for row, beside in zip(same["budgets"], other["budgets"], strict=True):
        figures = f"{row['tokens']:,.0f} | {share(row['auto'])} | {spread(row, 'value')} | {spread(beside, 'value')}"
        yield f"| {row['budget']} | {figures} |"
    yield f"| mean | | | {spread(same['mean'], 'value')} | {spread(other['mean'], 'value')} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    result = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    print("\n".join((*points(result), "", *regrets(result))))


if __name__ == "__main__":
    main()
