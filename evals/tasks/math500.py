"""MATH-500: 500 test problems of MATH (Hendrycks et al. 2021, arXiv:2103.03874) in five levels and seven subjects.

    {"unique_id": "test/algebra/7.json", "problem": "Solve $x+1=3$.", "answer": "2", "subject": "Algebra", "level": 1}

(the hub's row; a local one has an `id` instead of `unique_id`). The subset is that of "Let's verify step by step"
(Lightman et al. 2023, arXiv:2305.20050), a uniform sample of the test split that its reward models were not trained on.
The level is the difficulty.
"""

from __future__ import annotations

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, boxed_question
from ttc.core import Problem, Sampling
from ttc.verifiers.maths.asked import with_question


def math500(*, data: str | None = None) -> Task:
    """Competition mathematics in five levels (MATH-500).

    Args:
        data: file of rows, or folder with math500.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
    """
    source = Source("math500", "HuggingFaceH4/MATH-500", None, "test")
    return Task(name="math500", kind="math", load=dataset(source, data, _item), sampling=Sampling(max_tokens=4096))


def _item(row: Row) -> Item:
    meta = row.labels(subject="subject", level="level")
    problem = Problem(_name(row), boxed_question(row.text("problem")), "math", meta)
    return Item(problem, with_question(row.text("answer"), row.text("problem")), difficulty=meta.get("level"))


def _name(row: Row) -> str:
    """The local id, or the hub's `test/algebra/1072.json` as `math500-algebra-1072`."""
    if row.local:
        return row.text("id")
    place = row.text("unique_id").removeprefix("test/").removesuffix(".json")
    return f"math500-{place.replace('/', '-')}"
