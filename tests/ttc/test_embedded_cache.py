"""The memory of the prefix cache: what it counts is what it holds, whatever was split, shared and forgotten."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc.engines.embedded.cache import PrefixTree, Segment

LAYERS = 11
"""No other tensor of the test process begins with this size, so these are found by it."""
BYTES = LAYERS * 2 * 8


@pytest.fixture(autouse=True, scope="module")
def no_garbage() -> Iterator[None]:
    """What is only freed when Python looks for cycles counts as held; only what is new is searched."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.enable()


def keys_of(ids: tuple[int, ...], start: int = 0) -> torch.Tensor:
    """Keys that tell the whole prefix of every position from `start` on: (LAYERS, 2, 1, length, 1)."""
    codes = [float(int("1" + "".join(map(str, ids[: i + 1])))) for i in range(start, len(ids))]
    return torch.tensor(codes, dtype=torch.float64).view(1, 1, 1, -1, 1).repeat(LAYERS, 2, 1, 1, 1)


def told(segment: Segment | None) -> list[float]:
    """The keys of a chain, from its root on."""
    return [] if segment is None else torch.cat([node.kv for node in segment.chain()], 3)[0, 0].flatten().tolist()


def held() -> int:
    """Bytes of all keys and values that are alive in this process, each storage once."""
    found = [value for value in gc.get_objects() if type(value) is torch.Tensor and value.shape[:1] == (LAYERS,)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in found}
    return sum(storages.values())


steps = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple),  # ids
    st.booleans(),  # whether the cache is asked first, as for a prompt, or not, as for what a draw has sampled
    st.integers(0, 12),  # else: what the draw's prompt had computed
)


@settings(max_examples=25, deadline=None)
@given(st.lists(steps, min_size=1, max_size=30), st.integers(5, 60))
def test_the_cache_holds_what_it_counts_and_tells_what_was_put_in(inserted, most) -> None:
    before, tree = held(), PrefixTree(most)
    for ids, asks, computed in inserted:
        known, start = tree.find(ids if asks else ids[:computed])
        tree.insert(ids, Segment(known, keys_of(ids, start)) if start < len(ids) else known)
        assert tree.num_tokens <= most
        del known
    for ids, _, _ in inserted:
        segment, length = tree.find(ids)
        assert told(segment) == told(Segment(None, keys_of(ids[:length])) if length else None)
    segment = None
    assert held() - before == tree.num_tokens * BYTES


def test_a_prompt_that_outlives_the_longer_one_it_was_cut_from_does_not_keep_that_alive() -> None:
    before, tree = held(), PrefixTree(100)
    long, other = (1,) * 10 + (2,) * 80, (1,) * 10 + (0,) * 20
    tree.insert(long, Segment(None, keys_of(long)))
    known = tree.find(other)
    tree.insert(other, Segment(known.segment, keys_of(other, known.length)))
    del known
    assert tree.find(long).length == 10 and tree.find(other).length == 30
    assert held() - before == 30 * BYTES


def test_draws_that_begin_alike_are_held_once() -> None:
    before, tree = held(), PrefixTree(1000)
    prompt = (1, 2, 0)
    tree.insert(prompt, Segment(None, keys_of(prompt)))
    for last in range(3):
        ids = prompt + (1,) * 50 + (last,) * 5
        tree.insert(ids, Segment(tree.find(prompt).segment, keys_of(ids, 3)))
    assert tree.num_tokens == 3 + 50 + 3 * 5
    assert held() - before == tree.num_tokens * BYTES


def test_a_segment_in_use_says_the_same_after_the_cache_has_split_and_forgotten_it() -> None:
    tree = PrefixTree(40)
    ids = (1, 2) * 15
    running = Segment(None, keys_of(ids))
    tree.insert(ids, running)
    child = Segment(running, keys_of((*ids, 0), 30))
    for cut in (20, 10, 5):
        other = (*ids[:cut], 0)
        tree.insert(other, Segment(tree.find(other).segment, keys_of(other, cut)))
    tree.insert((0,) * 38, Segment(None, keys_of((0,) * 38)))
    assert tree.find(ids).length == 0
    assert told(running) == told(Segment(None, keys_of(ids)))
    assert told(child) == told(Segment(None, keys_of((*ids, 0))))
    assert told(child.upto(7)) == told(Segment(None, keys_of(ids[:7])))


def test_what_is_dropped_is_freed_without_a_search_for_cycles() -> None:
    before, tree = held(), PrefixTree(1000)
    for first in range(3):
        for second in range(3):
            ids = (first, 1, second, 2)
            tree.insert(ids, Segment(None, keys_of(ids)))
    tree.clear()
    assert (tree.num_tokens, held()) == (0, before)
