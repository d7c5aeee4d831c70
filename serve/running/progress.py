"""How a search stands, from the events of its session: counts for a summary, and the nodes that changed.

A node is one generated piece: a whole candidate, or a step of a tree. Its state is live, then pruned, finished (the
model ended it), cut (its tokens ran out) or chosen. Messages are rate-limited; what is left goes out with the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from serve.requests.request import Progress as Level
from ttc.core import Answer, Event, Path

__all__ = ["Board"]

State: TypeAlias = Literal["live", "pruned", "finished", "cut", "chosen"]
PREVIEW = 200


@dataclass(slots=True)
class _Node:
    path: Path
    tokens: int = 0
    thinking: bool = False
    text: str = ""
    score: float | None = None
    state: State = "live"

    def to_json(self) -> dict[str, Any]:
        return {
            "path": list(self.path),
            "parent": list(self.path[:-1]),
            "score": self.score,
            "tokens": self.tokens,
            "thinking": self.thinking,
            "text": self.text if len(self.text) <= PREVIEW else self.text[: PREVIEW - 1] + "…",
            "state": self.state,
        }


def _generated(node: _Node, data: Mapping[str, Any]) -> int:
    node.tokens, node.text = int(data["num_tokens"]), str(data["text"])
    node.thinking = bool(data["thinking"])
    if data["stop_reason"] == "eos":
        node.state = "finished"
    return node.tokens


def _scored(node: _Node, data: Mapping[str, Any]) -> int:
    node.score = data["value"]
    return 0


def _pruned(node: _Node, data: Mapping[str, Any]) -> int:
    node.state = "pruned"
    return 0


def _chosen(node: _Node, data: Mapping[str, Any]) -> int:
    node.state = "chosen"
    return 0


_TAKE: Mapping[str, Callable[[_Node, Mapping[str, Any]], int]] = {
    "generate": _generated,
    "score": _scored,
    "prune": _pruned,
    "select": _chosen,
}
"""What an event of a kind does to its node, and the tokens it drew; other kinds are notes."""


class Board:
    """Collects the events of one search and says from time to time how it stands."""

    def __init__(self, level: Level, tell: Callable[[dict[str, Any]], None], interval_s: float) -> None:
        """`tell` is given the `ttc` object of a progress message; never at level off."""
        self._level, self._tell, self._interval_s = level, tell, interval_s
        self._nodes: dict[Path, _Node] = {}
        self._changed: dict[Path, _Node] = {}
        self._started = time.monotonic()
        self._told = self._started - interval_s
        self._tokens = 0

    def take(self, event: Event) -> None:
        """Note an event; tell when it is time."""
        if self._level == "off":
            return
        self._note(event)
        now = time.monotonic()
        if self._changed and now - self._told >= self._interval_s:
            self._report(now)

    def finish(self, answer: Answer) -> None:
        """Take over how each candidate ended, and tell what is left."""
        if self._level == "off":
            return
        for candidate in answer.candidates:
            node = self._nodes.get(candidate.path)
            if node is not None and node.state == "live":
                self._set(node, "cut" if candidate.finish_reason == "length" else "finished")
        if self._changed:
            self._report(time.monotonic())

    def _note(self, event: Event) -> None:
        node = self._nodes.setdefault(event.path, _Node(event.path))
        self._changed[event.path] = node
        if event.kind in _TAKE:
            self._tokens += _TAKE[event.kind](node, event.data)

    def _set(self, node: _Node, state: State) -> None:
        node.state = state
        self._changed[node.path] = node

    def _report(self, now: float) -> None:
        states = [node.state for node in self._nodes.values()]
        scores = [node.score for node in self._nodes.values() if node.score is not None]
        parents = {node.path[:-1] for node in self._nodes.values()}
        leaves = sum(node.state == "live" and node.path not in parents for node in self._nodes.values())
        message: dict[str, Any] = {
            "type": "progress",
            "elapsed_ms": round(1000 * (now - self._started)),
            "nodes_total": len(states),
            "live": leaves,
            "pruned": states.count("pruned"),
            "finished": states.count("finished") + states.count("cut") + states.count("chosen"),
            "best_score": max(scores, default=None),
            "tokens": self._tokens,
        }
        if self._level == "full":
            message["nodes"] = [node.to_json() for _, node in sorted(self._changed.items())]
        self._changed, self._told = {}, now
        self._tell(message)
