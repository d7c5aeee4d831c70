"""Random forests of pages, and how far the kernels are from one softmax in float64 on them.

Imports no Triton: `interpreted` is where a process of its own does, with the interpreter switched on before.
"""

from __future__ import annotations

import functools
import os
import random
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch

from tests.ttc.kernel_reference import dense_attention, forest_attention_reference, paged_prefill_reference
from ttc.engines.embedded.kernels.launches import forest_options, prefill_launch, widest_tile
from ttc.engines.embedded.kernels.plan import PAGE, ForestPlan, PagedNode, PlanCapacity, choose_tile, plan_forest
from ttc.engines.embedded.kernels.ragged import PagedSequence, plan_prefill
from ttc.engines.embedded.kernels.tensors import check_attention
from ttc.errors import ConfigError

LAYOUTS = ((1, 1), (2, 1), (2, 2), (1, 3), (2, 4), (1, 7), (2, 7), (1, 8))
"""(key heads, query heads of each)."""
SIZES = (32, 64, 96, 128)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LENGTHS = (0, 1, 1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 130)
WINDOWS = (None, None, 1, 2, 16, 17, 40)


@dataclass(frozen=True)
class ForestCase:
    """One random forest and the settings it is attended with."""

    seed: int
    kv_heads: int
    group: int
    size: int
    dtype: torch.dtype
    window: int | None = None
    tile: int | None = None
    max_depth: int = 12
    max_rows: int = 8

    @classmethod
    def draw(cls, seed: int, max_rows: int = 8) -> ForestCase:
        """Everything at random."""
        chance = random.Random(seed)
        kv_heads, group = chance.choice(LAYOUTS)
        tile = chance.choice((None, None, 16, 64, 128))
        size, dtype, window = chance.choice(SIZES), chance.choice(DTYPES), chance.choice(WINDOWS)
        tile = tile if (tile or 128) <= widest_tile(size, dtype.itemsize) else 16
        return cls(seed, kv_heads, group, size, dtype, window, tile, max_rows=max_rows)


