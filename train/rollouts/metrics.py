"""What is measured at every step, from the rollouts themselves; the update and the engine add their own numbers.

Shares are in [0, 1], lengths in tokens, times in seconds. A group has a signal when its rewards differ; without one it
teaches nothing, and whether it is all-pass or all-fail says which way the difficulty is off.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from train.base.rollout import Rollout
from train.shaping.repetition import repeated_share

__all__ = ["by_group", "has_signal", "rollout_metrics"]

_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def by_group(rollouts: Sequence[Rollout]) -> dict[int, list[Rollout]]:
    """Rollouts by group, in order."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


def has_signal(group: Sequence[Rollout]) -> bool:
    """Whether the rewards of a group, those of steps among them, differ by more than rounding."""
    known = [r.reward + sum(value for _, value in r.step_rewards) for r in group if r.reward is not None]
    return len(known) > 1 and max(known) - min(known) > 1e-6


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of one step's rollouts, zero-signal groups included."""
    groups = list(by_group(rollouts).values())
    judged = [rollout for rollout in rollouts if rollout.verdict is not None]
    right = [rollout.verdict is not None and rollout.verdict.correct for rollout in rollouts]
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    statuses = [rollout.verdict.status for rollout in judged if rollout.verdict is not None]
    passed = [[r.verdict is not None and r.verdict.correct for r in group] for group in groups]
    found = {
        "accuracy": _mean(right),
        "reward": _mean(rewards),
        "reward_std": statistics.pstdev(rewards) if rewards else math.nan,
        "signal_share": _mean([has_signal(group) for group in groups if len(group) > 1]),
        "all_pass": _mean([all(group) for group in passed]),
        "all_fail": _mean([not any(group) for group in passed]),
        "length": _mean(lengths),
        "length_max": float(max(lengths, default=0)),
        "truncated": _mean([rollout.truncated for rollout in rollouts]),
        "thinking_share": _mean([bool(rollout.thinking.strip()) for rollout in rollouts]),
        "no_answer": _mean([status in ("no_answer", "unparseable") for status in statuses]),
        "formed": _mean([rollout.final is not None for rollout in rollouts]),
        "unique_share": _mean([len({r.token_ids for r in group}) / len(group) for group in groups]),
        "repetition": _mean([repeated_share(rollout.token_ids, 4) for rollout in rollouts]),
        "other_script": _mean([bool(_OTHER_SCRIPT.search(rollout.thinking)) for rollout in rollouts]),
        "verifier_errors": _mean([status == "error" for status in statuses]),
        "verifier_timeouts": _mean([status in ("timeout", "limit") for status in statuses]),
    }
    names = {name for rollout in rollouts for name in rollout.parts}
    parts = {f"part/{name}": _mean([r.parts[name] for r in rollouts if name in r.parts]) for name in sorted(names)}
    return {**found, **parts}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
