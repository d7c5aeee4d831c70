"""The per-problem part of the page: problems in a compact table, and full trees for a bounded sample.

A page with all trees of 1,000 problems x 16 candidates would not open on a phone, so at most `MAX_TREES` problems
carry theirs, within `MAX_TREE_BYTES` of JSON, and at most `MAX_ROWS` are listed. They are taken in turn from six kinds
of problem, so that the telling ones are there: runs disagree, a right candidate was not chosen, text was cut, no
verdict, all wrong, all right. Targets appear here and nowhere else in the report.

The records are read twice, once to know the kinds and once for the rows, and only those with a tree are kept.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from enum import IntFlag
from itertools import zip_longest
from typing import Any

from evals.report.bars import NO_VERDICT
from evals.report.runs import Run
from evals.report.svg import embed_json
from evals.report.tree import shorten, tree_data
from ttc.core import Record

MAX_TREES, MAX_ROWS = 40, 5000
MAX_TREE_BYTES = 1_800_000
MIN_TREES = 10
"""One problem may take this share of the bytes; where it would take more, its texts lose their middle."""
NODE_TEXT = (6000, 1500, 300)
"""Characters kept of a node's text, first that fits."""
MAX_QUESTION, MAX_FINAL = 1500, 60
KINDS: tuple[tuple[str, str], ...] = (
    ("disagree", "the runs disagree"),
    ("missed", "a right candidate was not chosen"),
    ("cut", "an answer was cut by length"),
    ("unjudged", "no verdict, or the problem failed"),
    ("wrong", "all wrong"),
    ("right", "all right"),
)

Cells = Mapping[str, Record]
"""Records of one problem by run label."""


def group_data(runs: Sequence[Run], records: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Return JSON for one group: run labels, one row per listed problem, trees by problem id, the number of all."""
    traits: dict[str, Trait] = {}
    for run in runs:
        for record in records.get(run.key, ()):
            traits[record.problem.id] = traits.get(record.problem.id, Trait(0)) | traits_of(record)
    kinds = {pid: kinds_of(found) for pid, found in traits.items()}
    listed = kinds if len(kinds) <= MAX_ROWS else dict.fromkeys(sample(kinds, MAX_ROWS))
    rows: dict[str, dict[str, Any]] = {pid: {} for pid in kinds if pid in listed}
    shown: dict[str, dict[str, Record]] = {pid: {} for pid in sample(kinds)}
    for at, run in enumerate(runs):
        for record in records.get(run.key, ()):
            pid = record.problem.id
            if pid in rows:
                row = rows[pid] = rows[pid] or _row(record, kinds[pid], len(runs))
                row["c"][at] = _cell(record)
            if pid in shown:
                shown[pid][run.label] = record
    trees = _trees(runs, shown)
    for row in rows.values():
        # A problem whose tree is shown needs its whole question; the others only what fits a table row.
        row["q"] = shorten(row["q"], MAX_QUESTION if row["id"] in trees else 160)
    return {"runs": [run.label for run in runs], "rows": list(rows.values()), "trees": trees, "problems": len(kinds)}


class Trait(IntFlag):
    """What the record of one run adds to the kinds of its problem."""

    RIGHT, WRONG, MISSED, CUT, UNJUDGED = 1, 2, 4, 8, 16


def traits_of(record: Record) -> Trait:
    """The traits of one record."""
    right = record.verdict is not None and record.verdict.correct
    cut = record.answer is not None and record.answer.finish_reason == "length"
    found = Trait.RIGHT if right else Trait.WRONG
    found |= Trait.MISSED if _missed(record) else Trait(0)
    found |= Trait.CUT if cut else Trait(0)
    return found | (Trait.UNJUDGED if _unjudged(record) else Trait(0))


@functools.cache
def kinds_of(traits: Trait) -> tuple[str, ...]:
    """Name the kinds of problem this is, from the traits of its records of all runs; a problem may be of several."""
    found = {
        "disagree": Trait.RIGHT in traits and Trait.WRONG in traits,
        "missed": Trait.MISSED in traits,
        "cut": Trait.CUT in traits,
        "unjudged": Trait.UNJUDGED in traits,
        "wrong": Trait.RIGHT not in traits,
        "right": Trait.WRONG not in traits,
    }
    return tuple(kind for kind, _ in KINDS if found[kind])


def sample(kinds: Mapping[str, Sequence[str]], size: int = MAX_TREES) -> list[str]:
    """Take problems in turn from each kind, in problem order, until `size` are taken."""
    piles = [[pid for pid, of in kinds.items() if kind in of] for kind, _ in KINDS]
    order = dict.fromkeys(pid for layer in zip_longest(*piles) for pid in layer if pid is not None)
    return list(order)[:size]


def _trees(runs: Sequence[Run], shown: Mapping[str, Cells]) -> dict[str, list[Any]]:
    trees: dict[str, list[Any]] = {}
    left = MAX_TREE_BYTES
    for pid, found in shown.items():
        cells = [found.get(run.label) for run in runs]
        for max_text in NODE_TEXT:
            answers = [_answer(record, max_text) if record else None for record in cells]
            size = len(embed_json(answers).encode("utf-8", "replace"))
            if size <= min(left, MAX_TREE_BYTES // MIN_TREES):
                trees[pid], left = answers, left - size
                break
    return trees


def _row(record: Record, kinds: Sequence[str], num_runs: int) -> dict[str, Any]:
    """The row of a problem by the first record of it; its cells are still empty."""
    question = next((m.content for m in reversed(record.problem.messages) if m.role == "user"), "")
    target = record.target if isinstance(record.target, str) else json.dumps(record.target, ensure_ascii=False)
    return {
        "id": record.problem.id,
        "q": question,
        "t": shorten(target, MAX_FINAL * 2),
        "k": list(kinds),
        "c": [None] * num_runs,
    }


def _cell(record: Record) -> list[str]:
    final = record.answer.final if record.answer else None
    return [status_of(record), shorten(final or "", MAX_FINAL)]


def status_of(record: Record) -> str:
    """The verdict's status, or `failed` when the problem has none because it failed."""
    return record.verdict.status if record.verdict else "failed"


def _answer(record: Record, max_text: int) -> dict[str, Any]:
    answer, verdict = record.answer, record.verdict
    if answer is None:
        return {"status": status_of(record), "error": shorten(record.error or "no answer was recorded", max_text)}
    nodes = tree_data(record, max_text)
    whole = {} if nodes else {"text": shorten(answer.text, max_text), "thinking": shorten(answer.thinking, max_text)}
    return whole | {
        "status": status_of(record),
        "reason": verdict.reason if verdict else (record.error or ""),
        "final": shorten(answer.final or "", MAX_FINAL * 4),
        "end": answer.finish_reason,
        "cause": answer.stop_cause,
        "enforced": answer.enforced,
        "tokens": answer.usage.tokens,
        "seconds": round(answer.seconds, 3),
        "nodes": nodes,
    }


def _missed(record: Record) -> bool:
    wrong = record.verdict is not None and not record.verdict.correct
    return wrong and any(verdict.correct for verdict in record.verdicts)


def _unjudged(record: Record) -> bool:
    return record.error is not None or record.verdict is None or record.verdict.status in NO_VERDICT
