"""Keys and values, shared by prefix: a radix tree over token ids.

A `Segment` holds the keys and values of a run of tokens and points to the segment before it, so a fork copies nothing:
all branches of a prompt point to the same segments. `PrefixTree` finds the longest known prefix of a prompt and
forgets the least recently used leaves beyond its memory limit (after RadixAttention, Zheng et al. 2023,
arXiv 2312.07104). Segments in use stay alive by ordinary references; forgetting one only stops it being found.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["Match", "PrefixTree", "Segment"]


class Segment:
    """Keys and values of the tokens at absolute positions [start, end); immutable once made.

    `kv` has shape (layers, 2, kv heads, end - start, head size): keys (after the rotary turn) and values.
    """

    __slots__ = ("end", "kv", "parent", "start")

    def __init__(self, parent: Segment | None, kv: torch.Tensor) -> None:
        self.parent, self.kv = parent, kv
        self.start: int = parent.end if parent is not None else 0
        self.end: int = self.start + kv.shape[3]

    def chain(self) -> list[Segment]:
        """The segments from the root to this one."""
        found: list[Segment] = []
        node: Segment | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def upto(self, end: int) -> Segment | None:
        """The first `end` tokens of this chain as a segment that shares its memory; None for `end` 0."""
        node: Segment | None = self
        while node is not None and node.start >= end:
            node = node.parent
        if node is None or node.end <= end:
            return node
        return Segment(node.parent, node.kv[:, :, :, : end - node.start])

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
    __slots__ = ("children", "ids", "parent", "segment", "used")

    def __init__(self, parent: _Node | None, ids: tuple[int, ...], segment: Segment | None) -> None:
        self.parent, self.ids, self.segment = parent, ids, segment
        self.children: dict[int, _Node] = {}
        self.used = 0


class PrefixTree:
    """Maps token ids to segments; `max_tokens` limits what is kept."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._clock = 0
        self._root = _Node(None, (), None)

    def clear(self) -> None:
        """Forget everything."""
        self._root = _Node(None, (), None)
        self.num_tokens = 0

    def find(self, ids: Sequence[int]) -> Match:
        """Return the longest known prefix of `ids`; touches it."""
        node, depth, part = self._descend(ids)
        if part is None:
            return Match(node.segment, depth)
        inner = part.segment
        return Match(None if inner is None else inner.upto(depth), depth)

    def insert(self, ids: Sequence[int], segment: Segment) -> None:
        """Remember `segment` as the keys and values of `ids` (segment.end == len(ids)); what is known stays."""
        node, depth, part = self._descend(ids)
        if depth == len(ids):
            return
        if part is not None:
            node = self._split(part, depth)
        tail = tuple(ids[depth:])
        node.children[tail[0]] = child = _Node(node, tail, segment)
        self._touch(child)
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
            if tuple(ids[depth : depth + len(span)]) == span:
                node, depth = child, depth + len(span)
                self._touch(child)
                continue
            self._touch(child)
            same = 0
            while depth + same < len(ids) and same < len(span) and ids[depth + same] == span[same]:
                same += 1
            return node, depth + same, child
        return node, depth, None

    def _split(self, node: _Node, depth: int) -> _Node:
        """Cut `node` at absolute position `depth`; return the new upper node."""
        parent, segment = node.parent, node.segment
        if parent is None or segment is None:
            raise RuntimeError("the root of a prefix tree cannot be split")
        cut = depth - (_length(parent))
        upper = _Node(parent, node.ids[:cut], segment.upto(depth))
        upper.used = node.used
        parent.children[node.ids[0]] = upper
        node.ids, node.parent = node.ids[cut:], upper
        upper.children[node.ids[0]] = node
        return upper

    def _touch(self, node: _Node) -> None:
        self._clock += 1
        node.used = self._clock

    def _evict(self) -> None:
        """Drop least recently used leaves until a tenth of the limit is free."""
        goal = self.max_tokens - self.max_tokens // 10
        stack, leaves = [self._root], []
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children and node.parent is not None:
                leaves.append((node.used, id(node), node))
        heapq.heapify(leaves)
        while self.num_tokens > goal and leaves:
            _, _, leaf = heapq.heappop(leaves)
            parent = leaf.parent
            if parent is None:
                continue
            del parent.children[leaf.ids[0]]
            self.num_tokens -= len(leaf.ids)
            if not parent.children and parent.parent is not None:
                heapq.heappush(leaves, (parent.used, id(parent), parent))


def _length(node: _Node) -> int:
    return 0 if node.segment is None else node.segment.end
