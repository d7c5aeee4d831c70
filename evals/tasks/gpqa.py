"""GPQA: graduate-level questions of biology, physics and chemistry, four options (Rein et al. 2023, arXiv:2311.12022).

    {"id": "gpqa-7", "problem": "Which gas is the lightest?", "answer": "hydrogen", "incorrect": ["argon", ...]}
    Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,High-level domain,...

The authors ask that the questions stay off the open web, so the dataset is never fetched: it is read from the copy that
the user has (`gpqa_diamond.csv` as published, or JSON lines), and the records of a run must not be published either.
The options are shuffled by a hash of the question's id and their number, the same in every run; the target is the
letter of the right one, and its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from evals.data.sources import Row, Source, dataset
from evals.task import INSTRUCTIONS, Item, Task, choice_target, shuffled
from ttc.core import Message, Problem, Sampling
from ttc.errors import RecordError

LETTERS = "ABCD"


def gpqa(*, data: str | None = None, subset: Literal["diamond", "main", "extended"] = "diamond") -> Task:
    """Graduate-level science questions with four options (GPQA).

    Args:
        data: file of rows, or folder with gpqa_<subset>.csv, .jsonl(.gz) or a copy of the hub repository; required.
        subset: diamond (198 questions), main (448) or extended (546).
    """
    source = Source(f"gpqa_{subset}", "Idavidrein/gpqa", f"gpqa_{subset}", "train", on_hub=False)
    return Task(
        name="gpqa",
        kind="choice",
        load=dataset(source, data, _item),
        sampling=Sampling(max_tokens=8192),
        params={"subset": subset},
    )


def _item(row: Row) -> Item:
    name, question, options = row.id("gpqa", "Record ID"), row.text("problem", "Question").strip(), _options(row)
    order = shuffled(name, len(options))
    lines = [f"({letter}) {options[number]}" for letter, number in zip(LETTERS, order, strict=True)]
    text = "\n".join([question, "", *lines, "", INSTRUCTIONS["choice"]])
    meta = row.labels(domain="High-level domain", subdomain="Subdomain")
    problem = Problem(name, (Message("user", text),), "choice", meta)
    target = choice_target(LETTERS[order.index(0)], options[0], options)
    return Item(problem, target, difficulty=meta.get("domain"))


def _options(row: Row) -> Sequence[str]:
    """The options of a row, the right one first."""
    if row.local:
        wrong = row.data.get("incorrect")
        if not isinstance(wrong, list) or not all(isinstance(option, str) and option.strip() for option in wrong):
            raise RecordError(f"{row.where}: incorrect: expected a list of {len(LETTERS) - 1} strings, got {wrong!r}")
        options = [row.text("answer"), *wrong]
    else:
        columns = ["Correct Answer", *(f"Incorrect Answer {number}" for number in range(1, len(LETTERS)))]
        options = [row.text(column) for column in columns]
    if len(options) != len(LETTERS):
        raise RecordError(f"{row.where}: incorrect: expected {len(LETTERS) - 1} options, got {len(options) - 1}")
    return [option.strip() for option in options]
