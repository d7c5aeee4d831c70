"""AIME 2025: the 30 problems of the American Invitational Mathematics Examination I and II of 2025.

    {"id": 7, "problem": "Find the number of ...", "answer": "70"}

Answers are whole numbers from 0 to 999; see `aime24` on how little thirty problems can tell apart.
"""

from __future__ import annotations

from evals.data.sources import Source
from evals.task import Task
from evals.tasks._contest import contest, three_digits


def aime25(*, data: str | None = None) -> Task:
    """American Invitational Mathematics Examination 2025.

    Args:
        data: file of rows, or folder with aime25.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
    """
    source = Source("aime25", "math-ai/aime25", None, "test")
    return contest("aime25", source, data, max_tokens=16384, answer=three_digits)
