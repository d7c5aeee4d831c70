"""A run for people: the dashboard, one HTML file with a section per stage, and a few lines of plain text.

No network and no script; a content-security policy forbids both. Text of models is escaped. The page has no date,
machine name or path: the same run gives the same bytes. The text says how far each stage got, its main metrics at start
and end, and its alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.numbers.statistics import Interval
from evals.report.kit import bullets, count, document, element, text, text_table
from evals.report.lines import Bar, Series, line_chart, panel
from train.measure.retention import Kept
from train.report.data import RunData, StageData
from ttc.config.values import counted

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
    "kl_reference": "distance from the reference, nats a token",
    "mismatch": "engine against trainer, nats",
    "grad_norm": "gradient norm",
    "rollout_tok_s": "rollout tokens a second",
    "update_tok_s": "update tokens a second",
    "memory_gb": "memory, GiB",
}

STEMS: Mapping[str, str] = {
    "held_out": "held-out accuracy, greedy",
    "held_out_sampled": "held-out accuracy, sampled",
    "likelihood": "probability of held-out tokens",
    "ranked": "held-out pairs ranked right",
    "ranked_mean": "held-out pairs ranked right by the mean",
    "ranked_worst": "held-out pairs ranked right by the worst case",
    "moved": "held-out completions moved to the side of their label",
    "good": "answers right, and their revisions",
    "agreement": "pairs judged as the verifier sees them",
    "likelihood_teacher": "probability of new examples, teacher",
    "likelihood_prm": "probability of new examples, reward model",
    "likelihood_student": "probability of new examples, student",
    "steps_right": "held-out steps judged right",
    "judged_right": "held-out answers judged right",
}
"""What stages measure before and after, in words."""


def render_outcome(run: RunData) -> str:
    """What a run that ends says: the headline, and of each stage what it measured before and after, and its alarms.

    A stage that measured nothing shows all that it logged.
    """
    stages = (_stage_text(stage, _gains(stage) or compared(stage)) for stage in run.stages)
    return "\n\n".join([headline(run), "\n".join(stages)]) + "\n"


def render_summary(run: RunData) -> str:
    """The text for standard output."""
    blocks = [f"{run.recipe}, seed {run.seed}", headline(run)]
    blocks += [_stage_text(stage, compared(stage)) for stage in run.stages]
    if run.kept:
        blocks.append("\n".join(retention_lines(run.kept)))
    return "\n\n".join(blocks) + "\n"


def compared(stage: StageData) -> list[tuple[str, str, str]]:
    """(metric, at the start, at the end) of what the stage logged; both are means over a tenth of the steps."""
    rows: list[tuple[str, str, str]] = []
    if stage.held_out:
        first, last = stage.held_out[0], stage.held_out[-1]
        rows.append((f"held-out accuracy, {counted(last.num, 'problem')}", _rate(first.interval), _rate(last.interval)))
    for name, title in SHOWN.items():
        values = [value for _, value in stage.series(name)]
        if values:
            size = max(1, len(values) // 10)
            begun, ended = sum(values[:size]) / size, sum(values[-size:]) / size
            rows.append((title, _number(name, begun), _number(name, ended)))
    return rows + _gains(stage)


SHARES = {"accuracy", "pair_accuracy", "held_out_accuracy", "truncated", "thinking_share", "signal_share"}
"""Metrics that are shown in percent."""


def _number(name: str, value: float) -> str:
    """A mean in readable form: no exponents, and no minus sign on a rounded zero."""
    if name in SHARES:
        return f"{100 * value:.1f} %"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else "0"


def headline(run: RunData) -> str:
    """One sentence: what the last measured stage gained, and whether an alarm was raised."""
    measured = [(stage, ends) for stage in run.stages if (ends := _measured(stage)) is not None]
    alarms = sum(len(grouped(stage.alarms)) for stage in run.stages)
    alarm = "no alarm" if not alarms else "1 alarm" if alarms == 1 else f"{alarms} alarms"
    if not measured:
        return f"{run.recipe}: nothing was measured on held-out problems yet; {alarm}."
    stage, (what, first, last) = measured[-1]
    verb = "stays within the interval of its start" if first.low <= last.value <= first.high else _moved(first, last)
    return f"{stage.name}: {what} {verb}: {_rate(first)} before, {_rate(last)} after; {alarm}."


def _moved(first: Interval, last: Interval) -> str:
    return "rises" if last.value > first.value else "falls"


def _measured(stage: StageData) -> tuple[str, Interval, Interval] | None:
    """What was measured before and after a stage, in its own words; None without a measurement."""
    if len(stage.held_out) > 1:
        return "held-out accuracy", stage.held_out[0].interval, stage.held_out[-1].interval
    numbers = stage.result.metrics if stage.result is not None else {}
    stems = [name.removesuffix("_gain") for name in numbers if name.endswith("_gain")]
    if not stems:
        return None
    first, last = (_interval(numbers, f"{stems[0]}_{part}") for part in ("before", "after"))
    return STEMS.get(stems[0], stems[0]), first, last


def _gains(stage: StageData) -> list[tuple[str, str, str]]:
    """The stage's own measurements before and after, with the paired difference."""
    numbers = stage.result.metrics if stage.result is not None else {}
    rows = []
    for name in numbers:
        stem, end, _ = name.rpartition("_gain")
        if end and not name.endswith(("_low", "_high")):
            first, last, gain = (_interval(numbers, f"{stem}_{part}") for part in ("before", "after", "gain"))
            title = f"{STEMS.get(stem, stem)}, before and after"
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


