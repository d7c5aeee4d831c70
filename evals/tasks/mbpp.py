"""MBPP: short Python functions from one sentence and some asserts (Austin et al. 2021, arXiv:2108.07732).

    {"task_id": 7, "prompt": "Write a function to double a number.", "code": "def double(x): return 2 * x",
     "test_imports": [], "test_list": ["assert double(2) == 4"]}

(the hub's sanitised row; a local one holds both subsets, with `sanitized_` before the fields of this one). As in the
paper, the question shows the tests, so that the name and the form of the values are known; the sanitised subset (427
problems) was checked by hand. Fewer tests are shown with `num_shown`: the others stay hidden, and an answer that only
knows the shown values fails. Left out: two problems of the full set (367, 927) whose tests build linked objects of the
answer's own class.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, VerifierSpec, program_question
from ttc.answers.code import syntax
from ttc.core import Problem, Sampling
from ttc.errors import ConfigError, RecordError

Split: TypeAlias = Literal["test", "train", "validation", "prompt", "all"]
_EVERY = "train+test+validation+prompt"
_BUILD_OBJECTS = (367, 927)
_LAST: dict[Split, int] = {"prompt": 10, "test": 510, "validation": 600}
"""The number of the last problem of each split; those behind are for training."""


def mbpp(
    *,
    data: str | None = None,
    subset: Literal["sanitized", "full"] = "sanitized",
    split: Split = "test",
    num_shown: int = 3,
    timeout_s: float = 20.0,
) -> Task:
    """Short Python functions from a sentence and its tests (MBPP).

    Args:
        data: a file of the rows, or a folder with mbpp.jsonl(.gz) or a copy of the hub repository; absent: the hub.
        subset: sanitized (427 problems) or full (974).
        split: test (tasks 11 to 510), train, validation, prompt, or all.
        num_shown: how many tests the question shows.
        timeout_s: seconds for all tests of one answer.
    """
    if num_shown < 1:
        raise ConfigError(f"num_shown must be >= 1: the name of the function stands in a test, got {num_shown}")
    source = Source("mbpp", "google-research-datasets/mbpp", subset, _EVERY if split == "all" else split)
    return Task(
        name="mbpp",
        kind="code",
        load=dataset(source, data, partial(_item, subset=subset, split=split, num_shown=num_shown)),
        sampling=Sampling(max_tokens=1024),
        params={"subset": subset, "split": split, "num_shown": num_shown},
        verifier=VerifierSpec("code", {"timeout_s": timeout_s}),
    )


def _item(row: Row, subset: str, split: Split, num_shown: int) -> Item | None:
    number = int(row.text("task_id"))
    if split not in ("all", row.text("split") if row.local else _split_of(number)) or number in _BUILD_OBJECTS:
        return None
    if row.local and subset == "sanitized" and not row.data.get("sanitized"):
        return None
    if not row.local and subset == "sanitized" and "prompt" not in row.data:
        raise RecordError(f"{row.where}: prompt: is missing, as it is in the full set: --set task.subset=full")
    prefix = "sanitized_" if row.local and subset == "sanitized" else ""
    text = row.text(f"{prefix}prompt" if row.local or subset == "sanitized" else "text")
    tests = _strings(row, f"{prefix}test_list")
    imports = _strings(row, f"{prefix}test_imports") if subset == "sanitized" else [_setup(row)]
    visible = "\n".join(tests[:num_shown])
    question = f"{text.strip()}\n\nYour program must pass tests like these:\n\n{visible}"
    target = {
        "tests": tests,
        "setup": "\n".join(line.strip() for line in imports),
        "functions": _functions(row, row.text(f"{prefix}code"), tests),
    }
    return Item(Problem(f"mbpp-{row.text('task_id')}", program_question(question), "code"), target)


def _split_of(number: int) -> Split:
    """The split of a problem, as the paper cuts the numbers."""
    return next((split for split, last in _LAST.items() if number <= last), "train")


def _functions(row: Row, reference: str, tests: Sequence[str]) -> list[str]:
    """The names in the tests that the answer must define: those that the reference defines."""
    try:
        defined = {node.name for node in syntax(reference).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        mentions = {node.id for test in tests for node in ast.walk(syntax(test)) if isinstance(node, ast.Name)}
    except SyntaxError as exc:
        raise RecordError(f"{row.where}: code or test_list: not Python ({exc})") from exc
    if not defined & mentions:
        raise RecordError(f"{row.where}: test_list: tests nothing that code defines")
    return sorted(defined & mentions)


def _strings(row: Row, name: str) -> list[str]:
    value: Any = row.data.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RecordError(f"{row.where}: {name}: expected a list of strings, got {value!r}")
    return value


def _setup(row: Row) -> str:
    return str(row.data.get("test_setup_code") or "")
