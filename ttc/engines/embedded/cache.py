"""Keys and values, shared by prefix: a radix tree over token ids.

A `Segment` holds the keys and values of a run of tokens and points to the segment before it, so a fork copies nothing:
all branches of a prompt point to the same segments. `PrefixTree` finds the longest known prefix of a prompt and
forgets the least recently used leaves beyond its memory limit (after RadixAttention, Zheng et al. 2023,
arXiv 2312.07104). Segments in use stay alive by ordinary references; forgetting one only stops it being found.

What the tree counts is what it holds: each of its nodes has storage of its own for exactly its tokens, and follows the
segment of the node above it. The price is one copy where a node is split and where a new path begins within one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["Match", "PrefixTree", "Segment"]


class Segment:
    """Keys and values of the tokens at absolute positions [start, end).

    `kv` has shape (layers, 2, kv heads, end - start, head size): keys (after the rotary turn) and values. What a chain
    of segments says of a position never changes; how it is cut into segments may, since the tree splits them in place.
    """

    __slots__ = ("end", "kv", "parent", "start")

    def __init__(self, parent: Segment | None, kv: torch.Tensor) -> None:
        self.parent, self.kv = parent, kv
        self.start: int = parent.end if parent is not None else 0
        self.end: int = self.start + kv.shape[3]

    def chain(self) -> list[Segment]:
        """The segments from the root to this one."""
        segments: list[Segment] = []
        node: Segment | None = self
        while node is not None:
            segments.append(node)
            node = node.parent
        return segments[::-1]

    def upto(self, end: int) -> Segment | None:
        """The first `end` tokens of this chain as a segment that shares its memory; None for `end` 0."""
        node: Segment | None = self
        while node is not None and node.start >= end:
            node = node.parent
        if node is None or node.end <= end:
            return node
        return Segment(node.parent, node.kv[:, :, :, : end - node.start])

    def after(self, parent: Segment | None) -> Segment:
        """The tokens of this chain beyond `parent` (which is its beginning) in storage of their own, after `parent`."""
        start = parent.end if parent is not None else 0
        if self.start == start and self.kv.untyped_storage().nbytes() == self.kv.nbytes:
            self.parent = parent
            return self
        parts = [node.kv[:, :, :, max(start - node.start, 0) :] for node in self.chain() if node.end > start]
        return Segment(parent, torch.cat(parts, 3))

    def split(self, at: int) -> Segment:
        """Move the tokens before position `at` to a segment of their own, which comes before this one from now on."""
        head = Segment(self.parent, self.kv[:, :, :, : at - self.start].clone())
        self.parent, self.start, self.kv = head, at, self.kv[:, :, :, at - self.start :].clone()
        return head

    def write_to(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy the chain to keys, values: (layers, kv heads, >= end, head size), from position 0 on."""
        for node in self.chain():
            keys[:, :, node.start : node.end] = node.kv[:, 0]
            values[:, :, node.start : node.end] = node.kv[:, 1]


class Match(NamedTuple):
    """The longest known prefix: its segment (None when nothing is known) and its length."""

    segment: Segment | None
    length: int


class _Node:
    """`ids` and their segment; the root has none. It does not know its parent, so a forgotten node is freed at once."""

    __slots__ = ("children", "ids", "segment", "used")

    def __init__(self, ids: tuple[int, ...], segment: Segment | None, used: int) -> None:
        self.ids, self.segment, self.used = ids, segment, used
        self.children: dict[int, _Node] = {}


class PrefixTree:
    """Maps token ids to segments; `max_tokens` limits what is kept."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._clock = 0
        self._root = _Node((), None, 0)

    def clear(self) -> None:
        """Forget everything."""
        self._root = _Node((), None, 0)
        self.num_tokens = 0

    def find(self, ids: Sequence[int]) -> Match:
        """Return the longest known prefix of `ids`; touches it."""
        node, depth, part = self._descend(ids)
        if part is None:
            return Match(node.segment, depth)
        inner = part.segment
        return Match(None if inner is None else inner.upto(depth), depth)

    def insert(self, ids: Sequence[int], segment: Segment) -> None:
        """Remember `segment` as the keys and values of `ids` (segment.end == len(ids)); what is known stays.

        The caller may use `segment` on; where all of it is new, its memory becomes the tree's.
        """
        node, depth, part = self._descend(ids)
        if depth == len(ids):
            return
        if part is not None:
            node = self._split(node, part, depth)
        tail = tuple(ids[depth:])
        node.children[tail[0]] = _Node(tail, segment.after(node.segment), self._tick())
        self.num_tokens += len(tail)
        if self.num_tokens > self.max_tokens:
            self._evict()

    def _descend(self, ids: Sequence[int]) -> tuple[_Node, int, _Node | None]:
        """Walk down: the last whole node, the matched length, and the child that was entered but not left."""
        node, depth = self._root, 0
        while depth < len(ids):
            child = node.children.get(ids[depth])
            if child is None:
                break
            span = child.ids
            child.used = self._tick()
            if tuple(ids[depth : depth + len(span)]) == span:
                node, depth = child, depth + len(span)
                continue
            same = 0
            while depth + same < len(ids) and same < len(span) and ids[depth + same] == span[same]:
                same += 1
            return node, depth + same, child
        return node, depth, None

    def _split(self, above: _Node, node: _Node, depth: int) -> _Node:
        """Cut `node`, a child of `above`, at absolute position `depth`; return the new upper node."""
        if node.segment is None:
            raise RuntimeError("the root of a prefix tree cannot be split")
        offset = depth - node.segment.start
        upper = _Node(node.ids[:offset], node.segment.split(depth), node.used)
        above.children[node.ids[0]] = upper
        node.ids = node.ids[offset:]
        upper.children[node.ids[0]] = node
        return upper

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _evict(self) -> None:
        """Drop least recently used leaves until a tenth of the limit is free."""
        goal = self.max_tokens - self.max_tokens // 10
        stack, leaves, above = [self._root], [], dict[_Node, _Node]()
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            above.update(dict.fromkeys(node.children.values(), node))
            if not node.children and node is not self._root:
                leaves.append((node.used, id(node), node))
        heapq.heapify(leaves)
        while self.num_tokens > goal and leaves:
            _, _, leaf = heapq.heappop(leaves)
            parent = above[leaf]
            del parent.children[leaf.ids[0]]
            self.num_tokens -= len(leaf.ids)
            if not parent.children and parent is not self._root:
                heapq.heappush(leaves, (parent.used, id(parent), parent))
