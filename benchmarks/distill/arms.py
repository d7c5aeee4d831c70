"""On-policy distillation against imitation of verified traces, at the same trained tokens.

Both arms start from one student and see the same problems. Few: 64 of them, from a student that has already imitated
one verified answer to each. Passing over the same answers again teaches imitation nothing more; on-policy learns from
what the student itself writes, whose mistakes lead it to facts and repairs that no right answer holds. Many: 512
problems, in the place of unlimited ones; their answers hold every fact many times, and imitation is short of nothing.
Reverse KL sharpens, which lifts sampled accuracy, so greedy is told too. The rule `train_above_held_out` only warns
here: with few problems every arm knows them by heart.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.distill.place import FEWER, Answers, Place, gap, told
from benchmarks.distill.stock import beginner, stopped, teacher, trained_tokens, warmed

__all__ = ["control", "measure"]

ROWS = 64
TRACE = 46
"""Tokens of an answer without a mistake: six steps of seven, the two marks of thinking, the answer, the end."""
FEW: dict[str, object] = {"task": "chain:split=train,count=64", "smoke_failures": 4}
_KNOWN_BY_HEART = {"train_above_held_out": {"action": "warn"}}
_FAIR = {"train.rows": ROWS, "train.lr": 3e-3, "train.warmup": 10, "train.held_out_share": 0.1}


def measure(place: Place) -> dict[str, Any]:
    """The two arms on 64 problems, from a student that has imitated one answer to each."""
    return _arms(place, warmed(place, FEW), "few", FEW)


def control(place: Place) -> dict[str, Any]:
    """The two arms on 512 problems, from a beginner that has imitated one answer to each."""
    return _arms(place, beginner(place), "many", {})


def _arms(place: Place, start: Path, label: str, few: dict[str, object]) -> dict[str, Any]:
    names = {"on_policy": f"on_policy_{label}", "imitation": f"imitation_{label}"}
    who: dict[str, object] = {"student": str(start), "teacher": str(teacher(place)), **few}
    supervised = place.distill(names["on_policy"], "on_policy", {**who, "train.health": _KNOWN_BY_HEART})
    tokens = trained_tokens(place.folder / names["on_policy"])
    steps = math.ceil(tokens / (ROWS * TRACE))
    imitated = place.distill(names["imitation"], "rejection", {**who, **_FAIR, "n": 4, "train.steps": steps})
    answers: dict[str, Answers] = {
        "start": place.answers(start, FEWER),
        "imitation": place.answers(imitated),
        "on_policy": place.answers(supervised),
    }
    return {
        **{key: told(found, place.seed) for key, found in answers.items()},
        "lead": gap(answers["imitation"], answers["on_policy"], place.seed),
        "stopped": stopped(place.folder / names["on_policy"]),
        "trained_tokens": {"on_policy": tokens, "imitation": steps * ROWS * TRACE},
        "cpu_seconds": {arm: place.spent(name) for arm, name in names.items()},
    }
