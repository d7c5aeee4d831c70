"""The panels of the dashboard: which metrics belong on one pair of axes, and how to read them.

A panel is a value; a metric ending in `*` stands for all with that beginning. A panel of which a stage logged nothing
is left out, so the same table serves reinforcement, preferences and supervised stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from train.report.chart import Bar, Series
from train.report.data import StageData

__all__ = ["PANELS", "Panel", "series_of"]


@dataclass(frozen=True, slots=True)
class Panel:
    """A title, what to look for, and the metrics; `share` when all of them are in [0, 1]."""

    title: str
    note: str
    metrics: tuple[str, ...]
    share: bool = False


PANELS: tuple[Panel, ...] = (
    Panel("Accuracy", "train rollouts are sampled; held-out answers are greedy, with 95 % intervals, and sampled",
          ("accuracy", "held_out", "held_out_sampled"), share=True),
    Panel("Reward and its parts", "a part that rises while accuracy does not is being gamed",
          ("reward", "reward_std", "part/*")),
    Panel("Groups with a signal", "a group teaches only when its rewards differ; all-fail is too hard, all-pass solved",
          ("signal_share", "all_pass", "all_fail"), share=True),
    Panel("Preferences", "share of pairs ranked right by the policy", ("pair_accuracy", "held_out_accuracy"),
          share=True),
    Panel("Margin", "of chosen over rejected, against the reference, in nats", ("margin",)),
    Panel("Chosen and rejected", "log-probabilities per answer; both falling together is the known failure of DPO",
          ("chosen_logprob", "rejected_logprob")),
    Panel("Loss", "of the update", ("loss", "held_out_loss")),
    Panel("Length", "tokens of a rollout", ("length", "length_max")),
    Panel("Form", "a truncated rollout never counts as finished",
          ("truncated", "thinking_share", "no_answer", "formed"), share=True),
    Panel("Variety", "rollouts of a group that differ; tokens inside repeated stretches",
          ("unique_share", "repetition", "other_script"), share=True),
    Panel("Entropy", "nats per token; near 0 nothing is explored any more", ("entropy",)),
    Panel("Distance from the reference", "nats per token", ("kl",)),
    Panel("Clipped tokens", "share whose gradient was cut off", ("clip_share",), share=True),
    Panel("Engine against trainer", "mean absolute difference of log-probabilities: of the rollouts, and of the probe "
          "after each push of weights", ("mismatch", "parity")),
    Panel("Gradient norm", "before clipping", ("grad_norm",)),
    Panel("Verifier", "share of verdicts that are errors or timeouts", ("verifier_errors", "verifier_timeouts"),
          share=True),
    Panel("Seconds per step", "", ("rollout_s", "update_s", "sync_s")),
    Panel("Tokens per second", "", ("rollout_tok_s", "update_tok_s")),
    Panel("Memory", "GiB, most so far", ("memory_gb",)),
)  # fmt: skip


def series_of(panel: Panel, stage: StageData) -> list[Series]:
    """The series of a panel that the stage logged."""
    logged = {name for row in stage.rows for name in row}
    names: list[str] = []
    for metric in panel.metrics:
        names += sorted(n for n in logged if n.startswith(metric[:-1])) if metric.endswith("*") else [metric]
    found = [_series(name, stage) for name in names]
    return [one for one in found if one.values()]


def _series(name: str, stage: StageData) -> Series:
    bars = _bars(name, stage)
    points = [(float(bar.step), bar.value) for bar in bars] or stage.series(name)
    return Series(name.replace("_", " "), points, bars)


def _bars(name: str, stage: StageData) -> Sequence[Bar]:
    if name != "held_out":
        return ()
    return [Bar(point.step, point.interval.value, point.interval.low, point.interval.high) for point in stage.held_out]
