"""The search tree of one answer, rebuilt from its trace: steps, scores, pruned branches, the chosen path.

A node's parent is its nearest ancestor in the trace; the root is (). Thinking and answer are told apart along each
path, so a think block that spans several steps is one block. What a verdict says about a candidate is hung on its
leaf; the target is not part of a tree. Long texts lose their middle and say how much. Left out: events of kind `note`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evals.report.numbers import finite
from ttc.core import Answer, Candidate, Event, Path, Record, Verdict

MARKER = re.compile(r"(</?think>)")
"""How the usual models write the borders of a think block."""


@dataclass(slots=True)
class Node:
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


def build_tree(record: Record) -> list[Node]:
    """Return the nodes of a record in path order, without the root; [] when the problem failed."""
    if record.answer is None:
        return []
    nodes: dict[Path, Node] = {}
    for event in record.answer.trace:
        if event.path and event.kind in _READERS:
            _READERS[event.kind](nodes.setdefault(event.path, Node(event.path)), event)
    for i, candidate in enumerate(record.answer.candidates):
        node = nodes.setdefault(candidate.path, Node(candidate.path))
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


def _read_generate(node: Node, event: Event) -> None:
    data = event.data
    node.parts.append((bool(data.get("thinking")), str(data.get("text", ""))))
    node.num_tokens += int(data.get("num_tokens") or 0)
    node.finish_reason = str(data.get("finish_reason") or "")
    node.injected += sum(int(end) - int(start) for start, end in data.get("injected") or ())


def _read_score(node: Node, event: Event) -> None:
    node.score = finite(event.data.get("value"))
    node.steps = tuple(s for value in event.data.get("steps") or () if (s := finite(value)) is not None)


def _read_prune(node: Node, event: Event) -> None:
    node.pruned = True


def _read_select(node: Node, event: Event) -> None:
    node.chosen = True


_READERS = {"generate": _read_generate, "score": _read_score, "prune": _read_prune, "select": _read_select}


def _from_candidate(node: Node, candidate: Candidate) -> None:
    """Fill in what the trace does not say, so that answers without a trace still have a tree."""
    if not node.parts:
        thinking = f"<think>{candidate.thinking}</think>" if candidate.thinking else ""
        node.parts = [(False, thinking + candidate.text)]
        node.num_tokens = candidate.num_tokens
    node.finish_reason = node.finish_reason or candidate.finish_reason
    if node.score is None:
        node.score = finite(candidate.score)


def _mark_chosen(ordered: Sequence[Node], nodes: dict[Path, Node], answer: Answer) -> None:
    leaves = [node for node in ordered if node.chosen] or [
        node for node in ordered if node.candidate and node.candidate.text == answer.text and answer.final is not None
    ][:1]
    for leaf in leaves:
        leaf.chosen = True
        path = parent_of(leaf.path, nodes)
        while path:
            nodes[path].chosen = True
            path = parent_of(path, nodes)


def _split_thinking(ordered: Sequence[Node], nodes: dict[Path, Node]) -> None:
    """Cut texts at the markers, carrying "inside a think block" from parent to child (parents come first in order).

    Where a model writes other markers, the trace's own flag decides for the whole text.
    """
    inside: dict[Path, bool] = {}
    for node in ordered:
        parent = parent_of(node.path, nodes)
        state = inside.get(parent, _starts_inside(node))
        parts: list[tuple[bool, str]] = []
        for flagged, text in node.parts:
            for piece in MARKER.split(text):
                if MARKER.fullmatch(piece):
                    state = piece == "<think>"
                elif piece:
                    parts.append((state or (flagged and not MARKER.search(text)), piece))
        inside[node.path] = state
        node.parts = parts


def _starts_inside(node: Node) -> bool:
    """Whether the rendered prompt had opened the block already: an end marker comes first, or the trace says so."""
    found = MARKER.search("".join(text for _, text in node.parts))
    return found.group() == "</think>" if found else bool(node.parts and node.parts[0][0])


def _compact(node: Node, up: int, max_text: int) -> dict[str, Any]:
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
