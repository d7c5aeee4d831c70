"""Search distillation: the student's own best of 16 becomes its first answer, without a teacher and without a key.

The student can think, does so in three answers of ten and guesses otherwise, so its greedy answer is a guess.
Best-of-16 by its own mean log-probability finds the careful answers. One round of imitating what the search chose,
wrong choices included, must recover at least half of what the search gains over greedy.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.distill.place import Place, gap, told
from benchmarks.distill.stock import base, measured


def measure(place: Place) -> dict[str, Any]:
    """The guesser, its search, and what one round of distilling the search makes of it; measured by the job."""
    guesser = place.train("guesser", "guesser", model=base(place))
    place.distill("search", "search", {"student": str(guesser), "eval.limit": 500, "eval.teachers": True})
    job = place.folder / "search"
    found = {who: measured(job, who, "chain") for who in ("start", "teacher", "student")}
    return {
        **{who: told(answers, place.seed) for who, answers in found.items()},
        "gain_of_search": gap(found["start"], found["teacher"], place.seed)["greedy"],
        "gain_of_student": gap(found["start"], found["student"], place.seed)["greedy"],
        "recovered": json.loads((job / "result.json").read_text())["recovered"]["chain"],
        "cpu_seconds": {name: place.spent(name) for name in ("guesser", "search")},
    }