def _stage_text(stage: StageData, rows: Sequence[tuple[str, str, str]]) -> str:
    """How far a stage got, these rows of (what, first, last), and its alarms."""
    status = "done" if stage.result is not None else "not finished"
    reason = stage.result.stopped if stage.result is not None else ""
    logged = f", {counted(len(stage.rows), 'step')} logged" if stage.rows else ""
    lines = [f"stage {stage.name}: {status}{logged}{', ' + reason if reason else ''}"]
    if not stage.rows and stage.result is not None:
        lines += [f"  {name:44} {value:.4g}" for name, value in stage.result.metrics.items()]
    lines += [f"  {what:44} {first} -> {last}" for what, first, last in rows]
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


def render_page(run: RunData) -> str:
    """Return the whole page."""
    name = f"training run · {run.recipe}, seed {run.seed}"
    intro = [element("p", text(name), class_="eyebrow"), element("h1", text(headline(run)))]
    body = element("main", *intro, render_retention(run.kept), *(_stage(stage) for stage in run.stages))
    return document(f"ttc training report: {run.recipe}, seed {run.seed}", body, "Vertical lines mark alarms.")


def _stage(stage: StageData) -> str:
    status = "done" if stage.result is not None else "going on, or interrupted"
    if stage.result is not None and stage.result.stopped:
        status = f"ended: {stage.result.stopped}"
    fields = [f"{key} {value}" for key, value in stage.fields.items() if not isinstance(value, Mapping)]
    logged = [f"{counted(len(stage.rows), 'step')} logged"] if stage.rows else []
    facts = [status, *logged, *fields]
    parts = [
        element("h2", text(stage.name)),
        bullets(facts),
        _compared(stage),
        _alarms(stage.alarms) if stage.rows else "",
        element("div", *(_panel(layout, stage) for layout in PANELS), class_="panels"),
        _samples(stage.samples),
    ]
    return element("section", *parts)


def _compared(stage: StageData) -> str:
    rows = compared(stage)
    if not rows and stage.result is not None:
        rows = [(name.replace("_", " "), "", f"{value:.4g}") for name, value in stage.result.metrics.items()]
    if not rows:
        return ""
    return element("div", text_table(("", "at the start", "at the end"), rows, "summary"), class_="card scroll")


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    groups = grouped(alarms)
    if not groups:
        return element("p", "No alarm was raised.", class_="note")
    blocks = []
    for alarm, steps in groups:
        at = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
        values = ", ".join(f"{v:.4g}" if isinstance(v, (int, float)) else str(v) for v in alarm["values"])
        head = f"{alarm['rule']}: {alarm['metric']} {values} at step {at}; action: {alarm['action']}"
        rollouts = "".join(_rollout(rollout) for rollout in alarm["rollouts"])
        blocks.append(element("div", element("b", text(head)), element("p", text(alarm["why"])), rollouts))
    return element("div", element("h3", "Alarms"), *blocks, class_="card alarms")


def _panel(layout: Panel, stage: StageData) -> str:
    series = series_of(layout, stage)
    steps = [alarm["step"] for alarm in stage.alarms if alarm["metric"] in layout.metrics]
    chart = line_chart(layout.title, series, share=layout.share, marks=steps)
    if not chart:
        return ""
    return panel(layout.title, chart, series, layout.note)


