"""A search tree as text: one line per step, with its score, its length and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ttc.core import Answer, Path

MAX_CHARS = 72


@dataclass(frozen=True, slots=True)
class Step:
    """What the trace says of one node."""

    text: str
    num_tokens: int
    score: float | None
    pruned: bool


def tree_lines(answer: Answer) -> list[str]:
    """Return the tree of `answer`, children in path order; the chosen path is marked with `*`."""
    steps = _steps(answer)
    selection = next((event.path for event in answer.trace if event.kind == "select"), None)
    lines: list[str] = []
    _branch((), steps, _children(steps), selection, "", lines)
    return lines


def _steps(answer: Answer) -> dict[Path, Step]:
    scores = {event.path: event.data.get("value") for event in answer.trace if event.kind == "score"}
    pruned = {event.path for event in answer.trace if event.kind == "prune"}
    return {
        event.path: Step(
            str(event.data["text"]), int(event.data["num_tokens"]), scores.get(event.path), event.path in pruned
        )
        for event in answer.trace
        if event.kind == "generate"
    }


def _children(steps: Mapping[Path, Step]) -> dict[Path, list[Path]]:
    children: dict[Path, list[Path]] = {}
    for path in sorted(steps):
        children.setdefault(path[:-1], []).append(path)
    return children


def _branch(
    parent: Path,
    steps: Mapping[Path, Step],
    children: Mapping[Path, list[Path]],
    selection: Path | None,
    indent: str,
    lines: list[str],
) -> None:
    paths = children.get(parent, [])
    for path in paths:
        last = path == paths[-1]
        on_path = selection is not None and selection[: len(path)] == path
        lines.append(f"{indent}{'└' if last else '├'}{'*' if on_path else '─'} {_line(steps[path])}")
        _branch(path, steps, children, selection, indent + ("   " if last else "│  "), lines)


def _line(step: Step) -> str:
    text = " ".join(step.text.split())
    text = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    score = "" if step.score is None else f"  {step.score:.3f}"
    return f"{text}  [{step.num_tokens}]{score}{'  pruned' if step.pruned else ''}"
