"""The whole chain: a teacher trained by reinforcement, its answers imitated, its student supervised token by token.

Claims: the teacher answers at least 90 % greedily; rejection alone lifts the student; after on-policy distillation the
student, with at most half the parameters, is within 5 points of the teacher (upper end of the paired gap told too).
"""

from __future__ import annotations

from typing import Any

from benchmarks.distill.place import FEWER, HELD_OUT, Place, gap, told
from benchmarks.distill.stock import on_policy_student, rejection_student, student, teacher
from train.models import load_model, num_parameters

__all__ = ["measure"]


def measure(place: Place) -> dict[str, Any]:
    """One seed's teacher, and its student at the start, after rejection and after on-policy distillation."""
    models = {
        "teacher": teacher(place),
        "start": student(place),
        "rejection": rejection_student(place),
        "on_policy": on_policy_student(place),
    }
    answers = {name: place.answers(model, FEWER if name == "start" else HELD_OUT) for name, model in models.items()}
    return {
        **{name: told(found, place.seed) for name, found in answers.items()},
        "parameters": {name: num_parameters(load_model(models[name], "cpu")) for name in ("teacher", "start")},
        "rejection_gain": gap(answers["start"], place.answers(models["rejection"], FEWER), place.seed),
        "below_teacher": gap(answers["on_policy"], answers["teacher"], place.seed),
        "cpu_seconds": {name: place.spent(name) for name in models},
    }
