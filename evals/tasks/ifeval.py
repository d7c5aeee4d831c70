"""IFEval: 541 prompts with instructions that a program can check (Zhou et al. 2023, arXiv:2311.07911).

Asked as they are, without another word. The verdict is prompt-level: correct when every instruction is followed; the
score is the share that is. Strict by default, as the paper's main figure; `loose` forgives a first line, a last line
and asterisks. A response that was cut by length is not finished, so it has no verdict; lm-eval judges it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evals.data.sources import Row, Source, rows_from
from evals.task import Check, Item, Task, sample
from ttc.core import Message, Problem, Sampling
from ttc.errors import RecordError
from ttc.verifiers.instructions.verifier import Mode


def ifeval(*, data: str | None = None, mode: Mode = "strict") -> Task:
    """Verifiable instructions (IFEval).

    Args:
        data: folder with ifeval.jsonl(.gz) or with a copy of the hub repository; absent: the hub.
        mode: strict, or loose (also without the first line, the last line, or asterisks).
    """
    source = Source("ifeval", "google/IFEval", None, "train")
    return Task(
        name="ifeval",
        kind="format",
        load=lambda limit, seed: sample(list(_items(rows_from(source, data))), limit),
        sampling=Sampling(max_tokens=1280),
        params={"mode": mode},
        verifier=Check("instructions", {"mode": mode}),
    )


def _items(rows: Iterator[Row]) -> Iterator[Item]:
    for row in rows:
        prompt, names = row.text("prompt"), row.data.get("instruction_id_list")
        if not isinstance(names, list):
            raise RecordError(f"{row.where}: instruction_id_list: expected a list, got {names!r}")
        target = {"instruction_id_list": names, "kwargs": _kwargs(row, len(names))}
        name = row.text("id") if row.local else f"ifeval-{row.text('key')}"
        problem = Problem(name, (Message("user", prompt),), "format", {"instructions": names})
        yield Item(problem, target, difficulty=str(len(names)))


def _kwargs(row: Row, count: int) -> list[dict[str, Any]]:
    """The parameters of each instruction, without the empty columns that the hub's table fills in."""
    given = row.data.get("kwargs")
    if not isinstance(given, list) or len(given) != count or not all(isinstance(value, dict) for value in given):
        raise RecordError(f"{row.where}: kwargs: expected a list of {count} objects, got {given!r}"[:300])
    return [{name: value for name, value in values.items() if value is not None} for values in given]
