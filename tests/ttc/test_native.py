"""The compiled kernels of a step on a processor against float64: norms, rotary, gate, pages, attention, draws."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ttc.engines.embedded.core import sampler
from ttc.engines.embedded.core.model import TorchOps
from ttc.engines.embedded.core.pool import SHEET
from ttc.engines.embedded.core.sampler import Rows, sample
from ttc.engines.shared.compute import native
from ttc.engines.shared.shape import Dims

pytestmark = pytest.mark.numeric

pytest.importorskip("numba")
parallel_rows: Any = importlib.import_module("ttc.engines.embedded.core.parallel_rows")
kernels: Any = native(torch.device("cpu"), torch.float32)
DTYPES = [torch.float32, torch.bfloat16]
STEP = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Of a result, relative: rounding once, and in fp32 the sums."""


def close(result: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(result.double(), exact, rtol=STEP[dtype], atol=STEP[dtype])


def small_dims() -> Dims:
    return Dims(
        hidden=40, num_layers=1, num_heads=6, num_kv_heads=2, head_dim=16, intermediate=50, vocab=9,
        eps=1e-5, tied=True, qk_norm=False, max_context=99, rope_theta=1.0, rope={},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Threads that torch computes with, each of them worth a single number."""
    before = torch.get_num_threads()
    monkeypatch.setattr(kernels, "_GRAIN", 1)
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_gates_and_heads_are_what_float64_says_rounded_once(dtype: torch.dtype, threads: int) -> None:
    dims = small_dims()
    ops, exact = kernels.NativeOps(dims), TorchOps(dims)
    x, weight = torch.randn(7, 40).to(dtype), torch.rand(40)
    scale = (x.double().pow(2).mean(-1, keepdim=True) + dims.eps).rsqrt()
    close(ops.norm(x, weight), x.double() * scale * weight.double(), dtype)
    both = torch.randn(7, 100).mul(4).to(dtype)
    close(ops.gate(both), torch.nn.functional.silu(both[:, :50].double()) * both[:, 50:].double(), dtype)
    qkv, angles = torch.randn(7, 10 * 16).to(dtype), torch.randn(2, 7, 16).to(dtype)
    for norm in (None, torch.rand(8, 16)):
        results = ops.heads(qkv, norm, *angles)
        wide = None if norm is None else norm.double()
        for result, right in zip(results, exact.heads(qkv.double(), wide, *angles.double()), strict=True):
            torch.testing.assert_close(result.double(), right, rtol=4 * STEP[dtype], atol=4 * STEP[dtype])


def test_a_gate_of_any_size_of_number_stays_a_number_and_what_is_none_stays_none() -> None:
    both = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, float("nan"), 1, 1, 1, 1, 1, 1]])
    gated = kernels.NativeOps(small_dims())
    out = torch.empty(1, 6)
    kernels.gate(1, both.numel(), both.numpy(), out.numpy())
    torch.testing.assert_close(out[0, :5], torch.tensor([0.0, 0.0, 0.0, 90.0, 1e4]))
    assert out[0, 5].isnan() and gated.norm(torch.full((1, 40), float("nan")), torch.ones(40)).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_stored_in_pages_is_loaded_from_them(dtype: torch.dtype, threads: int) -> None:
    k, v = torch.randn(2, 40, 2, 16).to(dtype)
    keys, values = torch.zeros(5, 2, 16, SHEET).to(dtype), torch.zeros(5, 2, SHEET, 16).to(dtype)
    slots = torch.randperm(5 * SHEET)[:40].numpy()
    at = (slots // SHEET, slots % SHEET)
    kernels.store(len(at[0]), k.numel(), *map(kernels.array, (k, v)), *at, *map(kernels.array, (keys, values)))
    assert torch.equal(keys[at[0], :, :, at[1]], k) and torch.equal(values[at[0], :, at[1]], v)
    out, places = torch.zeros(2, 40, 2, 16).to(dtype), np.arange(40)[::-1].copy()
    kernels.load(*map(kernels.array, (keys, values)), *at, places, *map(kernels.array, out))
    assert torch.equal(out, torch.stack((k, v)).flip(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "group", "size"), [(1, 1, 16), (3, 3, 64), (2, 2, 32), (1, 7, 128), (2, 4, 256)])
def test_attention_over_pages_is_that_of_float64_whatever_was_joined_before(
    dtype: torch.dtype, kv_heads: int, group: int, size: int, threads: int
) -> None:
    lengths = [1, 2, 15, 16, 17, 40, 128, 129, 300]
    rows, heads, most = len(lengths), kv_heads * group, -(-max(lengths) // SHEET)
    keys = torch.randn(rows * most, kv_heads, size, SHEET).to(dtype)
    values = torch.randn(rows * most, kv_heads, SHEET, size).to(dtype)
    queries = (torch.randn(rows, heads, size) * size**-0.5).to(dtype)
    pages = torch.randperm(rows * most).numpy()
    counts = np.array([max(0, min(SHEET, n - i * SHEET)) for n in lengths for i in range(most)])
    firsts = np.arange(rows) * most
    lasts = firsts + np.array([-(-n // SHEET) for n in lengths])
    common_k, common_v = torch.randn(2, 30, kv_heads, size).to(dtype)
    seed, totals = np.full((rows, heads), -1e30, np.float32), np.empty((rows, heads, size), np.float32)
    sharers = np.array([5, 0, 3])
    for span in (slice(0, 10), slice(10, 30)):  # two runs of keys, one after the other
        scores = torch.einsum(
            "rhgd,khd->hrgk", queries[sharers].view(3, kv_heads, group, size).double(), common_k[span].double()
        ).flatten(1, 2)
        part = torch.einsum("hrk,khd->hrd", scores.softmax(-1), common_v[span].double()).to(dtype)
        kernels.join(kernels.array(part), scores.logsumexp(-1).float().numpy(), sharers, seed, totals)
    out = torch.empty(rows, heads, size, dtype=dtype)
    table = (pages * SHEET, counts, firsts, lasts)
    arrays = map(kernels.array, (queries, keys, values))
    kernels.attend(rows, keys.numel(), *arrays, *table, seed, totals, kernels.array(out))
    for row, length in enumerate(lengths):
        mine = torch.from_numpy(pages[firsts[row] : lasts[row]])
        k = keys[mine].permute(0, 3, 1, 2).flatten(0, 1)[:length].double()
        v = values[mine].permute(0, 2, 1, 3).flatten(0, 1)[:length].double()
        if row in sharers:
            k, v = torch.cat((common_k.double(), k)), torch.cat((common_v.double(), v))
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("hd,khd->hk", queries[row].double(), k).softmax(-1)
        torch.testing.assert_close(
            out[row].double(), torch.einsum("hk,khd->hd", scores, v), rtol=0, atol=4 * STEP[dtype]
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_a_run_within_a_sheet_is_read_without_a_trace_of_what_others_wrote_beside_it(
    dtype: torch.dtype, group: int, threads: int
) -> None:
    # where each begins in its sheet, and its length
    runs = [(0, 4), (4, 1), (6, 7), (8, 8), (12, 3), (2, 14), (0, 16), (5, 6), (3, 13), (14, 2)]
    shapes = ((10, 1, 16, SHEET), (10, 1, SHEET, 16))
    keys, values = (torch.full(shape, torch.nan, dtype=dtype) for shape in shapes)
    for sheet, (begin, count) in enumerate(runs):
        pairs = slice(begin // 2 * 2, -(-(begin + count) // 2) * 2)  # the next token's place may be read, too
        keys[sheet, 0, :, pairs] = torch.randn(16, pairs.stop - pairs.start).to(dtype)
        values[sheet, 0, pairs] = torch.randn(pairs.stop - pairs.start, 16).to(dtype)
    queries = (torch.randn(4, group, 16) / 4).to(dtype)
    slots = np.array([sheet * SHEET + begin for sheet, (begin, _) in enumerate(runs)])
    counts, firsts, lasts = np.array([count for _, count in runs]), np.array([0, 2, 5, 7]), np.array([3, 5, 7, 10])
    seed, totals = np.full((4, group), -1e30, np.float32), np.empty((4, group, 16), np.float32)
    out, arrays = torch.empty(4, group, 16, dtype=dtype), map(kernels.array, (queries, keys, values))
    kernels.attend(4, keys.numel(), *arrays, slots, counts, firsts, lasts, seed, totals, kernels.array(out))
    for row in range(4):
        mine = [(sheet, slice(runs[sheet][0], sum(runs[sheet]))) for sheet in range(firsts[row], lasts[row])]
        k = torch.cat([keys[sheet, 0, :, span].T for sheet, span in mine]).double()
        v = torch.cat([values[sheet, 0, span] for sheet, span in mine]).double()
        right = (queries[row].double() @ k.T).softmax(-1) @ v
        torch.testing.assert_close(out[row].double(), right, rtol=0, atol=4 * STEP[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 10, 37, 1000])
@pytest.mark.parametrize(("kv_heads", "group", "size"), [(1, 1, 16), (3, 3, 64), (1, 7, 80), (2, 16, 32), (1, 5, 256)])
def test_rows_that_read_the_same_keys_attend_to_those_within_their_limits_and_to_what_they_read_before(
    dtype: torch.dtype, kv_heads: int, group: int, size: int, window: int, threads: int
) -> None:
    """Groups of rows over runs that begin and end within sheets, beside which nothing is a number."""
    shape, heads = (60, kv_heads, size, SHEET), kv_heads * group
    keys, values = torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype).mT.contiguous()
    begins, counts = np.arange(60) * 5 % SHEET, np.arange(60) * 7 % SHEET + 1
    counts = np.minimum(counts, SHEET - begins)
    sheets = torch.randperm(60).numpy()
    for sheet, begin, count in zip(sheets, begins, counts, strict=True):
        even = slice(begin // 2 * 2, -(-(begin + count) // 2) * 2)  # the next token's place may be read, too
        keys[sheet, :, :, even] = torch.randn(kv_heads, size, even.stop - even.start).to(dtype)
        values[sheet, :, even] = torch.randn(kv_heads, even.stop - even.start, size).to(dtype)
    firsts, lasts = np.array([0, 1, 20, 29]), np.array([1, 20, 29, 60])
    totals_of = [int(counts[first:last].sum()) for first, last in zip(firsts, lasts, strict=True)]
    limits = [[1], list(range(40, 73)), [totals_of[2]] * 4, [1, 1, 2, totals_of[3] - 1, totals_of[3]]]
    floors = [[max(limit - window, 0) for limit in own] for own in limits]
    num_rows = sum(map(len, limits))
    rows = torch.randperm(num_rows).numpy()
    queries = (torch.randn(num_rows, heads, size) * size**-0.5).to(dtype)
    before = rows[3:11]
    seed, totals = np.full((num_rows, heads), -1e30, np.float32), np.full((num_rows, heads, size), np.nan, np.float32)
    seed[before], totals[before] = torch.randn(8, heads).numpy(), torch.randn(8, heads, size).numpy()
    old_seed, old_totals = torch.tensor(seed).double(), torch.tensor(totals).double().nan_to_num()
    bounds = np.cumsum([0, *map(len, limits)])
    kernels.attend_together(
        len(tiles := kernels.tile_table([len(own) for own in limits], group)),
        keys.numel(), *map(kernels.array, (queries, keys, values)), tiles, bounds, rows, np.concatenate(limits),
        np.concatenate(floors), sheets * SHEET + begins, counts, firsts, lasts, seed, totals,
    )  # fmt: skip
    for number, own in enumerate(limits):
        runs = [(sheets[r], slice(begins[r], begins[r] + counts[r])) for r in range(firsts[number], lasts[number])]
        k = torch.cat([keys[sheet, :, :, span] for sheet, span in runs], -1).double().repeat_interleave(group, 0)
        v = torch.cat([values[sheet, :, span] for sheet, span in runs], 1).double().repeat_interleave(group, 0)
        for row, limit, floor in zip(rows[bounds[number] : bounds[number + 1]], own, floors[number], strict=True):
            scores = torch.einsum("hd,hdk->hk", queries[row].double(), k[:, :, floor:limit])
            scores = torch.cat((old_seed[row][:, None], scores), 1)
            right = torch.einsum(
                "hk,hkd->hd", scores.softmax(-1), torch.cat((old_totals[row][:, None], v[:, floor:limit]), 1)
            )
            torch.testing.assert_close(torch.tensor(totals[row]).double(), right, rtol=0, atol=4 * STEP[dtype])
            torch.testing.assert_close(torch.tensor(seed[row]).double(), scores.logsumexp(-1), rtol=0, atol=1e-4)


@pytest.mark.skipif(parallel_rows.openmp() is None, reason="torch brings no OpenMP of GNU's here")
def test_rows_are_split_over_threads_to_the_same_bits_whatever_the_types_and_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_GRAIN", 1)
    both, out, again = torch.randn(11, 64), torch.empty(11, 32), torch.empty(11, 32)
    kernels.gate(1, both.numel(), both.numpy(), out.numpy())  # one row is not split
    kernels.gate._kernel(0, 11, both.numpy(), out.numpy())
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        kernels.gate(11, both.numel(), both.numpy(), again.numpy())
        assert torch.equal(out, again)
        scattered = torch.empty(32, 11).T  # its rows are no longer side by side
        kernels.gate(11, both.numel(), both.numpy(), scattered.numpy())
        assert torch.equal(out, scattered)
        again.zero_()
        kernels.gate(11, both.numel(), both.numpy(), again.numpy())
        assert torch.equal(out, again)
    finally:
        torch.set_num_threads(before)


@pytest.mark.long
def test_a_second_process_keeps_nothing_more_on_disk(tmp_path: Path) -> None:
    script = """
import torch
from ttc.engines.shared.compute import native
kernels, x, out = native(torch.device("cpu"), torch.float32), torch.ones(2, 16), torch.empty(2, 16)
kernels._GRAIN = 1
torch.set_num_threads(2)
kernels.norm(2, 32, x.numpy(), torch.ones(16).numpy(), 0.0, out.numpy())
"""
    sizes = []
    for _ in range(2):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", script]
        subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=True)
        sizes.append(len(list(tmp_path.rglob("*.nbc"))))
    assert 0 < sizes[0] == sizes[1]


def rows_of(count: int, temperature: list[float], logprobs: bool = True) -> Rows:
    numbers = np.arange(count, dtype=np.uint64)
    temperatures = np.resize(np.array(temperature, np.float32), count)
    off = np.zeros(count, np.float32)
    return Rows(temperatures, 1 - off, np.zeros(count, np.int64), off, numbers, numbers, logprobs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [2, 255, 256, 300, 5000])
def test_draws_are_those_of_the_cumulative_sum_and_forbidden_tokens_are_never_drawn(
    dtype: torch.dtype, vocab: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(200, vocab).mul(3).to(dtype)
    logits[:, :: 3 if vocab > 2 else 2] = -torch.inf
    rows = rows_of(200, [1.0, 0.0, 0.7])
    drawn = sample(logits, rows)
    assert logits[range(200), drawn.tokens].isfinite().all()
    monkeypatch.setattr(sampler, "native", lambda *_: None)
    right = sample(logits, rows)
    assert (drawn.tokens == right.tokens).mean() >= 0.99  # at an edge either neighbour is right
    same = drawn.tokens == right.tokens
    assert drawn.logprobs is not None and right.logprobs is not None
    np.testing.assert_allclose(drawn.logprobs[same], right.logprobs[same], atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [2, 300, 5000])
def test_cut_draws_are_those_of_the_sorted_probabilities(
    dtype: torch.dtype, vocab: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(300, vocab).mul(2).to(dtype)
    logits[::7] = logits[::7].round()  # tokens tied with the last that is kept
    logits[:, :: 3 if vocab > 2 else 2] = -torch.inf
    chance = np.random.default_rng(1)
    rows = replace(
        rows_of(300, [1.0, 0.7, 0.0, 3.0]),
        top_k=chance.choice([0, 1, 5, 100, vocab, 2 * vocab], 300),
        top_p=chance.choice(np.array([1.0, 0.95, 0.5, 1e-3, 1 - 1e-7], np.float32), 300),
        min_p=chance.choice(np.array([0.0, 0.1, 1.0], np.float32), 300),
    )
    drawn = sample(logits, rows)
    monkeypatch.setattr(sampler, "native", lambda *_: None)
    assert (drawn.tokens == sample(logits, rows).tokens).mean() >= 0.99  # at an edge either neighbour is right


@pytest.mark.parametrize(
    ("cuts", "kept"),
    [
        ({"top_k": 2}, {1, 400, 401}),  # two are tied for the second place
        ({"top_k": 1}, {1}),
        ({"top_k": 3, "top_p": 0.6}, {1, 400, 401}),  # the first has half of the three
        ({"top_p": 0.3}, {1}),
        ({"min_p": 0.3}, {1, 400, 401, 700}),
        ({"min_p": 0.4}, {1, 400, 401}),
        ({"top_k": 300, "min_p": 1.0}, {1}),
    ],
)
def test_compiled_cuts_keep_what_their_definitions_say(cuts: dict[str, float], kept: set[int]) -> None:
    logits = torch.full((400, 900), -20.0)
    logits[:, [1, 400, 401, 700, 5]] = torch.tensor([2.0, 1.3, 1.3, 0.9, 0.2])
    rows = rows_of(400, [1.0])
    values = {name: np.full(400, value, getattr(rows, name).dtype) for name, value in cuts.items()}
    assert set(sample(logits, replace(rows, **values)).tokens.tolist()) == kept


def test_self_certainty_is_the_divergence_from_uniform_and_a_greedy_draw_the_first_of_equals() -> None:
    logits = torch.randn(8, 700)
    logits[:, 300] = logits[:, 500] = 9.0
    drawn = sample(logits, rows_of(8, [0.0]))
    assert (drawn.tokens == 300).all() and drawn.certainty is not None
    exact = -logits.double().log_softmax(-1).mean(-1) - np.log(700)
    np.testing.assert_allclose(drawn.certainty, exact.numpy(), atol=1e-5)


@pytest.mark.long
def test_where_no_folder_can_be_written_the_kernels_are_compiled_for_this_process_alone() -> None:
    script = """
import numba.core.caching, numpy as np, torch
for kind in vars(numba.core.caching).values():
    if getattr(kind, "_locator_classes", None):
        kind._locator_classes = []  # none finds a folder
from ttc.engines.shared.compute import native
kernels, x, out = native(torch.device("cpu"), torch.float32), torch.ones(2, 16), torch.empty(2, 16)
pages, rows = np.zeros((2, 1, 1, 16, 16), np.float32), np.empty((2, 2, 1, 16), np.float32)
kernels.load(*pages, *np.zeros((3, 2), np.int64), *rows)
assert type(kernels.load._cache).__name__ == "NullCache"
kernels._GRAIN = 1
torch.set_num_threads(2)
kernels.norm(2, 32, x.numpy(), torch.ones(16).numpy(), 0.0, out.numpy())
assert torch.equal(out, x)
"""
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)


@pytest.mark.long
def test_an_engine_that_is_open_has_nothing_left_to_compile(tmp_path: Path) -> None:
    script = """
import ttc
from numba.core import event
from ttc.core import Sampling
from ttc.engines.embedded.engine import embedded
engine = embedded(dtype="float32")
with event.install_recorder("numba:compile") as compiled:
    sampling = Sampling(max_tokens=60, logprobs=True)
    answer = ttc.run("12+30*2", engine=engine, strategy="majority", n=3, sampling=sampling)
assert answer.usage.generated > 3 and not compiled.buffer, compiled.buffer
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], env=environment, check=True)
