"""The tables of `distill/README.md` from saved results.

    python -m benchmarks.distill.table benchmarks/results/distill.json [--into distill/README.md]

In a page, the table of a claim takes the place of what stands between `<!-- table CLAIM -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "tables"]

Row = Mapping[str, Any]


def main() -> None:
    """Print one table per claim that was measured, or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--into", type=Path, metavar="PAGE", help="the page whose tables are replaced")
    options = parser.parse_args()
    found = tables(json.loads(options.result.read_text(encoding="utf-8"))["rows"])
    if options.into is None:
        print("\n\n".join(f"{claim}\n\n{table}" for claim, table in found.items()))
    else:
        options.into.write_text(placed(options.into.read_text(encoding="utf-8"), found), encoding="utf-8")


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """A Markdown table per claim, a line per seed; `run` says what was run when."""
    found = {"run": _runs(rows)}
    for claim, columns in COLUMNS.items():
        own = sorted((row for row in rows if row["claim"] == claim), key=lambda row: int(row["seed"]))
        if own:
            lines = [f"| seed | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
            lines += [f"| {row['seed']} | {' | '.join(cell(row) for cell in columns.values())} |" for row in own]
            found[claim] = "\n".join(lines)
    return found


def placed(page: str, found: Mapping[str, str]) -> str:
    """The page with these tables in their places; raises KeyError for a place that nothing was measured for."""
    place = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda match: f"{match[1]}{found[match[2]]}\n{match[3]}", page)


def _runs(rows: Sequence[Row]) -> str:
    """Which code measured which claims on which seeds, a line per run."""
    runs: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        runs.setdefault((row["date"], row["commit"]), {}).setdefault(row["claim"], []).append(str(row["seed"]))
    lines = []
    for (date, commit), claims in runs.items():
        by_seeds: dict[str, list[str]] = {}
        for claim, seeds in claims.items():
            by_seeds.setdefault(" ".join(seeds), []).append(claim)
        told = "; ".join(f"{', '.join(sorted(own))} on {seeds}" for seeds, own in by_seeds.items())
        lines.append(f"- {date}, commit {commit}: {told}.")
    return "\n".join(lines)


def _both(*keys: str) -> Callable[[Row], str]:
    """Greedy / sampled of one model, in per cent with the half width of the wider side."""

    def cell(row: Row) -> str:
        for key in keys:
            row = row[key]
        return f"{_value(row['greedy'])} / {_value(row['sampled'])}"

    return cell


def _gap(*keys: str) -> Callable[[Row], str]:
    """Greedy / sampled of a paired difference in points, with its interval."""

    def cell(row: Row) -> str:
        for key in keys:
            row = row[key]
        return f"{_interval(row['greedy'])} / {_interval(row['sampled'])}"

    return cell


def _value(found: Sequence[float]) -> str:
    return f"{found[0]:.1f} ± {max(found[0] - found[1], found[2] - found[0]):.1f}"


def _interval(found: Sequence[float]) -> str:
    return f"{found[0]:+.1f} ({found[1]:+.1f} to {found[2]:+.1f})"


def _plain(show: Callable[[Row], object]) -> Callable[[Row], str]:
    return lambda row: str(show(row))


_ARMS = {
    "start": _both("start"),
    "imitation": _both("imitation"),
    "on-policy": _both("on_policy"),
    "lead of on-policy": _gap("lead"),
    "trained tokens": _plain(lambda row: f"{row['trained_tokens']['on_policy']:,}"),
    "problems": _plain(
        lambda row: f"{min(row['problems']['imitation'], row['imitated_rows']):,}, {row['problems']['on_policy']:,}"
    ),
    "CPU-s": _plain(lambda row: f"{row['cpu_seconds']['imitation']:.0f}, {row['cpu_seconds']['on_policy']:.0f}"),
}
COLUMNS: Mapping[str, Mapping[str, Callable[[Row], str]]] = {
    "chain": {
        "GRPO, sampled": _plain(
            lambda row: f"{row['grpo']['held_out_sampled_before']} → {row['grpo']['held_out_sampled_after']}"
        ),
        "teacher": _both("teacher"),
        "start": _both("start"),
        "rejection": _both("rejection"),
        "teacher's lead": _gap("below_teacher"),
        "CPU-s": _plain(lambda row: f"{sum(row['cpu_seconds'].values()):.0f}"),
    },
    "on_policy": _ARMS,
    "control": _ARMS,
    "search": {
        "greedy": _plain(lambda row: _value(row["start"]["greedy"])),
        "best of 16": _plain(lambda row: _value(row["teacher"]["greedy"])),
        "distilled, greedy": _plain(lambda row: _value(row["student"]["greedy"])),
        "recovered": _plain(lambda row: f"{100 * row['recovered']:.0f} %"),
        "CPU-s": _plain(lambda row: f"{sum(row['cpu_seconds'].values()):.0f}"),
    },
    "modes": {
        "obedience before": _plain(lambda row: row["start"]["obedience"]),
        "after": _plain(lambda row: row["student"]["obedience"]),
        "accuracy thinking / not": _plain(
            lambda row: f"{row['student']['accuracy_think']} / {row['student']['accuracy_no_think']}"
        ),
    },
    "specialists": {
        f"{domain}: {what}": cell
        for domain, other in (("sums", "products"), ("products", "sums"))
        for what, cell in (
            ("specialist", _both(domain, domain)),
            ("other one", _both(domain, other)),
            ("student", _both(domain, "student")),
            ("specialist's lead", _gap(domain, "below_specialist")),
        )
    },
    "against_rl": {
        "distilled": _both("distilled"),
        "GRPO": _both("reinforced"),
        "lead of distilled": _gap("lead"),
        "GFLOPs each": _plain(lambda row: f"{row['flops']['distilled'] / 1e9:.0f}"),
        "CPU-s": _plain(lambda row: f"{row['cpu_seconds']['distilled']:.0f}, {row['cpu_seconds']['reinforced']:.0f}"),
    },
    "self_test": {
        kind: _plain(lambda row, kind=kind: f"{row['nats_per_token'][kind]:.1e}")  # type: ignore[misc]
        for kind in ("reverse", "forward", "jsd", "sampled")
    },
    "used": {
        "ttc eval": _plain(lambda row: row["ttc_eval"]),
        "ttc serve": _plain(lambda row: f"{row['ttc_serve']['right']} of {row['ttc_serve']['asked']} right"),
    },
}


if __name__ == "__main__":
    main()
