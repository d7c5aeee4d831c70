"""The device step under emulated CUDA: graphs that hold addresses, queues that run late, a second device.

The kernels here are the plain-torch ones; `interpreted_device` runs the same traffic through Triton's.
"""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from tests.ttc.device_model import Model, PagePool
from tests.ttc.device_reference import REFERENCE_OPS
from tests.ttc.device_traffic import Traffic
from tests.ttc.emulated_cuda import EmulatedCuda, EmulatedStream
from ttc.engines.embedded.device.rows import RowStart
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import StepWeights
from ttc.engines.embedded.device.step import DeviceStep
from ttc.errors import ConfigError, EngineError


def traffic(seed: int, **settings: Any) -> Traffic:
    cuda = EmulatedCuda(home=1)
    run = Traffic(Model(), cuda, REFERENCE_OPS, seed=seed, **settings)
    with cuda:
        run.run()
    return run


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_rows_that_come_go_and_grow_equal_the_model(seed: int) -> None:
    traffic(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_thousand_sequences_of_rows_equal_the_model(block: int) -> None:
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        traffic(seed, events=30, most_rows=8)


def start(pool: PagePool, cuda: EmulatedCuda, weights: StepWeights, **settings: Any) -> DeviceStep:
    runtime = CudaRuntime(torch.device("cuda", cuda.home), cuda)
    return DeviceStep(weights, pool, runtime, ops=REFERENCE_OPS, **settings)


def row(token: int = 3, pages: tuple[int, ...] = (0,), limit: int = 12, **changes: Any) -> RowStart:
    return RowStart(**{"token": token, "position": 0, "first": 0, "pages": pages, "limit": limit, "key": 5, **changes})


def finish(step: DeviceStep) -> dict[int, list[int]]:
    """Look until nothing is to come, or far beyond: a row that lost tokens waits for them for ever."""
    tokens: dict[int, list[int]] = {}
    for _ in range(40):
        if step.idle:
            break
        for ticket, part in step.look().rows.items():
            tokens.setdefault(ticket, []).extend(part.tokens)
    return tokens


def alone(model: Model, **changes: Any) -> list[int]:
    """The tokens of one row with nothing beside it."""
    cuda = EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 4), cuda, model.weights)
        step.start(row(**changes))
        return finish(step)[1]


def test_a_pool_that_is_replaced_takes_its_graphs_along(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()

    def tokens() -> tuple[list[int], int]:
        cuda, pool = EmulatedCuda(), PagePool(model.dims, 4)
        with cuda:
            step = start(pool, cuda, model.weights, ahead=2)
            step.start(row())
            step.look()
            first = step.drain().rows[1].tokens
            pool.grow(8)
            return [*first, *finish(step)[1]], step.graphs.captures

    expected = alone(model)
    assert tokens() == (expected, 2)
    # The check can fail: a table keyed by the bucket alone replays on the old pool.
    keys = PagePool(model.dims, 1).held
    monkeypatch.setattr(DeviceStep, "held", property(lambda self: keys))
    stale, captures = tokens()
    assert captures == 1 and stale != expected


def test_more_rows_and_longer_tables_replace_the_buffers() -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 40), cuda, model.weights, max_rows=1)
        step.start(row())
        step.look()
        step.start(row(token=4, pages=(1, 2)))
        step.start(row(token=5, pages=tuple(range(4, 24))))
        tokens = finish(step)
    assert tokens == {1: alone(model), 2: alone(model, token=4), 3: alone(model, token=5)}


def test_the_warm_up_of_a_capture_waits_for_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    expected = alone(model)

    def both() -> list[int]:
        """The second row's bucket is captured while a block of the first row is queued."""
        cuda = EmulatedCuda()
        with cuda:
            step = start(PagePool(model.dims, 4), cuda, model.weights)
            step.start(row())
            step.look()
            tokens = step.look().rows[1].tokens
            step.start(row(token=4, pages=(1,)))
            return [*tokens, *finish(step)[1]]

    assert both() == expected
    # The check can fail: a side stream that does not wait decodes the live rows of the queued block.
    monkeypatch.setattr(EmulatedStream, "wait_stream", lambda self, other: None)
    assert both() != expected


def test_a_graph_of_another_device_is_empty_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cuda = Model(), EmulatedCuda(home=1)
    monkeypatch.setattr(CudaRuntime, "here", lambda self: contextlib.nullcontext())
    with cuda:
        step = start(PagePool(model.dims, 4), cuda, model.weights)
        step.start(row())
        with pytest.raises(EngineError, match=r"differs from an eager one on cuda:1"):
            step.look()


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_there_is_one_replay_a_token_and_one_wait_a_block(ahead: int) -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 4), cuda, model.weights, ahead=ahead)
        step.start(row(limit=40, pages=(0, 1, 2)))
        for _ in range(2):
            step.look()
        cuda.counts.clear()
        for _ in range(5):
            assert len(step.look().rows[1].tokens) == ahead
    # One copy of tokens a block; nothing goes in, since no row changed; nothing else reads from the device.
    assert cuda.counts == {"replays": 5 * ahead, "launches": 5, "waits": 5}


