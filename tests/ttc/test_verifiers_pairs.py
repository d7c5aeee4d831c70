"""Answers as models write them, over many kinds of golds: each counts where a careful grader would let it count.

tests/ttc/data/answer_pairs.jsonl: the verifier, a topic, the target, a text, and whether it is right. They were written
before the code that decides them was read. Without the few that the verifiers leave out on purpose or cannot decide.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.loops import verdicts
from ttc import VERIFIERS

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("data").joinpath("answer_pairs.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(
    ("name", "part", "least"),
    [
        ("math", 0, 2000),
        ("math", 1, 2000),
        ("choice", 0, 140),
        ("choice", 1, 140),
        ("exact", 0, 170),
        ("exact", 1, 170),
        ("number", 0, 10),
        ("number", 1, 10),
    ],
)
def test_an_answer_counts_where_a_careful_grader_would_let_it(name: str, part: int, least: int) -> None:
    rows = [row for row in ROWS if row["verifier"] == name][part::2]
    assert len(rows) >= least
    verifier = VERIFIERS.load("math")(kind="number") if name == "number" else VERIFIERS.load(name)()
    judged = verdicts(verifier, [(row["target"], row["text"]) for row in rows])
    unlike = [
        (row["target"], row["text"], verdict.status, verdict.reason)
        for row, verdict in zip(rows, judged, strict=True)
        if verdict.correct != row["right"]
    ]
    assert unlike == []
