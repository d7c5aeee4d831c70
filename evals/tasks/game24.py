"""Game of 24: make 24 from four numbers; 1,362 solvable problems with human difficulty (Yao et al. 2023, 2305.10601).

    {"id": "game24-7", "numbers": [4, 4, 6, 8], "rank": 7}

Read from the user's copy: `game24.jsonl(.gz)` with `numbers` and `rank`, or `game24.csv` as the authors of Tree of
Thoughts published it. Ranks run from easiest to hardest; that paper evaluates ranks 901 to 1000 (`subset` hard).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, VerifierSpec
from ttc.core import Message, Problem, Sampling
from ttc.errors import RecordError

HARD = range(901, 1001)
BIN = 273
"""Ranks per difficulty bin: five bins of the published list."""
PROMPT = (
    "Use the numbers {numbers} and basic arithmetic operations (+, -, *, /) and parentheses to obtain 24. Use every "
    "number exactly once.\n\nThink step by step, then put the final expression between <answer> and </answer>, for "
    "example <answer>(1 + 2) * 8 * 1</answer>."
)


def game24(*, data: str | None = None, subset: Literal["all", "hard"] = "all") -> Task:
    """The Game of 24.

    Args:
        data: file of rows, or folder with game24.jsonl(.gz) or game24.csv; required.
        subset: all 1,362 problems, or the hard hundred of the Tree of Thoughts paper (ranks 901 to 1000).
    """
    source = Source("game24", "princeton-nlp/tree-of-thought-llm", None, "test", on_hub=False)
    return Task(
        name="game24",
        kind="expression",
        load=dataset(source, data, partial(_item, hard=subset == "hard")),
        sampling=Sampling(max_tokens=1024),
        params={"subset": subset},
        verifier=VerifierSpec("game24"),
    )


def _item(row: Row, hard: bool) -> Item | None:
    rank, numbers = _rank(row), _numbers(row)
    if hard and rank not in HARD:
        return None
    text = PROMPT.format(numbers=" ".join(map(str, numbers)))
    problem = Problem(row.id("game24", "Rank"), (Message("user", text),), "expression", {"rank": rank})
    return Item(problem, numbers, difficulty=str((rank - 1) // BIN + 1))


def _rank(row: Row) -> int:
    field = row.column("rank", "Rank")
    text = row.text(field)
    if not text.isdecimal() or int(text) < 1:
        raise RecordError(f"{row.where}: {field}: expected a whole number >= 1, got {text!r}")
    return int(text)


def _numbers(row: Row) -> list[int]:
    field = row.column("numbers", "Puzzles")
    values = row.data.get(field)
    words = values.split() if isinstance(values, str) else values
    texts = [str(word) for word in words] if isinstance(words, list) else []
    if len(texts) != 4 or not all(text.isdecimal() for text in texts):
        raise RecordError(f"{row.where}: {field}: expected four whole numbers, got {values!r}")
    return [int(text) for text in texts]
