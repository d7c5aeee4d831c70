"""AIME 2024: the 30 problems of the American Invitational Mathematics Examination I and II of 2024.

    {"id": 7, "problem": "Find the number of ...", "answer": "025"}

Answers are whole numbers from 0 to 999. Thirty problems give an interval of about 18 points either way: draw several
samples per problem for its own sake, but do not read small differences between models from them.
"""

from __future__ import annotations

from evals.data.sources import Source
from evals.task import Task
from evals.tasks._contest import contest, three_digits


def aime24(*, data: str | None = None) -> Task:
    """American Invitational Mathematics Examination 2024.

    Args:
        data: file of rows, or folder with aime24.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
    """
    source = Source("aime24", "HuggingFaceH4/aime_2024", None, "train")
    return contest("aime24", source, data, max_tokens=16384, answer=three_digits)
