"""The per-problem part of the page: problems in a compact table, and full search trees for a bounded sample.

A page with all trees of 1,000 problems x 16 candidates would not open on a phone, so at most `MAX_TREES` problems carry
theirs, within `MAX_TREE_BYTES` of JSON, and at most `MAX_ROWS` are listed. They are taken in turn from six kinds of
problem, so that the informative ones are there: runs disagree, a right candidate was not chosen, text was cut, no
verdict, all wrong, all right. Targets appear here and nowhere else in the report. The records are read twice, once for
the kinds and once for the rows, and only those with a tree are kept.

A tree is rebuilt from the answer's trace: steps, scores, pruned branches, the chosen path. A node's parent is its
nearest ancestor in the trace; the root is (). Thinking and answer are told apart along each path, so a think block that
spans several steps is one block. The verdict on a candidate hangs on its leaf. Long texts lose their middle and say how
much. Left out: events of kind `note`.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from itertools import zip_longest
from typing import Any

from evals.report.kit import embed_json, finite
from evals.report.runs import RunSummary
from ttc.core import NO_VERDICT, Answer, Candidate, Event, Path, Record, Verdict

MARKER = re.compile(r"(</?think>)")
"""How the usual models write the borders of a think block."""


@dataclass(slots=True)
class TraceNode:
    """One draw. `parts` are (is thinking, text) in order; `chosen` means that the answer goes through this node."""

    path: Path
    parts: list[tuple[bool, str]] = field(default_factory=list)
    num_tokens: int = 0
    finish_reason: str = ""
    injected: int = 0
    score: float | None = None
    steps: tuple[float, ...] = ()
    pruned: bool = False
    chosen: bool = False
    candidate: Candidate | None = None
    verdict: Verdict | None = None


def build_tree(record: Record) -> list[TraceNode]:
    """Return the nodes of a record in path order, without the root; [] when the problem failed."""
    if record.answer is None:
        return []
    nodes: dict[Path, TraceNode] = {}
    for event in record.answer.trace:
        if event.path and event.kind in ("generate", "score", "prune", "select"):
            _read(nodes.setdefault(event.path, TraceNode(event.path)), event)
    for i, candidate in enumerate(record.answer.candidates):
        node = nodes.setdefault(candidate.path, TraceNode(candidate.path))
        node.candidate = candidate
        node.verdict = record.verdicts[i] if i < len(record.verdicts) else None
        _from_candidate(node, candidate)
    nodes.pop((), None)
    ordered = [nodes[path] for path in sorted(nodes)]
    _mark_chosen(ordered, nodes, record.answer)
    _split_thinking(ordered, nodes)
    return ordered


def parent_of(path: Path, known: Any) -> Path:
    """Return the longest proper prefix of `path` that is in `known`, else the root."""
    return next((path[:n] for n in range(len(path) - 1, 0, -1) if path[:n] in known), ())


def tree_data(record: Record, max_text: int) -> list[dict[str, Any]]:
    """Return the tree as JSON for the page: one object per node in path order, `up` the index of its parent or -1.

    A node keeps `max_text` characters. Fields that say nothing are left out, which halves the page.
    """
    nodes = build_tree(record)
    places = {node.path: i for i, node in enumerate(nodes)}
    return [_compact(node, places.get(parent_of(node.path, places), -1), max_text) for node in nodes]


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than `limit` characters and say how many are missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _read(node: TraceNode, event: Event) -> None:
    data = event.data
    if event.kind == "generate":
        node.parts.append((bool(data.get("thinking")), str(data.get("text", ""))))
        node.num_tokens += int(data.get("num_tokens") or 0)
        node.finish_reason = str(data.get("finish_reason") or "")
        node.injected += sum(int(end) - int(start) for start, end in data.get("injected") or ())
    elif event.kind == "score":
        node.score = finite(data.get("value"))
        node.steps = tuple(s for value in data.get("steps") or () if (s := finite(value)) is not None)
    node.pruned |= event.kind == "prune"
    node.chosen |= event.kind == "select"


def _from_candidate(node: TraceNode, candidate: Candidate) -> None:
    """Add what the trace lacks, so that answers without a trace still have a tree."""
    if not node.parts:
        thinking = f"<think>{candidate.thinking}</think>" if candidate.thinking else ""
        node.parts = [(False, thinking + candidate.text)]
        node.num_tokens = candidate.num_tokens
    node.finish_reason = node.finish_reason or candidate.finish_reason
    if node.score is None:
        node.score = finite(candidate.score)


def _mark_chosen(ordered: Sequence[TraceNode], nodes: dict[Path, TraceNode], answer: Answer) -> None:
    leaves = [node for node in ordered if node.chosen] or [
        node for node in ordered if node.candidate and node.candidate.text == answer.text and answer.final is not None
    ][:1]
    for leaf in leaves:
        leaf.chosen = True
        path = parent_of(leaf.path, nodes)
        while path:
            nodes[path].chosen = True
            path = parent_of(path, nodes)


def _split_thinking(ordered: Sequence[TraceNode], nodes: dict[Path, TraceNode]) -> None:
    """Cut texts at the markers, carrying "inside a think block" from parent to child (parents come first in order).

    For a model with other markers, the trace's own flag decides for the whole text.
    """
    inside: dict[Path, bool] = {}
    for node in ordered:
        state = inside.get(parent_of(node.path, nodes), _starts_inside(node))
        node.parts, inside[node.path] = _split(node.parts, state)


def _split(parts: Sequence[tuple[bool, str]], inside: bool) -> tuple[list[tuple[bool, str]], bool]:
    """The parts cut at the markers, each with whether it is thinking, and whether they end inside a think block."""
    pieces: list[tuple[bool, str]] = []
    for flagged, text in parts:
        for piece in MARKER.split(text):
            if MARKER.fullmatch(piece):
                inside = piece == "<think>"
            elif piece:
                pieces.append((inside or (flagged and not MARKER.search(text)), piece))
    return pieces, inside


def _starts_inside(node: TraceNode) -> bool:
    """Whether the rendered prompt had opened the block already: an end marker comes first, or the trace says so."""
    first_mark = MARKER.search("".join(text for _, text in node.parts))
    return first_mark.group() == "</think>" if first_mark else bool(node.parts and node.parts[0][0])


def _compact(node: TraceNode, up: int, max_text: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "up": up,
        "id": ".".join(map(str, node.path)),
        "parts": [[int(thinking), shorten(text, max_text)] for thinking, text in node.parts],
        "tokens": node.num_tokens,
        "end": node.finish_reason if node.finish_reason != "stop" else "",
        "injected": node.injected,
        "score": None if node.score is None else round(node.score, 4),
        "steps": [round(step, 3) for step in node.steps],
        "pruned": int(node.pruned),
        "chosen": int(node.chosen),
    }
    if node.candidate:
        data |= {"leaf": 1, "final": shorten(node.candidate.final or "", 200)}
    if node.verdict:
        data |= {"status": node.verdict.status, "reason": shorten(node.verdict.reason, 300)}
    return {key: value for key, value in data.items() if value or key == "up" or (key == "score" and value is not None)}


MAX_TREES, MAX_ROWS = 40, 5000
MAX_TREE_BYTES = 1_800_000
MIN_TREES = 10
"""One problem may take this share of the bytes; beyond it, its texts lose their middle."""
NODE_TEXT = (6000, 1500, 300)
"""Characters kept of a node's text: the first of these that fits."""
MAX_QUESTION, MAX_FINAL = 1500, 60


