"""The tables of `docs/measured/distillation.md` from saved results.

    python -m benchmarks.distill.table benchmarks/results/distill.json [--into docs/measured/distillation.md]

In a page, the table of a claim replaces the text between `<!-- table CLAIM -->` and `<!-- end -->`; `seeds` is the
table of all claims over training seeds. A seed whose job was refused is in both, and its claim fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.over_seeds import T95, nested, t_interval
from benchmarks.pages import placed

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
    """A Markdown table per claim, a line per seed; `run` states what was run when, `seeds` the results over seeds."""
    found = {"run": _runs(rows), "seeds": "\n".join(over_seeds(rows))}
    for claim, columns in COLUMNS.items():
        own = sorted((row for row in rows if row["claim"] == claim), key=lambda row: int(row["seed"]))
        if own:
            lines = [f"| seed | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
            lines += [_line(row, columns) for row in own]
            found[claim] = "\n".join(lines)
    return found


def _line(row: Row, columns: Mapping[str, Callable[[Row], str]]) -> str:
    if "refused" in row:
        cells = [row["refused"].partition(";")[0], *[""] * (len(columns) - 1)]
    else:
        cells = [cell(row) for cell in columns.values()]
    return f"| {row['seed']} | {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed of a figure over seeds: its mean, in points or per cent, lies above or below a bound."""

    of: str
    title: str
    figure: Callable[[Row], Sequence[float]]
    bound: float
    above: bool = True

    def line(self, rows: Sequence[Row]) -> str:
        """Mean and intervals over the seeds that have the figure, each seed's, and whether the interval clears it."""
        figures = [self.figure(row) for row in rows if "refused" not in row]
        values = [figure[0] for figure in figures]
        goal = f"{'above' if self.above else 'below'} {self.bound:g}"
        if len(values) not in T95:
            return f"| {self.title} | {goal} | – | – | {_each(values)} | **no** |"
        low, high = t_interval(values)
        again = nested([{"gain": value, "gain_low": ends[0], "gain_high": ends[1]} for value, *ends in figures])
        holds = len(values) == len(rows) and (low > self.bound if self.above else high < self.bound)
        cells = (self.title, goal, _interval((fmean(values), low, high)), f"{again[0]:+.1f} to {again[1]:+.1f}")
        return f"| {' | '.join(cells)} | {_each(values)} | {'yes' if holds else '**no**'} |"


def over_seeds(rows: Sequence[Row]) -> list[str]:
    """One line per claim: its mean over training seeds by a t interval, the nested bootstrap, and every seed's."""
    head = "| claim | goal | mean: t over seeds | nested bootstrap | by seed | holds |"
    lines = [head, "|---|---|---|---|---|---|"]
    for claim in CLAIMS:
        own = [row for row in rows if row["claim"] == claim.of]
        if own:
            lines.append(claim.line(own))
    return lines


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:+.1f}" for value in values)


def _at(*keys: str) -> Callable[[Row], Sequence[float]]:
    def figure(row: Row) -> Sequence[float]:
        value: Any = row
        for key in keys:
            value = value[key]
        return value if isinstance(value, list) else [value] * 3

    return figure


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
CLAIMS: Sequence[Claim] = (
    Claim("chain", "rejection lifts the student, greedy", _at("rejection_gain", "greedy"), 0),
    Claim("chain", "the same, sampled", _at("rejection_gain", "sampled"), 0),
    Claim("chain", "the teacher's lead over that student, sampled", _at("below_teacher", "sampled"), 5, above=False),
    Claim("search", "distilled search lifts the student, greedy", _at("gain_of_student"), 0),
    Claim("search", "share of the search's gain that the student has, %", lambda row: [100 * row["recovered"]] * 3, 50),
    Claim("modes", "obedience of the fused student, %", _at("student", "obedience"), 99),
    Claim("against_rl", "distilled before GRPO at equal FLOPs, sampled", _at("lead", "sampled"), 0),
    Claim("on_policy", "on-policy before imitation on 64 problems, greedy", _at("lead", "greedy"), 0),
    Claim("on_policy", "the same, sampled", _at("lead", "sampled"), 0),
    Claim("control", "on-policy before imitation on fresh problems, sampled", _at("lead", "sampled"), 0, above=False),
    Claim("specialists", "lead of the specialist in sums", _at("sums", "below_specialist", "greedy"), 3, above=False),
    Claim(
        "specialists", "lead of the specialist in products", _at("products", "below_specialist", "greedy"), 3,
        above=False,
    ),
)  # fmt: skip
"""What `docs/measured/distillation.md` claims; goals are those of the claims' modules."""

if __name__ == "__main__":
    main()
