"""SVAMP: one-step word problems, varied so that shallow patterns fail (Patel et al. 2021, arXiv:2103.07191).

The published file has 1,000 problems; the hub's copy (ChilleD/SVAMP) cuts it into 700 for training and 300 for testing.
A last number counts as an answer where no box or answer phrase is given.
"""

from __future__ import annotations

from collections.abc import Iterator

from evals.data.sources import Row, Source, rows_from
from evals.task import Item, Task, boxed_question, sample
from ttc.core import Problem, Sampling


def svamp(*, data: str | None = None) -> Task:
    """One-step arithmetic word problems (SVAMP).

    Args:
        data: folder with svamp.jsonl(.gz) or with a copy of the hub repository; absent: the hub's test split.
    """
    source = Source("svamp", "ChilleD/SVAMP", None, "test")
    return Task(
        name="svamp",
        kind="number",
        load=lambda limit, seed: sample(list(_items(rows_from(source, data))), limit),
        sampling=Sampling(max_tokens=512),
    )


def _items(rows: Iterator[Row]) -> Iterator[Item]:
    for row in rows:
        if row.local:
            name, question, target = row.text("id"), row.text("problem"), row.numeric("answer")
        else:
            name, target = f"svamp-{row.text('ID')}", row.numeric("Answer")
            question = _joined(row.text("Body"), row.text("Question"))
        type_ = str(row.data.get("type" if row.local else "Type", ""))
        yield Item(Problem(name, boxed_question(question), "number", {"type": type_}), target)


def _joined(body: str, question: str) -> str:
    body = body.strip()
    return f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {question.strip()}"
