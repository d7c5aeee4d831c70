"""A run in a few lines of plain text: per stage how far it got, first against last of what matters, and its alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals.numbers.statistics import Interval
from evals.report.kit import element, text, text_table
from train.measure.retention import Kept
from train.report.data import RunData, StageData

SHOWN: Mapping[str, str] = {
    "accuracy": "accuracy of train rollouts",
    "reward": "reward",
    "pair_accuracy": "pairs ranked right",
    "held_out_accuracy": "held-out pairs ranked right",
    "margin": "margin, nats",
    "loss": "loss",
    "held_out_loss": "held-out loss",
    "length": "tokens a rollout",
    "truncated": "truncated",
    "thinking_share": "thinking",
    "signal_share": "groups with a signal",
    "entropy": "entropy, nats a token",
    "kl": "distance from the reference, nats a token",
    "mismatch": "engine against trainer, nats",
    "grad_norm": "gradient norm",
    "rollout_tok_s": "rollout tokens a second",
    "update_tok_s": "update tokens a second",
    "memory_gb": "memory, GiB",
}

_STEMS: Mapping[str, str] = {
    "held_out": "held-out accuracy, greedy",
    "held_out_sampled": "held-out accuracy, sampled",
    "likelihood": "probability of held-out tokens",
    "ranked": "held-out pairs ranked right",
    "ranked_mean": "held-out pairs ranked right by the mean",
    "ranked_worst": "held-out pairs ranked right by the worst case",
    "steps_right": "held-out steps judged right",
    "judged_right": "held-out answers judged right",
}


def render_summary(run: RunData) -> str:
    """The text for standard output."""
    blocks = [f"{run.recipe}, seed {run.seed}"]
    blocks += [_stage(stage) for stage in run.stages]
    if run.kept:
        blocks.append("\n".join(retention_lines(run.kept)))
    return "\n\n".join(blocks) + "\n"


def compared(stage: StageData) -> list[tuple[str, str, str]]:
    """(what, at the start, at the end) of what the stage logged; ends are means over a tenth of the steps."""
    rows: list[tuple[str, str, str]] = []
    if stage.held_out:
        first, last = stage.held_out[0], stage.held_out[-1]
        rows.append((f"held-out accuracy, {last.num} problems", _rate(first.interval), _rate(last.interval)))
    for name, title in SHOWN.items():
        values = [value for _, value in stage.series(name)]
        if values:
            size = max(1, len(values) // 10)
            rows.append((title, f"{sum(values[:size]) / size:.4g}", f"{sum(values[-size:]) / size:.4g}"))
    return rows + _gains(stage)


def _gains(stage: StageData) -> list[tuple[str, str, str]]:
    """What the stage measured of itself before and after, with the paired difference."""
    numbers = stage.result.metrics if stage.result is not None else {}
    rows = []
    for name in numbers:
        stem, end, _ = name.rpartition("_gain")
        if end and not name.endswith(("_low", "_high")):
            first, last, gain = (_interval(numbers, f"{stem}_{part}") for part in ("before", "after", "gain"))
            title = f"{_STEMS.get(stem, stem)}, before and after"
            rows.append((title, _rate(first), f"{_rate(last)}, gain {_rate(gain)}"))
    return rows


def _interval(numbers: Mapping[str, float], name: str) -> Interval:
    return Interval(numbers[name], numbers[f"{name}_low"], numbers[f"{name}_high"])


def _rate(interval: Interval) -> str:
    return f"{100 * interval.value:.1f} % ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def grouped(alarms: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[int]]]:
    """The last alarm of each rule, and the steps at which it was raised."""
    steps: dict[str, dict[int, Mapping[str, Any]]] = {}
    for alarm in alarms:
        steps.setdefault(alarm["rule"], {})[alarm["step"]] = alarm
    return [(by_step[max(by_step)], sorted(by_step)) for by_step in steps.values()]


def _stage(stage: StageData) -> str:
    status = "done" if stage.result is not None else "not finished"
    reason = stage.result.stopped if stage.result is not None else ""
    logged = f", {len(stage.rows)} steps logged" if stage.rows else ""
    lines = [f"stage {stage.name}: {status}{logged}{', ' + reason if reason else ''}"]
    if not stage.rows and stage.result is not None:
        lines += [f"  {name:44} {value:.4g}" for name, value in stage.result.metrics.items()]
    lines += [f"  {what:44} {first} -> {last}" for what, first, last in compared(stage)]
    if not stage.rows:
        return "\n".join(lines)
    groups = grouped(stage.alarms)
    lines.append(f"  alarms: {len(groups) or 'none'}")
    for alarm, steps in groups:
        at = ", ".join(map(str, steps[:5])) + (", .." if len(steps) > 5 else "")
        lines.append(f"    {alarm['rule']} at step {at} -> {alarm['action']}: {alarm['why']}")
    return "\n".join(lines)


_NOTE = (
    "Sampled accuracy in % of every stage's model on every held-out task. In brackets, against the model before: the "
    "change with its 95 % interval, and the share of problems it wins, ties counting one half."
)


def retention_lines(rows: Sequence[Kept]) -> list[str]:
    """The table in plain text; no line without rows."""
    if not rows:
        return []
    lines = ["retention: sampled accuracy in % (change against the model before, 95 % interval; win rate over it)"]
    for task in _tasks(rows):
        lines.append(f"  {task}")
        lines += [f"    {row.stage:18} {_cell(row)}" for row in rows if row.task == task]
    return lines


def render_retention(rows: Sequence[Kept]) -> str:
    """The table as HTML; empty without rows."""
    if not rows:
        return ""
    tasks = _tasks(rows)
    cells = {(row.stage, row.task): _cell(row) for row in rows}
    stages = dict.fromkeys(row.stage for row in rows)
    body = [(stage, *(cells.get((stage, task), "") for task in tasks)) for stage in stages]
    card = element(
        "div", text_table(("after", *tasks), body), element("p", text(_NOTE), class_="note"), class_="card scroll"
    )
    return element("section", element("h2", "Retention"), card)


def _tasks(rows: Sequence[Kept]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def _cell(row: Kept) -> str:
    value = f"{100 * row.sampled.value:.1f}"
    if row.change is None or row.wins is None:
        return value
    change = f"{100 * row.change.value:+.1f}, {100 * row.change.low:+.1f} to {100 * row.change.high:+.1f}"
    return f"{value} ({change}; wins {100 * row.wins.value:.1f})"
