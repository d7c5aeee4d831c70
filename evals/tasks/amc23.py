"""AMC 2023: the 40 problems of the American Mathematics Competition 12 (A and B) of 2023 whose answer is a number.

    {"id": 7, "question": "Cities A and B are 45 miles apart ...", "answer": 27.0}

Asked without their five options, as the hub's copy (math-ai/amc23) has them: the answer itself is wanted.
"""

from __future__ import annotations

from evals.data.sources import Source
from evals.task import Task
from evals.tasks._contest import contest, number


def amc23(*, data: str | None = None) -> Task:
    """American Mathematics Competition 12 of 2023, open-ended.

    Args:
        data: file of rows, or folder with amc23.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
    """
    source = Source("amc23", "math-ai/amc23", None, "test")
    return contest("amc23", source, data, max_tokens=8192, answer=number)
