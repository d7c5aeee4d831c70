"""Thinking-mode fusion: the student thinks by default and with the flag for it, and does not with the other flag.

Claim: at least 99 % obedience over flags, default, the template's switch, and conversations whose last flag holds;
greedy, measured by the job. Accuracy in both modes is reported: a chain cannot be guessed, so it is lower without
thinking.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.distill.place import Place
from benchmarks.distill.stock import rejection_student, teacher


def measure(place: Place) -> dict[str, Any]:
    """Obedience and accuracies of the start and the student."""
    settings = {"student": str(rejection_student(place)), "teacher": str(teacher(place)), "eval.limit": 256}
    place.distill("fusion", "fusion", settings)
    found = json.loads((place.folder / "fusion" / "result.json").read_text())["measured"]
    own = {who: {name: round(100 * value, 2) for name, value in found[who]["own"].items()} for who in found}
    return {**{who: own[who] for who in ("start", "student")}, "cpu_seconds": {"fusion": place.spent("fusion")}}
