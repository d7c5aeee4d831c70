"""Attention kernels for GPUs over a forest of pages: what they read, and that they are exact.

Without a GPU they run under Triton's interpreter, in a process of its own; on one, see `tests/gpu.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ttc import forests
from tests.ttc.forests import DTYPES, LAYOUTS, ForestCase
from ttc.engines.embedded.kernels.plan import (
    PAGE,
    ForestPlan,
    ForestSchedule,
    PagedNode,
    PlanCapacity,
    bytes_read,
    choose_tile,
    keys_read,
    plan_forest,
)
from ttc.engines.embedded.kernels.ragged import PagedSequence, plan_prefill
from ttc.errors import ConfigError, EngineError

pytestmark = pytest.mark.numeric
with_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with forests.interpreter() as executor:
        yield executor


def _node(num_tokens: int, start: int, rows: range, first_page: int = 0) -> PagedNode:
    return PagedNode(range(first_page, first_page + -(-num_tokens // PAGE)), num_tokens, start, rows)


def _branches(rows: int, prefix: int, own: int) -> tuple[list[PagedNode], list[int]]:
    nodes = [_node(prefix, 0, range(rows))]
    nodes += [_node(own, prefix, range(row, row + 1), 1000 * (row + 1)) for row in range(rows)]
    return nodes, [prefix + own - 1] * rows


# What is read


def test_a_shared_key_is_read_once_for_all_branches_that_fit_a_tile() -> None:
    nodes, positions = _branches(rows=9, prefix=4096, own=600)
    schedule = plan_forest(nodes, positions, group=7, num_kv_heads=4)
    assert schedule.tile == 64  # 9 x 7 = 63
    assert keys_read(schedule) == 4096 + 9 * 600
    assert bytes_read(schedule, num_kv_heads=4, head_dim=128) == (4096 + 9 * 600) * 2 * 4 * 128 * 2


def test_more_rows_than_a_tile_holds_read_a_key_once_per_block() -> None:
    nodes, positions = _branches(rows=64, prefix=4096, own=600)
    wide = plan_forest(nodes, positions, group=7, num_kv_heads=4)
    assert (wide.tile, keys_read(wide)) == (128, 4 * 4096 + 64 * 600)  # 18 rows x 7 = 126
    assert keys_read(plan_forest(nodes, positions, group=7, num_kv_heads=4, tile=64)) == 8 * 4096 + 64 * 600
    assert keys_read(plan_forest(nodes, positions, group=2, num_kv_heads=4)) == 4096 + 64 * 600


def test_one_row_of_a_long_text_fills_the_device() -> None:
    schedule = plan_forest([_node(32768, 0, range(1))], [32767], group=7, num_kv_heads=4, multiprocessors=132)
    assert 132 <= len(schedule.items) * 4 <= 2 * 132
    assert keys_read(schedule) == 32768


def test_a_long_node_beside_short_ones_is_cut_to_an_even_share() -> None:
    nodes = [_node(600, 0, range(row, row + 1), 4000 + 50 * row) for row in range(255)]
    nodes.append(_node(32768, 0, range(255, 256)))
    schedule = plan_forest(nodes, [599] * 255 + [32767], group=7, num_kv_heads=4)
    share = (255 * 640 + 32768) * 4 // (2 * 132)
    assert 600 < schedule.items[:, 1].max() <= share + 64
    assert (np.diff(schedule.items[:, 1]) <= 0).all()


def _pairs(schedule: ForestSchedule) -> list[tuple[int, int, int]]:
    """(row, page, position) of every partial result's keys."""
    pairs = []
    for page, tokens, first, offset, rows in schedule.items.tolist():
        for row in schedule.members[offset : offset + rows].tolist():
            pairs += [(row, int(schedule.pages[page + i // PAGE]), first + i) for i in range(tokens)]
    return pairs


@pytest.mark.parametrize("seed", range(30))
def test_every_row_meets_every_key_above_it_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    _, nodes, positions = forests.grow(ForestCase(seed, 1, 1, 1, torch.float32, max_rows=12))
    group, tile = chance.choice(((1, None), (7, 16), (7, 64), (8, None), (3, 16)))
    schedule = plan_forest(
        nodes, positions, group=group, num_kv_heads=1, tile=tile, multiprocessors=chance.choice((1, 8))
    )
    met = _pairs(schedule)
    keys = [
        (row, node.pages[i // PAGE], node.start + i)
        for node in nodes
        for row in node.rows
        for i in range(node.num_tokens)
    ]
    assert sorted(met) == sorted(keys)
    assert schedule.items[:, 4].max(initial=1) * group <= schedule.tile
    for row in range(len(positions)):
        partials = schedule.row_partials[schedule.row_starts[row] : schedule.row_starts[row + 1]]
        assert partials.tolist() == np.flatnonzero(schedule.members == row).tolist()


@pytest.mark.parametrize("window", [1, 15, 16, 17, 100])
def test_a_window_drops_the_pages_that_no_row_sees_and_no_other(window: int) -> None:
    nodes, positions = [_node(256, 0, range(2)), _node(40, 256, range(1), 50)], [295, 255]
    schedule = plan_forest(nodes, positions, group=1, num_kv_heads=1, window=window)
    met = {(row, place) for row, _, place in _pairs(schedule)}
    seen = {(row, place) for row, at in enumerate(positions) for place in range(at + 1) if place > at - window}
    assert seen <= met
    assert keys_read(schedule) < window + 2 * PAGE + min(window + PAGE, 40)


def test_no_nodes_and_no_rows_are_a_plan_without_items() -> None:
    assert keys_read(plan_forest([], [0, 0], group=1, num_kv_heads=1)) == 0
    schedule = plan_forest([_node(0, 0, range(2)), _node(20, 0, range(0))], [0, 0], group=1, num_kv_heads=1)
    assert schedule.needs == PlanCapacity(rows=2, items=0, members=0, pages=0)


# Buffers


def test_a_plan_is_loaded_into_the_same_addresses() -> None:
    big = plan_forest(*_branches(rows=5, prefix=300, own=20), group=2, num_kv_heads=1, tile=16)
    small = plan_forest(*_branches(rows=2, prefix=40, own=1), group=2, num_kv_heads=1, tile=16)
    plan = ForestPlan.of(big)
    before = plan.items.data_ptr()
    plan.load(small)
    assert plan.items.data_ptr() == before == plan.buffer.data_ptr() + 16
    assert plan.counts.tolist() == [len(small.items), len(small.members), 2, 0]
    assert plan.positions[:2].tolist() == [40, 40]
    assert all(
        view.data_ptr() % 16 == plan.buffer.data_ptr() % 16 for view in (plan.pages, plan.members, plan.row_starts)
    )


def test_a_plan_that_does_not_fit_is_refused_and_the_old_one_stays() -> None:
    big = plan_forest(*_branches(rows=5, prefix=300, own=20), group=2, num_kv_heads=1, tile=16)
    plan = ForestPlan.of(plan_forest(*_branches(rows=2, prefix=40, own=1), group=2, num_kv_heads=1, tile=16))
    before = plan.buffer.clone()
    with pytest.raises(EngineError, match="needs PlanCapacity"):
        plan.load(big)
    with pytest.raises(EngineError, match="tile 64"):
        plan.load(plan_forest(*_branches(rows=1, prefix=1, own=1), group=2, num_kv_heads=1, tile=64))
    assert torch.equal(plan.buffer, before)


@pytest.mark.parametrize(
    ("node", "options", "message"),
    [
        (PagedNode([1], 17, 0, [0]), {}, "1 pages do not hold 17 tokens"),
        (PagedNode([1], 5, 0, [1]), {}, r"nodes\[0\].rows must be 0 to 0"),
        (_node(5, 0, range(1)), {"tile": 48}, "tile must be one of"),
        (_node(5, 0, range(1)), {"group": 17, "tile": 16}, "group must be 1 to 16"),
        (_node(5, 0, range(1)), {"window": 0}, "window must be at least 1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_field(node: PagedNode, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_forest([node], [5], **{"group": 1, "num_kv_heads": 1, **options})


def test_a_tile_is_as_small_as_its_rows_allow() -> None:
    assert [choose_tile(rows, 7) for rows in (1, 2, 3, 9, 10, 100)] == [16, 16, 64, 64, 128, 128]
    with pytest.raises(ConfigError, match="group must be 1 to 128"):
        choose_tile(1, 129)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (PagedSequence([_node(5, 0, range(0))], 6), "num_new must be 1 to 5"),
        (PagedSequence([_node(5, 0, range(0)), _node(5, 6, range(0))], 1), "starts at 6, the one before it ends at 5"),
        (PagedSequence([PagedNode([], 5, 0, [])], 1), "fewer pages"),
    ],
)
def test_a_prefill_that_cannot_be_is_refused_by_sequence(sequence: PagedSequence, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_prefill([sequence], group=1, tile=64)


# Exactness


@with_triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kv_heads", "group"), LAYOUTS)
def test_decoding_equals_one_softmax_for_all_head_layouts(
    interpreter: ProcessPoolExecutor, kv_heads: int, group: int, dtype: torch.dtype
) -> None:
    case = ForestCase(kv_heads * 10 + group, kv_heads, group, 64 if group % 2 else 96, dtype, max_depth=3, max_rows=3)
    forests.check(interpreter.submit(forests.decode_distance, case).result())


@with_triton
@pytest.mark.parametrize("seed", range(100, 108))
def test_decoding_equals_one_softmax_on_random_forests(interpreter: ProcessPoolExecutor, seed: int) -> None:
    forests.check(interpreter.submit(forests.decode_distance, ForestCase.draw(seed, max_rows=4)).result())


@with_triton
@pytest.mark.parametrize("seed", range(200, 206))
def test_prefill_equals_one_softmax_on_random_paths(interpreter: ProcessPoolExecutor, seed: int) -> None:
    forests.check(interpreter.submit(forests.prefill_distance, ForestCase.draw(seed, max_rows=3)).result())


@with_triton
def test_a_captured_step_may_advance_its_rows_under_one_plan(interpreter: ProcessPoolExecutor) -> None:
    for distance in interpreter.submit(forests.steps_ahead).result():
        forests.check(distance)


@with_triton
def test_new_tokens_of_branches_are_rows_of_a_forest(interpreter: ProcessPoolExecutor) -> None:
    for distance in interpreter.submit(forests.extension_as_forest).result():
        forests.check(distance)


@with_triton
def test_runs_of_a_node_that_was_cut_are_merged(interpreter: ProcessPoolExecutor) -> None:
    forests.check(interpreter.submit(forests.split_node).result())


@with_triton
@pytest.mark.parametrize("window", [None, 70])
def test_a_long_text_sees_no_later_token(interpreter: ProcessPoolExecutor, window: int | None) -> None:
    forests.check(interpreter.submit(forests.long_prefill, window).result())


@with_triton
def test_tensors_that_do_not_fit_are_refused_before_memory_is_read(interpreter: ProcessPoolExecutor) -> None:
    words: tuple[str, ...] = (
        "head size 48",
        "must share one of",
        "must be (pages",
        "q has 3 heads",
        "out must be",
        "contiguous",
    )
    words += ("too small for a plan of 3 rows", "tiles of at most 16, not 128")
    messages = interpreter.submit(forests.refusals).result()
    assert len(messages) == len(words)
    assert all(word in message for word, message in zip(words, messages, strict=True)), messages


@with_triton
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1320, 40))
def test_kernels_equal_one_softmax_on_three_hundred_random_forests(
    interpreter: ProcessPoolExecutor, first: int
) -> None:
    cases = [ForestCase.draw(seed, max_rows=4) for seed in range(first, first + 40)]
    for measure, some in ((forests.decode_distance, cases), (forests.prefill_distance, cases[::4])):
        distances = [job.result() for job in [interpreter.submit(measure, case) for case in some]]
        print(measure.__name__, *forests.summary(some, distances), sep="\n", flush=True)  # noqa: T201
        for distance in distances:
            forests.check(distance)


# Without Triton, and without a GPU


def _python(code: str, repository: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repository, check=False)
    return done.stdout + done.stderr


def test_the_engine_on_a_cpu_needs_no_triton(repository: Path) -> None:
    code = "import sys, ttc.engines.embedded.engine; print([m for m in sys.modules if 'triton' in m or 'kernels' in m])"
    assert _python(code, repository).strip() == "[]"


def test_a_missing_triton_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = "ttc.engines.embedded.kernels"
    for name in ("language", "forest"):
        monkeypatch.delitem(sys.modules, f"{kernels}.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match=r"the kernels for GPUs need triton, .* pip install triton"):
        importlib.import_module(f"{kernels}.forest")


@pytest.mark.long
@with_triton
def test_a_kernel_compiles_without_a_gpu_and_without_spills(repository: Path) -> None:
    code = (
        "from benchmarks.gpu_kernels import cases, report; print(report(next(cases('qwen2.5-0.5b', 'bf16', 90)), 90))"
    )
    line = _python(code, repository)
    assert "target='sm_90a'" in line, line
    assert "spill_bytes=0" in line and "tensor_core='mma" in line and "async_copies=0" not in line
