"""Print the Markdown tables of the documents from saved results.

python -m benchmarks.tables benchmarks/results/strategies.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def share(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.1f}"


def spread(row: Mapping[str, Any], name: str) -> str:
    """A value in points with its interval."""
    return f"{100 * row[name]:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"


def runs(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Accuracy and price of each run."""
    yield "| run | accuracy % (95 %) | generated + scored tokens a problem | MFLOPs a problem |"
    yield "|---|---|---|---|"
    for name, entry in zip(names, entries, strict=True):
        interval = f"{share(entry['low'])} to {share(entry['high'])}"
        price = f"{entry['tokens_per_problem']:,.0f} | {entry['flops_per_problem'] / 1e6:,.0f}"
        yield f"| {name} | {share(entry['accuracy'])} ({interval}) | {price} |"


def pairs(comparisons: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Paired differences."""
    yield "| second against first, same problems | first % | second % | difference in points (95 %) |"
    yield "|---|---|---|---|"
    for name, row in comparisons:
        accuracies = f"{share(row['accuracy_first'])} | {share(row['accuracy_second'])}"
        yield f"| {name} | {accuracies} | {spread(row, 'difference')} |"
        equal = row["equal_flops"]
        if equal:
            ratio = f"at {equal['flops_ratio']:.2f}x the FLOPs of k = {equal['k']} votes"
            yield f"| the same, {ratio} | | | {spread(equal, 'difference')} |"


def tables(result: Mapping[str, Any]) -> Iterator[str]:
    """All tables of one saved run of `benchmarks.strategies`."""
    found = result["search"]
    names = [
        "greedy",
        f"one sample, temperature {found['tuned_temperature']}",
        "majority of 32",
        "tree of 16",
        "the reward model itself, greedy",
    ]
    yield (
        f"arithmetic level {result['level']}, {result['problems']:,} held-out problems, seed {result['seed']}, "
        f"commit {result['commit']}, {result['date']}."
    )
    yield from ("", *runs(found["runs"], names), "")
    compared = [(f"{row['second']} against {row['first']}", row) for row in found["pairs"]]
    for level, row in result["modes"].items():
        compared.append((f"thinking against none, level {level}", row["pair"]))
    for row in result["budgets"]:
        compared.append((f"cap of {row['cap']} thinking tokens: hand-over against hard truncation", row["pair"]))
    compared.append(("one `Wait` against none", result["waits"]["pair"]))
    yield from pairs(compared)


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    print("\n".join(tables(json.loads(parser.parse_args().result.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
