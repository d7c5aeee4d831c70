r"""OlympiadBench: olympiad mathematics and physics with final answers (He et al. 2024, arXiv:2402.14008).

    {"id": 7, "question": "Find all real x with $x^2=4$.", "final_answer": ["2,-2"], "is_multiple_answer": true,
     "answer_type": "Numerical", "unit": null, "error": null, "subfield": "Algebra", "context": null}

The open-ended, text-only problems in English: 675 of mathematics, 236 of physics. Targets follow the data: several
answers are one set, whatever their order; `error` is an absolute tolerance; further entries of `final_answer` are
alternatives; of `V_{\max} = 3 r`, where an expression or a number is asked for, `3 r` counts as well. The question says
the unit, and that several answers belong into one box. The sub-field is the difficulty. Physics problems that begin
with the same context are one cluster.

Two kinds of problem are excluded, which is reported before a run and counted in the task's parameters (so in every
run.json): golds that no answer can be compared with, since the grammar of answers does not know them (`where $b$ is an
arbitrary integer`), and several answers with a tolerance each, which a target cannot express. That is 2 of the 675 of
mathematics, and of physics about 6 in 100.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from evals.data.sources import Row, Source, rows_from
from evals.task import BOXED, Item, Task, sample
from ttc.answers.plain import plain
from ttc.core import Message, Problem, Sampling, Target
from ttc.errors import RecordError
from ttc.verifiers.maths.judging import read
from ttc.verifiers.shared.contract import read_gold

CONFIGS = {"math": "OE_TO_maths_en_COMP", "physics": "OE_TO_physics_en_COMP"}
CONTEXT_CHARS = 200
"""The parts of one physics problem share this many characters at the start of their context; later parts add to it."""
PERCENT = ("%", r"\%", "percent")


def olympiadbench(*, data: str | None = None, subset: Literal["math", "physics"] = "math") -> Task:
    """Olympiad problems with final answers (OlympiadBench).

    Args:
        data: file of rows, or folder with olympiadbench_<subset>.jsonl(.gz) or a copy of the repository; absent: hub.
        subset: mathematics or physics.
    """
    source = Source(f"olympiadbench_{subset}", "Hothan/OlympiadBench", CONFIGS[subset], "train")
    rows = list(rows_from(source, data))
    items = [item for row in rows if (item := _item(row)) is not None]
    excluded = len(rows) - len(items)
    return Task(
        name="olympiadbench",
        kind="math",
        load=lambda limit, seed: sample(items, limit),
        sampling=Sampling(max_tokens=8192),
        params={"subset": subset, "excluded": excluded},
        note=f"{excluded} of {len(rows)} problems are left out: their golds cannot be verified" if excluded else "",
    )


def _item(row: Row) -> Item | None:
    """The problem of a row, or None where no answer can be compared with its gold."""
    target = _target(row)
    if target is None:
        return None
    context = _optional(row, "context")
    question = row.text("problem", "question").strip()
    text = "\n\n".join([*([context] if context else []), question, _instruction(row)])
    meta = row.labels(subfield="subfield", answer_type="answer_type")
    problem = Problem(row.id("olympiadbench", "id"), (Message("user", text),), "math", meta)
    return Item(problem, target, _cluster(context), meta.get("subfield"))


def _optional(row: Row, name: str) -> str:
    value = row.data.get(name)
    return "" if value is None else str(value).strip()


# -- the question ------------------------------------------------------------------------------------------------------
def _instruction(row: Row) -> str:
    sentences = [BOXED]
    if row.data.get("is_multiple_answer"):
        sentences.append("Put all answers into the one box, separated by commas.")
    units = [unit.strip() or "none" for unit in _optional(row, "unit").split(",")]
    if len(units) > 1:
        sentences.append(f"The units of the answers are, in order, {', '.join(units)}; leave them out of the box.")
    elif units != ["none"]:
        sentences.append(f"The unit of the answer is {units[0]}; leave it out of the box.")
    return " ".join(sentences)


def _cluster(context: str) -> str:
    return hashlib.sha256(context[:CONTEXT_CHARS].encode("utf-8", "surrogatepass")).hexdigest()[:16] if context else ""


# -- the target --------------------------------------------------------------------------------------------------------
def _target(row: Row) -> Target | None:
    answers = [text for gold in _golds(row) for text in _spellings(gold, row) if _readable(text)]
    tolerance = _tolerance(row)
    if not answers or tolerance is None:
        return None
    percent = f" {_instruction(row)}" if _optional(row, "unit") in PERCENT else ""
    question = row.text("problem", "question").strip() + percent
    target = Target(answers[0], question, tolerance=tolerance or 0.0, alternatives=tuple(answers[1:]))
    if row.data.get("is_multiple_answer"):
        if row.data.get("answer_type") != "Numerical":
            return target
        # Several numbers are a set in any order; those of one bracket, as (1/4, 1/27) for (a, b), keep it.
        shape = read(plain(answers[0]))
        return replace(target, order="tuple" if shape is not None and shape.op == "tuple" else "set")
    unit = _optional(row, "unit")
    # Per cent is left out: 4.2 % would also stand for 0.042, which a tolerance of 0.1 brings near to anything small.
    measured = unit and unit not in PERCENT and all(_readable(text, unit) for text in answers)
    return replace(target, unit=unit) if measured else target


def _golds(row: Row) -> Iterator[str]:
    golds = row.data.get("final_answer")
    if not isinstance(golds, list) or not all(isinstance(gold, str) and gold.strip() for gold in golds) or not golds:
        raise RecordError(f"{row.where}: final_answer: expected a list of non-empty strings, got {golds!r}")
    for gold in golds:
        # Without a space, `54,108` among several answers would be read as one number with a thousands separator.
        yield re.sub(r",(?=\S)", ", ", gold.strip()) if row.data.get("is_multiple_answer") else gold.strip()


def _spellings(gold: str, row: Row) -> Iterator[str]:
    """The gold, and what is right of its only equals sign if the data does not ask for an equation."""
    left, equals, right = gold.strip("$ ").partition("=")
    if equals and "=" not in right and "Equation" not in str(row.data.get("answer_type")):
        if left.strip():
            yield gold
        yield right.strip()
    else:
        yield gold


def _readable(gold: str, unit: str = "") -> bool:
    """Whether the grammar of answers can read the gold with its unit; `t(0,4]` would be t times an interval."""
    words = read_gold({"answer": gold, "unit": unit}).unit
    shape = read(plain(f"{gold} \\text{{{words}}}" if words else gold))
    return shape is not None and not (shape.op == "scalar" and shape.has("seq"))


def _tolerance(row: Row) -> float | None:
    """The absolute tolerance of the answer, 0 without one; None where several answers have different ones."""
    parts = {part.strip() for part in _optional(row, "error").split(",")}
    if len(parts) > 1:
        return None
    try:
        return float(parts.pop() or 0)
    except ValueError as exc:
        raise RecordError(f"{row.where}: error: expected a number, got {row.data['error']!r}") from exc
