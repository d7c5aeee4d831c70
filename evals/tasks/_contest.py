"""What the contests share: short problems whose answer is one number.

    {"id": 60, "problem": "Find the number of ways to tile a 2 by 5 board.", "answer": "8"}

A row has `problem` (or `question`), `answer` and perhaps `id`, on the hub as in a local file. The number is compared by
the verifier of kind `number`: a last number counts as an answer where no box or answer phrase is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, boxed_question
from ttc.core import Problem, Sampling
from ttc.errors import RecordError
from ttc.verifiers.maths.asked import with_question

LARGEST = 999
"""The largest answer of the AIME."""


def contest(name: str, source: Source, data: str | None, *, max_tokens: int, answer: Callable[[Row], str]) -> Task:
    """Return the task called `name`, whose targets `answer` reads from the rows of `source`."""
    return Task(
        name=name,
        kind="number",
        load=dataset(source, data, partial(_item, name=name, answer=answer)),
        sampling=Sampling(max_tokens=max_tokens),
    )


def number(row: Row) -> str:
    """Return the answer of a contest with numbers of any size (`27.0` is 27)."""
    return row.numeric("answer")


def three_digits(row: Row) -> str:
    r"""Return the answer of an AIME problem, a whole number from 0 to 999; `025` is 25, `336^\circ` is 336.

    Raises:
        RecordError: it is anything else.
    """
    text = row.text("answer").strip("$ ").removesuffix(r"^\circ").removesuffix(r"^{\circ}").strip()
    if not text.isdecimal() or int(text) > LARGEST:
        raise RecordError(f"{row.where}: answer: expected a whole number from 0 to {LARGEST}, got {text!r}")
    return str(int(text))


def _item(row: Row, name: str, answer: Callable[[Row], str]) -> Item:
    question = row.text("problem" if "problem" in row.data else "question")
    own_id = row.id(name, "id" if "id" in row.data else None)
    return Item(Problem(own_id, boxed_question(question), "number"), with_question(answer(row), question))
