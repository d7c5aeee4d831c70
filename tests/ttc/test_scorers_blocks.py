"""What a prefix cache of whole blocks leaves to compute, known before a request is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ttc.reward_server import PrefixCache
from ttc.scorers.reward_models.blocks import Blocks

pytestmark = pytest.mark.numeric

PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=8)


@given(PATHS, st.integers(1, 8))
def test_what_is_foreseen_is_what_a_cache_that_forgets_nothing_computes(paths: list[list[int]], size: int) -> None:
    blocks, cache = Blocks(size), PrefixCache(size)
    for ids in paths:
        foreseen = len(ids) - blocks.cached("p", ids)
        assert blocks.send("p", ids) == foreseen == len(ids) - cache(ids)


@given(PATHS, st.lists(st.integers(0, 29), min_size=1, max_size=4, unique=True), st.integers(1, 8))
def test_several_reads_of_a_path_cost_what_was_foreseen(paths: list[list[int]], wanted: list[int], size: int) -> None:
    *before, ids = paths
    reads = sorted({min(read, len(ids) - 1) for read in wanted})
    blocks, other = Blocks(size), Blocks(size)
    for path in before:
        blocks.send("p", path)
        other.send("p", path)
    foreseen = blocks.one_by_one("p", ids, reads)
    assert foreseen == sum(blocks.send("p", ids[: read + 1]) for read in reads)
    foreseen, spent, missing = other.from_the_end("p", ids, reads), 0, list(reads)
    while missing:
        end = missing[-1] + 1
        new = other.send("p", ids[:end])
        spent, missing = spent + new, [read for read in missing if read < end - new]
    assert spent <= foreseen


def test_without_a_cache_every_read_costs_its_whole_prefix() -> None:
    blocks = Blocks(None)
    blocks.send("p", range(10))
    assert (blocks.cached("p", range(10)), blocks.send("p", range(10))) == (0, 10)
    assert blocks.one_by_one("p", range(10), [3, 9]) == 14 and blocks.from_the_end("p", range(10), [3, 9]) == 10


def test_problems_share_nothing_and_are_forgotten_one_by_one() -> None:
    blocks = Blocks(4)
    blocks.send("p", range(10))
    assert (blocks.cached("p", range(9)), blocks.cached("q", range(9))) == (8, 0)
    assert blocks.cached("p", range(8)) == 4  # the last token is always computed
    blocks.release("p")
    assert blocks.cached("p", range(9)) == 0
