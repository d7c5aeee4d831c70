"""Alarms on disk: one JSON line each, with the offending rollouts cut short, for the report of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from train.base.health import Alarm
from train.base.rollout import Rollout
from ttc.records import LineFile

__all__ = ["AlarmFile", "excerpt"]

_SHOWN = 600
"""Most characters of a rollout's thinking, and of its answer, that are kept."""


class AlarmFile:
    """Appends alarms as they are raised."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)

    def append(self, alarm: Alarm) -> None:
        """Write one alarm; a value that is not finite is written as text."""
        rule = alarm.rule
        row = {
            "step": alarm.step,
            "rule": rule.name,
            "metric": rule.metric,
            "threshold": rule.threshold,
            "action": rule.action,
            "why": rule.why,
            "values": [value if math.isfinite(value) else str(value) for value in alarm.values],
            "rollouts": [excerpt(rollout) for rollout in alarm.rollouts],
        }
        self._file.write(row)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def excerpt(rollout: Rollout) -> dict[str, Any]:
    """What a reader needs to see of a rollout, as JSON."""
    return {
        "problem": rollout.problem_id,
        "path": list(rollout.path),
        "status": rollout.verdict.status if rollout.verdict else "unjudged",
        "reward": rollout.reward,
        "tokens": len(rollout.token_ids),
        "truncated": rollout.truncated,
        "thinking": rollout.thinking[:_SHOWN],
        "text": rollout.text[:_SHOWN],
    }
