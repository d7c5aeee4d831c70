"""The whole chain: a teacher trained by reinforcement, and a student of half its size that imitates its answers.

Claims: the teacher answers at least 90 %; one verified answer to each of 512 problems lifts the student (rejection
alone), and takes it to within 5 points of the teacher (the upper end of the paired gap is reported, too).
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.distill.place import FEWER, HELD_OUT, Place, gap, told
from benchmarks.distill.stock import rejection_student, student, teacher
from train.base.models import load_model
from train.base.weights import num_parameters


def measure(place: Place) -> dict[str, Any]:
    """One seed's teacher, and its student before and after."""
    models = {"teacher": teacher(place), "start": student(place), "rejection": rejection_student(place)}
    answers = {name: place.answers(model, FEWER if name == "start" else HELD_OUT) for name, model in models.items()}
    return {
        **{name: told(found, place.seed) for name, found in answers.items()},
        "grpo": _by_grpo(place),
        "parameters": {name: num_parameters(load_model(models[name], "cpu")) for name in ("teacher", "start")},
        "rejection_gain": gap(answers["start"], place.answers(models["rejection"], FEWER), place.seed),
        "below_teacher": gap(answers["rejection"], answers["teacher"], place.seed),
        "cpu_seconds": {name: place.spent(name) for name in models},
    }


def _by_grpo(place: Place) -> dict[str, float]:
    """What reinforcement did to the teacher, on the stage's own 256 held-out problems, in per cent."""
    metrics = json.loads((place.folder / "teacher" / "2-grpo" / "done.json").read_text())["metrics"]
    names = [f"held_out{kind}_{when}" for kind in ("", "_sampled") for when in ("before", "after")]
    return {name: round(100 * metrics[name], 1) for name in names}
