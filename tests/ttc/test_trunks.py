"""Chains of short segments are read from copies: what rows see is the same, in few pages, within the spare memory."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from tests.ttc import tiny_model
from ttc.engines.embedded.core.forest import PAGE_SIZES, ForestDecoder
from ttc.engines.embedded.core.invariant import PAD_ROWS, BlockedPrefix
from ttc.engines.embedded.core.model import load_body

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True, scope="module")
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tiny_model.build(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def body(folder):
    return load_body(folder, dtype="float32", page_sizes=PAGE_SIZES)[0]


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(200) for _ in range(count)]


class Steps:
    """Solutions in short steps: nodes with their texts, and rows that go on from some of them."""

    def __init__(self, body, seed: int) -> None:
        self.body, self.rng, self.decoder = body, random.Random(seed), ForestDecoder(body)
        self.nodes: list[tuple[list[int], object]] = [([], None)]
        self.rows: list[tuple[list[int], object]] = []

    def node(self, above: int, count: int) -> int:
        ids, parent = self.nodes[above]
        new = tokens(self.rng, count)
        self.nodes.append((ids + new, self.body.extend([(parent, new)])[0][1]))
        return len(self.nodes) - 1

    def solution(self, above: int, sizes: list[int]) -> list[int]:
        made = []
        for size in sizes:
            above = self.node(above, size)
            made.append(above)
        return made

    def row(self, node: int) -> None:
        ids, parent = self.nodes[node]
        segment = self.body.pool.segment(parent)
        self.decoder.add(segment)
        self.rows.append((list(ids), segment))

    def step(self) -> torch.Tensor:
        for ids, _ in self.rows:
            ids.append(self.rng.randrange(200))
        return self.decoder.step([ids[-1] for ids, _ in self.rows])

    def end(self, row: int) -> None:
        self.decoder.remove(row)
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last

    @property
    def copied(self) -> int:
        return self.decoder.num_copied

    @property
    def cells(self) -> int:
        """Pages that rows read, those that fill a product up included."""
        return sum(sweep.cells for sweep in self.decoder._sweeps) // self.body.dims.num_kv_heads


def check(steps: Steps, fresh, hidden: torch.Tensor) -> None:
    """Every row's hidden state is that of its text alone."""
    wholes = fresh.extend([(None, ids) for ids, _ in steps.rows])
    for row, (whole, _) in enumerate(wholes):
        torch.testing.assert_close(hidden[row], whole[-1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_rows_behind_any_tree_of_short_steps_see_their_own_text(folder, body, seed: int) -> None:
    """Trees that branch, grow, are cut in place and lose branches while rows come and go."""
    fresh, _ = load_body(folder, dtype="float32", attention=BlockedPrefix, pad_rows=PAD_ROWS)
    steps = Steps(body, seed)
    rng, most = steps.rng, 0
    root = steps.node(0, rng.choice([20, 40, 79]))
    for _ in range(4):
        steps.solution(root, [rng.randint(1, 14) for _ in range(rng.randint(2, 16))])
    for _ in range(30):
        for _ in range(rng.choice([0, 1, 1, 6])):
            steps.row(rng.randrange(1, len(steps.nodes)))
        if rng.random() < 0.3:
            steps.solution(rng.randrange(1, len(steps.nodes)), [rng.randint(1, 14) for _ in range(rng.randint(1, 4))])
        if rng.random() < 0.3:
            segment = rng.choice(steps.nodes[1:])[1]
            if segment.length > 1:
                segment.split(segment.start + rng.randint(1, segment.length - 1))
        if rng.random() < 0.3 and len(steps.nodes) > 6:
            del steps.nodes[rng.randrange(len(steps.nodes) // 2, len(steps.nodes))]
        if steps.rows:
            check(steps, fresh, steps.step())
        most = max(most, steps.copied)
        for row in range(len(steps.rows) - 1, -1, -1):
            if rng.random() < 0.1:
                steps.end(row)
    assert most > 0
    decoder = steps.decoder
    steps.rows.clear(), steps.nodes.clear()
    while decoder.num_rows:
        decoder.remove(0)
    row = body.pool.segment(None)
    decoder.add(row)
    decoder.step([1])
    assert decoder.num_copied == 0  # nobody reads them any more


def labelled(body, seed: int = 0) -> Steps:
    """One solution of fourteen steps, and a row behind each."""
    steps = Steps(body, seed)
    for node in steps.solution(steps.node(0, 20), [9] * 14):
        steps.row(node)
    return steps


def test_a_row_behind_many_short_steps_reads_few_pages_and_without_spare_memory_all_of_them(body) -> None:
    steps = labelled(body)
    steps.step()
    few = steps.cells
    assert 0 < steps.copied <= 3 * 64
    body.pool.spare = 100
    steps.step()
    assert steps.copied == 0 and steps.cells > 2 * few
    body.pool.spare = 3 * 64
    body.pool.version += 1
    steps.step()
    assert 0 < steps.copied <= 3 * 64 and steps.cells == few


def test_a_trunk_grows_with_its_path_and_is_shortened_to_what_is_alive_of_it(folder, body) -> None:
    fresh, _ = load_body(folder, dtype="float32", attention=BlockedPrefix, pad_rows=PAD_ROWS)
    steps = labelled(body)
    check(steps, fresh, steps.step())
    (trunk,) = steps.decoder._trunks._trunks
    length = trunk.copy.length
    steps.row(steps.node(len(steps.nodes) - 1, 7))
    check(steps, fresh, steps.step())
    assert steps.decoder._trunks._trunks == [trunk] and trunk.copy.length == length + 7
    steps.end(len(steps.rows) - 1)
    del steps.nodes[-1]
    gc.collect()
    check(steps, fresh, steps.step())
    assert steps.decoder._trunks._trunks == [trunk] and trunk.copy.length == length


def test_few_short_segments_are_read_where_they_lie(body) -> None:
    steps = Steps(body, 0)
    for _ in range(3):
        steps.row(steps.node(steps.node(0, 16), 5))
    steps.step()
    assert steps.copied == 0