@dataclass
class Pool:
    """Keys and values of one layer; what was never written is nan."""

    keys: torch.Tensor
    values: torch.Tensor
    free: list[int]
    generator: torch.Generator

    @classmethod
    def empty(cls, case: ForestCase, num_pages: int) -> Pool:
        shape = (num_pages, case.kv_heads, PAGE, case.size)
        free = list(range(num_pages))
        random.Random(case.seed).shuffle(free)
        keys = torch.full(shape, torch.nan, dtype=case.dtype)
        return cls(keys, keys.clone(), free, torch.Generator().manual_seed(case.seed))

    def node(self, num_tokens: int, start: int, rows: Sequence[int], *, ahead: int = 0) -> PagedNode:
        """A node with keys; room for `ahead` more, not written."""
        pages = [self.free.pop() for _ in range(-(-(num_tokens + ahead) // PAGE))]
        for i in range(num_tokens):
            self.write(pages[i // PAGE], i % PAGE)
        return PagedNode(pages, num_tokens + ahead, start, rows)

    def write(self, page: int, slot: int) -> None:
        """A random key and value."""
        for pool in (self.keys, self.values):
            pool[page, :, slot] = torch.randn(pool.shape[1], pool.shape[3], generator=self.generator).to(pool.dtype)

    def queries(self, num: int, group: int) -> torch.Tensor:
        """(num, heads, size)."""
        _, kv_heads, _, size = self.keys.shape
        return torch.randn(num, kv_heads * group, size, generator=self.generator).to(self.keys.dtype)


def grow(case: ForestCase) -> tuple[Pool, list[PagedNode], list[int]]:
    """Pages, nodes and the rows' positions: every row takes a random path; some rows have no keys at all."""
    chance = random.Random(case.seed)
    num_rows = chance.randint(1, case.max_rows)
    pool, nodes, positions = Pool.empty(case, 400), [], [0] * num_rows
    groups = [(list(range(num_rows)), 0, chance.randint(1, case.max_depth))]
    if chance.random() < 0.1:
        groups = [([row for row in range(num_rows) if row], 0, 3)]  # row 0 stands apart
    while groups:
        rows, start, depth = groups.pop()
        if not rows:
            continue
        last = depth == 1 or chance.random() < 0.1
        ahead = chance.randint(0, 3) if last and len(rows) == 1 else 0
        length = chance.choice(LENGTHS)
        nodes.append(pool.node(length, start, rows, ahead=ahead))
        for row in rows:
            positions[row] = max(start + length - 1, 0)
        if not last:
            cut = chance.randint(0, len(rows)) if chance.random() < 0.5 else len(rows)
            groups += [(rows[:cut], start + length, depth - 1), (rows[cut:], start + length, depth - 1)]
    chance.shuffle(nodes)
    return pool, nodes, positions


def dense(
    q: torch.Tensor, pool: Pool, nodes: Sequence[PagedNode], positions: Sequence[int], **options: Any
) -> torch.Tensor:
    """The oracle: a softmax in float64 for each row."""
    keys, values = pool.keys.double(), pool.values.double()
    mine = [[node for node in nodes if row in node.rows] for row in range(len(positions))]
    rows = zip(q.double(), mine, positions, strict=True)
    return torch.stack([dense_attention(one, keys, values, below, place, **options) for one, below, place in rows])


def bound(case: ForestCase, pool: Pool) -> float:
    """What rounding may do: weights and output once each to the dtype, 64 units of fp32 in scores, weights and sums."""
    unit = torch.finfo(case.dtype).eps / 2 if case.dtype != torch.float32 else 0.0
    return (2 * unit + 64 * 2.0**-24) * float(pool.values.nan_to_num().abs().max())


@dataclass(frozen=True)
class Distance:
    """Largest differences to the oracle: the kernel's, its bound, and that of the reference in float64."""

    kernel: float
    bound: float
    reference: float


def decode_distance(case: ForestCase, device: str = "cpu") -> Distance:
    """Of `forest_attention`, with buffers larger than the plan and full of rubbish."""
    from ttc.engines.embedded.kernels.forest import ForestScratch, forest_attention

    pool, nodes, positions = grow(case)
    q = pool.queries(len(positions), case.group)
    tile = case.tile or choose_tile(len(positions), case.group, widest_tile(case.size, case.dtype.itemsize))
    schedule = plan_forest(
        nodes, positions, group=case.group, num_kv_heads=case.kv_heads, tile=tile, window=case.window
    )
    need = schedule.needs
    capacity = PlanCapacity(need.rows + 1, need.items + 3, need.members + 2, need.pages + 1)
    rubbish = torch.full((capacity.size,), 2**31 - 1, dtype=torch.int32, device=device)
    plan = ForestPlan.over(rubbish, capacity, tile=schedule.tile, group=case.group)
    plan.load(schedule)
    scratch = ForestScratch.allocate(plan, q.shape[1], case.size)
    room = torch.cat((q, q[:1])).to(device)  # a row more than the plan has: left as it is
    out = torch.full_like(room, torch.nan)
    options: dict[str, Any] = {"scale": case.size**-0.5, "window": case.window}
    forest_attention(room, pool.keys.to(device), pool.values.to(device), plan, out, scratch, **options)
    exact = dense(q, pool, nodes, positions, **options)
    host = ForestPlan.of(schedule)
    reference = forest_attention_reference(q.double(), pool.keys.double(), pool.values.double(), host, **options)
    untouched = bool(out[-1].isnan().all())
    return Distance(_gap(out[:-1].cpu(), exact) if untouched else torch.inf, bound(case, pool), _gap(reference, exact))


def prefill_distance(case: ForestCase, device: str = "cpu") -> Distance:
    """Of `paged_prefill`: every path of a forest, new tokens of its last nodes."""
    from ttc.engines.embedded.kernels.prefill import paged_prefill

    chance = random.Random(case.seed)
    pool, nodes, _ = grow(case)
    ordered = sorted(nodes, key=lambda node: (node.start, node.num_tokens))
    chains = [[node for node in ordered if row in node.rows] for row in range(case.max_rows)]
    chains = [chain for chain in chains if any(node.num_tokens for node in chain)]
    for node in nodes:  # what is room ahead for decoding is written here
        for i in range(node.num_tokens):
            pool.write(node.pages[i // PAGE], i % PAGE)
    news = [min(chance.choice((1, 2, 5, 17)), sum(node.num_tokens for node in chain)) for chain in chains]
    if not chains:
        return Distance(0.0, 0.0, 0.0)
    q = pool.queries(sum(news), case.group)
    tile = prefill_launch(torch.device(device), case.size, q.element_size()).tile
    sequences = [PagedSequence(chain, new) for chain, new in zip(chains, news, strict=True)]
    table = plan_prefill(sequences, group=case.group, tile=tile, device=device)
    options: dict[str, Any] = {"scale": case.size**-0.5, "window": case.window}
    out = torch.full_like(q, torch.nan, device=device)
    paged_prefill(q.to(device), pool.keys.to(device), pool.values.to(device), table, out, **options)
    ends = [chain[-1].start + chain[-1].num_tokens for chain in chains]
    below = [(chain, end - new + i) for chain, new, end in zip(chains, news, ends, strict=True) for i in range(new)]
    keys, values = pool.keys.double(), pool.values.double()
    rows = zip(q.double(), below, strict=True)
    exact = torch.stack([dense_attention(one, keys, values, chain, at, **options) for one, (chain, at) in rows])
    host = plan_prefill(sequences, group=case.group, tile=tile)
    reference = paged_prefill_reference(q.double(), keys, values, host, **options)
    return Distance(_gap(out.cpu(), exact), bound(case, pool), _gap(reference, exact))


def _gap(ours: torch.Tensor, exact: torch.Tensor) -> float:
    gap = (ours.double() - exact).abs().max()
    return float("inf") if gap.isnan() else float(gap)


def interpreter() -> ProcessPoolExecutor:
    """A process in which Triton interprets kernels: the switch must be set before Triton is imported."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_interpret)


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("error")
    torch.set_num_threads(1)


def check(distance: Distance) -> None:
    """The kernel within its bound, the reference within float64's."""
    assert distance.kernel <= distance.bound, distance
    assert distance.reference <= 1e-12, distance


def summary(cases: Sequence[ForestCase], distances: Sequence[Distance]) -> list[str]:
    """Per dtype: the largest difference, and the largest share of its bound."""
    lines = []
    for dtype in DTYPES:
        mine = [d for case, d in zip(cases, distances, strict=True) if case.dtype == dtype]
        share = max((d.kernel / d.bound for d in mine if d.bound), default=0.0)
        largest = max((d.kernel for d in mine), default=0.0)
        lines.append(f"{dtype}: {len(mine)} cases, at most {largest:.2g}, {share:.0%} of its bound")
    return lines


def steps_ahead() -> list[Distance]:
    """Three steps under one plan: the device's positions move on, and each step writes a key where there is room."""
    from ttc.engines.embedded.kernels.forest import ForestScratch, forest_attention

    case = ForestCase(5, 1, 2, 32, torch.float32)
    pool = Pool.empty(case, 20)
    shared = pool.node(37, 0, (0, 1))
    own = [pool.node(14, 37, (row,), ahead=4) for row in (0, 1)]
    nodes, positions = [shared, *own], [50, 50]
    plan = ForestPlan.of(plan_forest(nodes, positions, group=2, num_kv_heads=1))
    scratch = ForestScratch.allocate(plan, 2, 32)
    distances = []
    for step in range(3):
        for node in own if step else ():
            pool.write(node.pages[(13 + step) // PAGE], (13 + step) % PAGE)
        fused = pool.queries(2, 4)  # queries are the first half of a wider row
        q, out = fused[:, :2], torch.empty(2, 2, 32)
        forest_attention(q, pool.keys, pool.values, plan, out, scratch, scale=0.2)
        exact = dense(q, pool, nodes, [50 + step] * 2, scale=0.2)
        distances.append(Distance(_gap(out, exact), bound(case, pool), 0.0))
        plan.positions.add_(1)
    return distances


def extension_as_forest() -> list[Distance]:
    """New tokens as rows that see no later one: two branches of three over one prefix, and a long one."""
    few, many = ForestCase(6, 2, 3, 64, torch.bfloat16), ForestCase(7, 1, 1, 32, torch.float16)
    short, long = Pool.empty(few, 20), Pool.empty(many, 20)
    branches = [short.node(50, 0, range(6)), short.node(3, 50, (0, 1, 2)), short.node(3, 50, (3, 4, 5))]
    chain = [long.node(5, 0, range(70)), long.node(70, 5, range(70))]
    return [_decode(few, short, branches, [50, 51, 52] * 2), _decode(many, long, chain, list(range(5, 75)))]


def split_node() -> Distance:
    """Rows of different length below one node that is cut into four runs."""
    case = ForestCase(8, 1, 2, 32, torch.float16)
    pool = Pool.empty(case, 40)
    nodes = [pool.node(400, 0, range(3)), pool.node(20, 400, (1,)), pool.node(1, 400, (2,))]
    return _decode(case, pool, nodes, [399, 419, 400])


def long_prefill(window: int | None) -> Distance:
    """A text of 150 new tokens, over two blocks of keys and more than a tile of rows."""
    from ttc.engines.embedded.kernels.prefill import paged_prefill

    case = ForestCase(9, 1, 2, 32, torch.float32)
    pool = Pool.empty(case, 40)
    nodes = [pool.node(7, 0, ()), pool.node(150, 7, ())]
    q = pool.queries(150, 2)
    table = plan_prefill([PagedSequence(nodes, 150)], group=2, tile=prefill_launch(q.device, 32, 4).tile)
    out = paged_prefill(q, pool.keys, pool.values, table, torch.empty_like(q), scale=0.2, window=window)
    below = [PagedNode(node.pages, node.num_tokens, node.start, range(150)) for node in nodes]
    exact = dense(q, pool, below, list(range(7, 157)), scale=0.2, window=window)
    return Distance(_gap(out, exact), bound(case, pool), 0.0)


def _decode(case: ForestCase, pool: Pool, nodes: Sequence[PagedNode], positions: Sequence[int]) -> Distance:
    from ttc.engines.embedded.kernels.forest import ForestScratch, forest_attention

    plan = ForestPlan.of(plan_forest(nodes, positions, group=case.group, num_kv_heads=case.kv_heads))
    q = pool.queries(len(positions), case.group)
    scratch = ForestScratch.allocate(plan, q.shape[1], case.size)
    out = forest_attention(q, pool.keys, pool.values, plan, torch.empty_like(q), scratch, scale=0.2)
    exact = dense(q, pool, nodes, positions, scale=0.2)
    return Distance(_gap(out, exact), bound(case, pool), 0.0)


def refusals() -> list[str]:
    """For a head size, a dtype, pages, heads, an output, a layout, a number of rows and a tile that do not fit."""
    from ttc.engines.embedded.kernels.forest import ForestScratch, forest_attention

    q, pages = torch.empty(2, 4, 32), torch.empty(3, 2, PAGE, 32)
    wrong: list[tuple[torch.Tensor, ...]] = [
        (q[..., :48].new_empty(2, 4, 48), pages, pages, q),
        (q, pages.half(), pages.half(), q),
        (q, pages[:, :, :8], pages[:, :, :8], q),
        (q[:, :3], pages, pages, q),
        (q, pages, pages, q[:1]),
        (q, pages[..., ::1].transpose(0, 1).contiguous().transpose(0, 1), pages, q),
    ]
    calls = [functools.partial(check_attention, *tensors, group=2) for tensors in wrong]
    plan = ForestPlan.of(plan_forest([PagedNode([0], 5, 0, [0, 1, 2])], [4] * 3, group=2, num_kv_heads=2))
    scratch = ForestScratch.allocate(plan, 4, 32)
    calls.append(functools.partial(forest_attention, q, pages, pages, plan, q, scratch, scale=1.0))
    calls.append(functools.partial(forest_options, 80, 128, 128, 4))
    return [_refusal(call) for call in calls]


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "not refused"
