"""IFEval: 541 prompts with instructions that a program can check (Zhou et al. 2023, arXiv:2311.07911).

    {"key": 1000, "prompt": "Write. Use no commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}

(in a local file `id` instead of `key`). They are asked as they are, with nothing added. The verdict is prompt-level:
correct when every instruction is followed; the score is the share that is. Strict by default, as the paper's main
figure; `loose` forgives a first line, a last line and asterisks. A response that was cut by length is not finished, so
it has no verdict; lm-eval judges it as it is.
"""

from __future__ import annotations

from typing import Any

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, VerifierSpec
from ttc.core import Message, Problem, Sampling
from ttc.errors import RecordError
from ttc.verifiers.instructions.verifier import Mode


def ifeval(*, data: str | None = None, mode: Mode = "strict") -> Task:
    """Verifiable instructions (IFEval).

    Args:
        data: file of rows, or folder with ifeval.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
        mode: strict, or loose (also without the first line, the last line, or asterisks).
    """
    source = Source("ifeval", "google/IFEval", None, "train")
    return Task(
        name="ifeval",
        kind="format",
        load=dataset(source, data, _item),
        sampling=Sampling(max_tokens=1280),
        params={"mode": mode},
        verifier=VerifierSpec("instructions", {"mode": mode}),
    )


def _item(row: Row) -> Item:
    prompt, names = row.text("prompt"), row.data.get("instruction_id_list")
    if not isinstance(names, list):
        raise RecordError(f"{row.where}: instruction_id_list: expected a list, got {names!r}")
    target = {"instruction_id_list": names, "kwargs": _kwargs(row, len(names))}
    problem = Problem(row.id("ifeval", "key"), (Message("user", prompt),), "format", {"instructions": names})
    return Item(problem, target, difficulty=str(len(names)))


def _kwargs(row: Row, count: int) -> list[dict[str, Any]]:
    """The parameters of each instruction, without the empty columns that the hub's table fills in."""
    tables = row.data.get("kwargs")
    if not isinstance(tables, list) or len(tables) != count or not all(isinstance(value, dict) for value in tables):
        raise RecordError(f"{row.where}: kwargs: expected a list of {count} objects, got {tables!r}"[:300])
    return [{name: value for name, value in values.items() if value is not None} for values in tables]
