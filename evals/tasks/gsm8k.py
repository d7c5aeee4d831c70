"""GSM8K: grade-school word problems with whole-number answers (Cobbe et al. 2021, arXiv:2110.14168).

The test split has 1,319 problems. On the hub (openai/gsm8k) the answer stands after `####` at the end of the solution;
thousands separators are removed. A last number counts as an answer where no box, `####` or answer phrase is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from evals.data.sources import Row, Source, rows_from
from evals.task import Item, Task, boxed_question, sample
from ttc.core import Problem, Sampling
from ttc.errors import RecordError


def gsm8k(*, data: str | None = None, split: Literal["train", "test"] = "test") -> Task:
    """Grade-school word problems (GSM8K).

    Args:
        data: folder with gsm8k_<split>.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
        split: which split.
    """
    source = Source(f"gsm8k_{split}", "openai/gsm8k", "main", split)
    return Task(
        name="gsm8k",
        kind="number",
        load=lambda limit, seed: sample(list(_items(rows_from(source, data), split)), limit),
        sampling=Sampling(max_tokens=1024),
        params={"split": split},
    )


def _items(rows: Iterator[Row], split: str) -> Iterator[Item]:
    for row in rows:
        question = row.text("problem" if row.local else "question")
        target = row.text("answer") if row.local else _final(row)
        name = row.text("id") if row.local else f"gsm8k-{split}-{row.number - 1}"
        yield Item(Problem(name, boxed_question(question), "number"), target.replace(",", ""))


def _final(row: Row) -> str:
    _, mark, final = row.text("answer").rpartition("####")
    if not mark or not final.strip():
        raise RecordError(f"{row.where}: answer: no `#### number` at its end")
    return final.strip()
