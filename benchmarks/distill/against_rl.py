"""Distillation against reinforcement learning: one student, one size, equal compute.

Compute is counted in FLOPs: two per parameter and token that is read or written, six per token that is trained on. The
teacher's answers count for the distilled student, the teacher's own training does not: its CPU seconds are reported.
The other arm is GRPO from the same start, for as many steps as that compute allows.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.distill.arms import TRACE
from benchmarks.distill.place import FEWER, Place, gap, told
from benchmarks.distill.stock import rejection_student, rows_of, student
from distill.generation.ledger import AnswerLedger
from train.base.models import load_model
from train.base.weights import num_parameters

PROMPT = 20
GROUPS, DRAWS = 16, 8
ROWS = 32
"""Rows of an update in the example of rejection sampling."""


def measure(place: Place) -> dict[str, Any]:
    """The student of the chain, and the same start after GRPO of equal compute."""
    distilled, start = rejection_student(place), student(place)
    small = num_parameters(load_model(start, "cpu"))
    flops = _of_rejection(place, small)
    step = GROUPS * DRAWS * (2 * small * (PROMPT + TRACE) + 6 * small * (PROMPT + TRACE))
    steps = math.ceil(flops / step)
    rival = place.train("reinforced", "reinforce", {"1.steps": steps, "1.eval_every": steps}, model=start)
    found = {"start": place.answers(start, FEWER)}
    found |= {"distilled": place.answers(distilled), "reinforced": place.answers(rival)}
    return {
        **{name: told(one, place.seed) for name, one in found.items()},
        "lead": gap(found["reinforced"], found["distilled"], place.seed),
        "flops": {"distilled": round(flops), "reinforced": steps * step},
        "grpo_steps": steps,
        "cpu_seconds": {
            "distilled": place.spent("rejection"),
            "reinforced": place.spent("reinforced"),
            "teacher": place.spent("teacher"),
        },
    }


def _of_rejection(place: Place, small: int) -> float:
    """What the teacher spent on answers, by the ledger, and the updates on rows."""
    rejection_student(place)
    job = place.folder / "rejection"
    with AnswerLedger(job / "ledger.sqlite") as ledger:
        paid = sum(float(usage["flops"]) for usage in ledger.totals()["usage"].values())
    updates = sum(1 for row in rows_of(job, "metrics.jsonl") if row["step"] > 0)
    return paid + (PROMPT + TRACE) * 6 * small * ROWS * updates