def test_a_change_costs_one_transfer() -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 8), cuda, model.weights)
        for index in range(4):
            step.start(row(token=index, pages=(index,), limit=15))
        for _ in range(2):
            step.look()
        cuda.counts.clear()
        step.stop(1)
        step.start(row(token=9, pages=(0,), limit=15))
        step.look()
    assert cuda.counts == {"replays": 4, "launches": 2, "waits": 1}


def test_what_comes_for_a_row_that_the_host_stopped_is_overrun_and_never_a_token() -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 8), cuda, model.weights)
        first, second = step.start(row(limit=15)), step.start(row(token=4, pages=(1,), limit=15))
        step.look()
        tokens = step.look().rows[first].tokens
        step.stop(first)
        third = step.start(row(token=6, pages=(0,), limit=15))  # in its row and on its page
        look = step.look()
        assert look.overrun == {first: 4} and first not in look.rows
        rest = finish(step)
    assert first not in rest and list(tokens) == alone(model)[:4]
    assert rest[third] == alone(model, token=6, limit=15)
    assert sorted(rest) == [second, third]


def test_a_row_that_ends_by_itself_has_no_overrun() -> None:
    model, cuda = Model(), EmulatedCuda()
    token = alone(model)[1]
    with cuda:
        step = start(PagePool(model.dims, 8), cuda, model.weights)
        step.start(row(stop_ids=(token,), limit=15))
        looks = [step.look() for _ in range(4)]
    (part,) = (look.rows[1] for look in looks if look.rows)
    assert part.ended == "stop" and part.tokens[-1] == token and len(part.tokens) <= 2
    assert not any(look.overrun for look in looks) and step.idle


def test_a_row_without_pages_waits_and_goes_on() -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 8), cuda, model.weights)
        ticket = step.start(row(limit=30))
        tokens: list[int] = []
        for _ in range(8):
            tokens += step.look().rows.get(ticket, row_tokens()).tokens
        assert len(tokens) == 16
        step.grow(ticket, (0, 5))
        tokens += finish(step)[ticket]
    assert tokens == alone(model, pages=(0, 1), limit=30)


def row_tokens() -> Any:
    from ttc.engines.embedded.device.step import RowTokens

    return RowTokens(())


def test_a_masked_row_takes_one_token_per_mask() -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 8), cuda, model.weights)
        ticket, free = step.start(row(masked=True)), step.start(row(token=4, pages=(1,)))
        assert ticket not in step.look().rows
        tokens: list[int] = []
        for allowed in (7, 40, 33):
            words = np.zeros(2, np.uint32)
            words[allowed // 32] = 1 << allowed % 32
            step.constrain(ticket, words.view(np.int32))
            look = step.look()
            assert look.rows[ticket].tokens == (allowed,)
            tokens += look.rows[free].tokens
        assert ticket not in step.look().rows
        with pytest.raises(EngineError, match="masked=True"):
            step.constrain(free, words.view(np.int32))
        with pytest.raises(EngineError, match="allows no token"):
            step.constrain(ticket, np.zeros(2, np.int32))
    assert tokens == alone(model, token=4)[1:4]


def test_a_masked_row_without_room_keeps_its_mask_while_others_run() -> None:
    model, cuda = Model(), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 8), cuda, model.weights)
        ticket = step.start(row(pages=(), masked=True))
        step.start(row(token=4, pages=(1,)))
        step.constrain(ticket, np.array([0, 1 << 8], np.int32))
        assert ticket not in step.look().rows
        step.grow(ticket, (0,))
        assert step.look().rows[ticket].tokens == (40,)


def test_new_weights_empty_the_table() -> None:
    model, other, cuda = Model(), Model(num_hidden_layers=1), EmulatedCuda()
    with cuda:
        step = start(PagePool(model.dims, 4), cuda, model.weights)
        step.start(row())
        finish(step)
        step.weights = other.weights
        ticket = step.start(row())
        tokens = finish(step)[ticket]
        assert step.graphs.captures == 2
    assert tokens == alone(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop_ids": tuple(range(9))}, "at most 8"),
        ({"position": 12}, "position 12 must lie"),
        ({"first": 1}, "position 0 must lie"),
    ],
)
def test_a_row_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        row(**changes)
