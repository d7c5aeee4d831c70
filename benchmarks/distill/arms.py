"""On-policy distillation against imitation of one verified trace per prompt, at the same trained tokens.

Both arms start from one student and see the same problems. Few: 16 of them, whose right answers hold two in three of
the ninety facts of the language; imitation has a verified answer of the teacher to each, passed over until it has
learnt from as many tokens; on-policy has its own answers, whose mistakes lead it to other facts. Many: 512 problems,
whose answers hold every fact many times; there imitation is short of nothing. The goal was a lead of 8 points for
on-policy in the first; neither shows it. Reverse KL sharpens, which lifts sampled accuracy, so greedy is told too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.distill.place import FEWER, Answers, Place, gap, told
from benchmarks.distill.stock import beginner, early_student, stopped, teacher, trained_tokens

__all__ = ["control", "measure"]

ROWS = 64
TRACE = 46
"""Tokens of an answer without a mistake: six steps of seven, the two marks of thinking, the answer, the end."""
FEW = "chain:split=train,count=16"
_FAIR = {"train.rows": ROWS, "train.lr": 3e-3, "train.warmup": 10, "train.held_out_share": 0.1}


def measure(place: Place) -> dict[str, Any]:
    """The two arms on 16 problems, from a student that was pretrained for a short while."""
    return _arms(place, early_student(place), "few", {"task": FEW, "smoke_failures": 4})


def control(place: Place) -> dict[str, Any]:
    """The two arms on 512 problems, from a beginner that has imitated one answer to each."""
    return _arms(place, beginner(place), "many", {})


def _arms(place: Place, start: Path, label: str, few: dict[str, object]) -> dict[str, Any]:
    names = {"on_policy": f"on_policy_{label}", "imitation": f"imitation_{label}"}
    who: dict[str, object] = {"student": str(start), "teacher": str(teacher(place)), **few}
    supervised = place.distill(names["on_policy"], "on_policy", who)
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
