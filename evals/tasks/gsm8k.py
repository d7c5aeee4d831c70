r"""GSM8K: grade-school word problems with whole-number answers (Cobbe et al. 2021, arXiv:2110.14168).

    {"id": "gsm8k-7", "problem": "Tom has 3 bags of 4 apples. How many apples?", "answer": "12"}           a local row
    {"question": "Tom has 3 bags of 4 apples. How many apples?", "answer": "3*4=12\n#### 12"}              the hub's

The test split has 1,319 problems. On the hub (openai/gsm8k) the answer stands after `####` at the end of the solution;
thousands separators are removed. Without a box, `####` or answer phrase, the last number counts as the answer.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, boxed_question
from ttc.core import Problem, Sampling
from ttc.errors import RecordError
from ttc.verifiers.maths.asked import with_question


def gsm8k(*, data: str | None = None, split: Literal["train", "test"] = "test") -> Task:
    """Grade-school word problems (GSM8K).

    Args:
        data: file of rows, or folder with gsm8k_<split>.jsonl(.gz) or a copy of the hub repository; absent: the hub.
        split: which split.
    """
    source = Source(f"gsm8k_{split}", "openai/gsm8k", "main", split)
    return Task(
        name="gsm8k",
        kind="number",
        load=dataset(source, data, partial(_item, split=split)),
        sampling=Sampling(max_tokens=1024),
        params={"split": split},
    )


def _item(row: Row, split: str) -> Item:
    question = row.text("problem", "question")
    problem = Problem(row.id(f"gsm8k-{split}"), boxed_question(question), "number")
    return Item(problem, with_question(_final(row).replace(",", ""), question))


def _final(row: Row) -> str:
    if row.local:
        return row.text("answer")
    _, mark, final = row.text("answer").rpartition("####")
    if not mark or not final.strip():
        raise RecordError(f"{row.where}: answer: no `#### number` at its end")
    return final.strip()