def _samples(samples: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    if not samples:
        return ""
    blocks = [
        element("details", element("summary", f"step {count(step)}"), *(_rollout(row) for row in rows))
        for step, rows in samples.items()
    ]
    note = element("p", "The first right and wrong ones of different prompts; all are in rollouts.jsonl", class_="note")
    return element("div", element("h3", "Sample rollouts"), note, *blocks, class_="card")


def _rollout(row: Mapping[str, Any]) -> str:
    good = row["status"] == "correct"
    state = element("span", text(row["status"]), class_="ok" if good else "no")
    suffix = ", cut" if row.get("truncated") else ""
    head = element(
        "div", text(row["problem"]), " ", state, text(f" {counted(row['tokens'], 'token')}{suffix}"), class_="step-head"
    )
    think = element("div", text(row["thinking"]), class_="text think") if row["thinking"] else ""
    return element("div", head, think, element("div", text(row["text"]), class_="text answer"), class_="rollout")


@dataclass(frozen=True, slots=True)
class Panel:
    """A title, what to look for, and the metrics; `share`: all of them are in [0, 1]."""

    title: str
    note: str
    metrics: tuple[str, ...]
    share: bool = False


PANELS: tuple[Panel, ...] = (
    Panel("Accuracy", "train rollouts are sampled; held-out answers are greedy, with 95 % intervals, and sampled",
          ("accuracy", "held_out", "held_out_sampled", "seen_sampled", "held_out_accepted"), share=True),
    Panel("Reward and its parts", "a part that rises while accuracy does not is being exploited",
          ("reward", "reward_std", "part/*")),
    Panel("Groups with a signal", "a group teaches only if its rewards differ; all-fail is too hard, all-pass solved",
          ("signal_share", "all_pass", "all_fail"), share=True),
    Panel("Preferences", "share of pairs ranked right by the policy", ("pair_accuracy", "held_out_accuracy"),
          share=True),
    Panel("Margin", "of chosen over rejected, as the loss compares them, in nats", ("margin",)),
    Panel("Chosen and rejected", "log-probabilities per answer; if both fall together, that is DPO's known failure",
          ("chosen_logprob", "rejected_logprob")),
    Panel("Loss", "of the update", ("loss", "held_out_loss")),
    Panel("Length", "tokens of a rollout; if only the wrong ones grow, that is not reasoning",
          ("length", "length_max", "length_right", "length_wrong")),
    Panel("Form", "a truncated rollout never counts as finished",
          ("truncated", "thinking_share", "no_answer", "formed"), share=True),
    Panel("Variety", "rollouts of a group that differ; tokens inside repeated stretches",
          ("unique_share", "repetition", "other_script"), share=True),
    Panel("Entropy", "nats per token; near 0 means no more exploration", ("entropy",)),
    Panel("Growth of length over that of accuracy", "logarithms, ten steps against the ten before",
          ("length_over_accuracy",)),
    Panel("Second thoughts", "words of self-correction in a rollout's thinking", ("self_correction",)),
    Panel("Reward by difficulty or family", "", ("family/*",)),
    Panel("Held-out accuracy by difficulty or family", "", ("held_out/*",)),
    Panel("Distance from the reference", "nats per token: of the rollouts, and of the update where it is pulled back",
          ("kl_reference", "kl")),
    Panel("Probability ratio", "share of tokens by the ratio's lower edge; all near 1 means that no clip can act",
          ("ratio/*",), share=True),
    Panel("Clipped tokens", "share whose gradient was cut off, above and below",
          ("clip_share", "clip_high", "clip_low"), share=True),
    Panel("Critic", "1 explains all of the returns, 0 nothing", ("explained_variance",)),
    Panel("Engine against trainer", "mean absolute difference of log-probabilities: of the rollouts, and of the probe "
          "after each push of weights", ("mismatch", "parity")),
    Panel("Gradient norm", "before clipping; largest, mean and least of an update's steps",
          ("grad_norm", "grad_norm_mean", "grad_norm_min")),
    Panel("Learning rate", "of the last step of an update, as the schedule and health rules have it", ("lr",)),
    Panel("Verifier", "share of verdicts that are errors or timeouts", ("verifier_errors", "verifier_timeouts"),
          share=True),
    Panel("Seconds per step", "", ("rollout_s", "update_s", "sync_s")),
    Panel("Tokens per second", "of all rollouts, drawn and judged; of those that the update learns from",
          ("rollout_tok_s", "update_tok_s")),
    Panel("Memory", "GiB, most so far", ("memory_gb",)),
)  # fmt: skip


def series_of(panel: Panel, stage: StageData) -> list[Series]:
    """The series of a panel that the stage logged."""
    logged = {name for row in stage.rows for name in row}
    names: list[str] = []
    for metric in panel.metrics:
        names += sorted(n for n in logged if n.startswith(metric[:-1])) if metric.endswith("*") else [metric]
    candidates = [_series(name, stage) for name in names]
    return [one for one in candidates if one.values()]


def _series(name: str, stage: StageData) -> Series:
    intervals = [(point.step, point.interval) for point in stage.held_out] if name == "held_out" else []
    bars = [Bar(step, interval.value, interval.low, interval.high) for step, interval in intervals]
    points = [(float(bar.step), bar.value) for bar in bars] or stage.series(name)
    return Series(name.replace("_", " "), points, bars)
