r"""HumanEval: 164 Python functions from their signatures and docstrings (Chen et al. 2021, arXiv:2107.03374).

    {"task_id": "HumanEval/7", "prompt": "def double(x):\n    # twice x\n", "entry_point": "double",
     "test": "def check(candidate):\n    assert candidate(2) == 4\n"}

(a local file may have `id` instead of `task_id`). The function is asked for in a chat turn and must be given whole; an
answer that only continues the signature counts as well. Helpers that the question defines belong to the tests: an
answer cannot replace them there. Each assert counts for the score, all must hold for a correct answer.
"""

from __future__ import annotations

import ast

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, VerifierSpec, code_block, program_question
from ttc.answers.code import syntax
from ttc.core import Problem, Sampling
from ttc.errors import RecordError


def humaneval(*, data: str | None = None, timeout_s: float = 20.0) -> Task:
    """Python functions from signature and docstring (HumanEval).

    Args:
        data: file of rows, or folder with humaneval.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
        timeout_s: seconds for all tests of one answer.
    """
    source = Source("humaneval", "openai/openai_humaneval", None, "test")
    return Task(
        name="humaneval",
        kind="code",
        load=dataset(source, data, _item),
        sampling=Sampling(max_tokens=1024),
        verifier=VerifierSpec("code", {"timeout_s": timeout_s}),
    )


def _item(row: Row) -> Item:
    stub, name = row.text("prompt"), row.text("entry_point")
    question = f"Complete this Python function. Keep its name and its parameters.\n\n{code_block(stub)}"
    target = {"entry_point": name, "stub": stub, "prelude": _prelude(row, stub, name), "tests": row.text("test")}
    return Item(Problem(row.text("id" if "id" in row.data else "task_id"), program_question(question), "code"), target)


def _prelude(row: Row, stub: str, name: str) -> str:
    """What the question defines besides the function: imports and helpers."""
    try:
        tree = syntax(stub)
    except SyntaxError as exc:
        raise RecordError(f"{row.where}: prompt: not Python ({exc})") from exc
    parts = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    if len(parts) == len(tree.body):
        raise RecordError(f"{row.where}: entry_point: the prompt does not define {name!r}")
    return "\n".join(ast.get_source_segment(stub, node) or "" for node in parts)