def group_data(runs: Sequence[RunSummary], records: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Return JSON for one group: run labels, one row per listed problem, trees by problem id, the number of all.

    `shared` of the problems are in every run that has records.
    """
    traits: dict[str, Trait] = {}
    num_runs = Counter[str]()
    for run in runs:
        for record in records.get(run.key, ()):
            traits[record.problem.id] = traits.get(record.problem.id, Trait(0)) | traits_of(record)
            num_runs[record.problem.id] += 1
    kinds = {pid: kinds_of(union) for pid, union in traits.items()}
    listed = kinds if len(kinds) <= MAX_ROWS else dict.fromkeys(sample(kinds, MAX_ROWS))
    rows: dict[str, dict[str, Any]] = {pid: {} for pid in kinds if pid in listed}
    tree_records: dict[str, dict[str, Record]] = {pid: {} for pid in sample(kinds)}  # by run label
    for at, run in enumerate(runs):
        for record in records.get(run.key, ()):
            pid = record.problem.id
            if pid in rows:
                row = rows[pid] = rows[pid] or _row(record, kinds[pid], len(runs))
                row["c"][at] = _cell(record)
            if pid in tree_records:
                tree_records[pid][run.label] = record
    trees = _trees(runs, tree_records)
    for row in rows.values():
        # A problem whose tree is shown needs its whole question; the others only what fits a table row.
        row["q"] = shorten(row["q"], MAX_QUESTION if row["id"] in trees else 160)
    num_held = sum(len(records.get(run.key, ())) > 0 for run in runs)
    return {
        "runs": [run.label for run in runs],
        "rows": list(rows.values()),
        "trees": trees,
        "problems": len(kinds),
        "shared": sum(number == num_held for number in num_runs.values()),
    }


class Trait(IntFlag):
    """What the record of one run adds to the kinds of its problem."""

    RIGHT, WRONG, MISSED, CUT, UNJUDGED = 1, 2, 4, 8, 16


def traits_of(record: Record) -> Trait:
    """The traits of one record."""
    right = record.verdict is not None and record.verdict.correct
    holds = {
        Trait.RIGHT: right,
        Trait.WRONG: not right,
        Trait.MISSED: record.verdict is not None and not right and any(verdict.correct for verdict in record.verdicts),
        Trait.CUT: record.answer is not None and record.answer.finish_reason == "length",
        Trait.UNJUDGED: record.error is not None or record.verdict is None or record.verdict.status in NO_VERDICT,
    }
    return functools.reduce(Trait.__or__, (trait for trait, here in holds.items() if here))


KINDS: Mapping[str, Callable[[Trait], bool]] = {
    "disagree": lambda traits: Trait.RIGHT in traits and Trait.WRONG in traits,
    "missed": lambda traits: Trait.MISSED in traits,
    "cut": lambda traits: Trait.CUT in traits,
    "unjudged": lambda traits: Trait.UNJUDGED in traits,
    "wrong": lambda traits: Trait.RIGHT not in traits,
    "right": lambda traits: Trait.WRONG not in traits,
}
"""The kinds of problem, in the order in which a sample takes one of each."""


@functools.cache
def kinds_of(traits: Trait) -> tuple[str, ...]:
    """Name the kinds that a problem belongs to, from the traits of its records in all runs."""
    return tuple(kind for kind, holds in KINDS.items() if holds(traits))


def sample(kinds: Mapping[str, Sequence[str]], size: int = MAX_TREES) -> list[str]:
    """Take problems in turn from each kind, in problem order, until `size` are taken."""
    piles = [[pid for pid, of in kinds.items() if kind in of] for kind in KINDS]
    order = dict.fromkeys(pid for layer in zip_longest(*piles) for pid in layer if pid is not None)
    return list(order)[:size]


def _trees(runs: Sequence[RunSummary], shown: Mapping[str, Mapping[str, Record]]) -> dict[str, list[Any]]:
    trees: dict[str, list[Any]] = {}
    left = MAX_TREE_BYTES
    for pid, by_run in shown.items():
        cells = [by_run.get(run.label) for run in runs]
        for max_text in NODE_TEXT:
            answers = [_answer(record, max_text) if record else None for record in cells]
            size = len(embed_json(answers).encode("utf-8", "replace"))
            if size <= min(left, MAX_TREE_BYTES // MIN_TREES):
                trees[pid], left = answers, left - size
                break
    return trees


def _row(record: Record, kinds: Sequence[str], num_runs: int) -> dict[str, Any]:
    """The row of a problem, from its first record; its cells are still empty."""
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
