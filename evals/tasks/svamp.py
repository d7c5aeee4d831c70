"""SVAMP: one-step word problems, varied so that shallow patterns fail (Patel et al. 2021, arXiv:2103.07191).

    {"id": "svamp-7", "problem": "Ann had 8 pens. She lost 3. How many are left?", "answer": "5", "type": "Subtraction"}
    {"ID": "chal-7", "Body": "Ann had 8 pens. She lost 3", "Question": "How many are left?", "Answer": "5.0", ...}

The first row is a local one, the second the hub's. The published file has 1,000 problems; the hub's copy
(ChilleD/SVAMP) cuts it into 700 for training and 300 for testing. Without a box or answer phrase, the last number
counts as the answer.
"""

from __future__ import annotations

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, boxed_question
from ttc.core import Problem, Sampling
from ttc.verifiers.maths.asked import with_question


def svamp(*, data: str | None = None) -> Task:
    """One-step arithmetic word problems (SVAMP).

    Args:
        data: file of rows, or folder with svamp.jsonl(.gz) or a copy of the hub repository; absent: its test split.
    """
    source = Source("svamp", "ChilleD/SVAMP", None, "test")
    return Task(name="svamp", kind="number", load=dataset(source, data, _item), sampling=Sampling(max_tokens=512))


def _item(row: Row) -> Item:
    meta = {"type": str(row.data.get(row.column("type", "Type"), ""))}
    problem = Problem(row.id("svamp", "ID"), boxed_question(_question(row)), "number", meta)
    return Item(problem, with_question(row.numeric("answer", "Answer"), _question(row)))


def _question(row: Row) -> str:
    if row.local:
        return row.text("problem")
    body = row.text("Body").strip()
    return f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {row.text('Question').strip()}"
