"""On-policy distillation against imitation of one verified trace per prompt, at the same trained tokens.

Both arms start from a beginner that has seen these traces, and see the same 512 problems; imitation has one verified
answer of the teacher to each, passed over until it has learnt from as many tokens. The negative control is the same
pair of arms on problems that never repeat, each with a fresh answer of the teacher: there imitation is not short of
data. Reverse KL sharpens, which by itself lifts sampled accuracy, so greedy accuracy is told beside it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.distill.place import Place, gap, told
from benchmarks.distill.stock import beginner, on_policy_student, teacher, trained_tokens

__all__ = ["control", "measure"]

ROWS = 64
TRACE = 46
"""Tokens of an answer without a mistake: six steps of seven, the two marks of thinking, the answer, the end."""
FRESH = "chain:split=train,count=12000"


def measure(place: Place) -> dict[str, Any]:
    """The two arms on 512 problems."""
    return _arms(place, on_policy_student(place), place.folder / "on_policy", "imitation", {})


def control(place: Place) -> dict[str, Any]:
    """The two arms on problems that do not repeat."""
    start, best = str(beginner(place)), str(teacher(place))
    supervised = place.distill("on_policy_fresh", "on_policy", {"student": start, "teacher": best, "task": FRESH})
    fresh = {"task": FRESH, "n": 1, "limit": _prompts(place.folder / "on_policy_fresh")}
    return _arms(place, supervised, place.folder / "on_policy_fresh", "imitation_fresh", fresh)


def _arms(place: Place, supervised: Path, job: Path, name: str, fresh: dict[str, object]) -> dict[str, Any]:
    tokens = trained_tokens(job)
    settings = {
        "student": str(beginner(place)),
        "teacher": str(teacher(place)),
        "train.steps": math.ceil(tokens / (ROWS * TRACE)),
        "train.rows": ROWS,
        "train.lr": 3e-3,
        "train.warmup": 10,
        **fresh,
    }
    imitated = place.distill(name, "rejection", settings)
    answers = {
        "start": place.answers(beginner(place)),
        "imitation": place.answers(imitated),
        "on_policy": place.answers(supervised),
    }
    return {
        **{key: told(found, place.seed) for key, found in answers.items()},
        "lead": gap(answers["imitation"], answers["on_policy"], place.seed),
        "trained_tokens": {"on_policy": tokens, "imitation": settings["train.steps"] * ROWS * TRACE},
        "cpu_seconds": {"on_policy": place.spent(job.name), "imitation": place.spent(name)},
    }


def _prompts(job: Path) -> int:
    """As many problems as tokens of one pass need."""
    return math.ceil(trained_tokens(job) / TRACE)
