"""MATH-500: 500 test problems of MATH (Hendrycks et al. 2021, arXiv:2103.03874) in five levels and seven subjects.

The subset is that of "Let's verify step by step" (Lightman et al. 2023, arXiv:2305.20050), a uniform sample of the test
split that its reward models were not trained on. The level is the difficulty.
"""

from __future__ import annotations

from collections.abc import Iterator

from evals.data.sources import Row, Source, rows_from
from evals.task import Item, Task, boxed_question, sample
from ttc.core import Problem, Sampling


def math500(*, data: str | None = None) -> Task:
    """Competition mathematics in five levels (MATH-500).

    Args:
        data: folder with math500.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
    """
    source = Source("math500", "HuggingFaceH4/MATH-500", None, "test")
    return Task(
        name="math500",
        kind="math",
        load=lambda limit, seed: sample(list(_items(rows_from(source, data))), limit),
        sampling=Sampling(max_tokens=4096),
    )


def _items(rows: Iterator[Row]) -> Iterator[Item]:
    for row in rows:
        meta = row.labels(subject="subject", level="level")
        problem = Problem(_name(row), boxed_question(row.text("problem")), "math", meta)
        yield Item(problem, row.text("answer"), difficulty=meta.get("level"))


def _name(row: Row) -> str:
    """The local id, or the hub's `test/algebra/1072.json` as `math500-algebra-1072`."""
    if row.local:
        return row.text("id")
    place = row.text("unique_id").removeprefix("test/").removesuffix(".json")
    return f"math500-{place.replace('/', '-')}"
