"""Kernels of the device step against plain torch. Run by `test_device_kernels` in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import GridExecutor

from tests.ttc import device_reference as reference
from tests.ttc.device_model import Model
from tests.ttc.device_reference import REFERENCE_OPS
from tests.ttc.device_traffic import Traffic
from tests.ttc.emulated_cuda import EmulatedCuda
from tests.ttc.gpu_traffic import BatchTraffic
from ttc.engines.embedded.core.sampler import Penalty, Rows, sample
from ttc.engines.embedded.device import draw
from ttc.engines.embedded.device import rows as record
from ttc.engines.embedded.device.buffers import NUM_STATS, StepBuffers
from ttc.engines.embedded.device.ops import KERNEL_OPS
from ttc.engines.embedded.device.rows import RowStart
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import PAGE, StepWeights, Style
from ttc.engines.embedded.device.uniform import uniform_of
from ttc.engines.embedded.gpu import attention as gpu_attention
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.kernels.plan import PlanCapacity
from ttc.seeds import uniforms


@pytest.fixture(autouse=True)
def few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays by the pass."""
    monkeypatch.setattr(draw, "PIVOTS", 1024)


BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Of numbers around 1: a rounding of the dtype, and a few of fp32."""


def filled(weights: StepWeights, rows: int, seed: int = 0) -> StepBuffers:
    """Buffers with random activations and logits."""
    buffers = StepBuffers.allocate(weights, rows, 4, 4)
    random = torch.Generator().manual_seed(seed)
    for tensor in (buffers.x, buffers.branch, buffers.qkv, buffers.gate_up, buffers.logits):
        tensor.copy_(torch.randn(tensor.shape, generator=random))
    return buffers


def put(buffers: StepBuffers, starts: list[RowStart]) -> None:
    """Records and running positions, as `embed` leaves them."""
    table = buffers.inputs.numpy()
    for index, start in enumerate(starts):
        record.write(table[index], start, index + 1)
        table[index, record.LIMIT] = start.limit
    buffers.positions.fill_(-1)
    for index, start in enumerate(starts):
        buffers.positions[index] = start.position
        words = record.presence(start, buffers.presence.shape[1])
        buffers.presence[index] = torch.from_numpy(words.copy())


def tokens_of(words: torch.Tensor) -> set[int]:
    """The tokens whose bits are set in the presence of a row."""
    return set(np.flatnonzero(np.unpackbits(words.numpy().view(np.uint8), bitorder="little")).tolist())


def row(**changes: Any) -> RowStart:
    return RowStart(**{"token": 3, "position": 9, "first": 0, "pages": (1,), "limit": 15, "key": 7, **changes})


@triton.jit
def uniform_rows(WORDS, POSITIONS, OUT):
    index = tl.program_id(0)
    value = uniform_of(WORDS + 2 * index, tl.load(POSITIONS + index))
    tl.store(OUT + index + tl.arange(0, 1), value)


def test_the_uniform_number_is_that_of_the_seeds_bit_for_bit() -> None:
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**64, 40, np.uint64)
    keys[:4] = 0, 2**64 - 1, 2**63, 2**32 - 1
    positions = random.integers(0, 2**31 - 1, 40)
    positions[:4] = 0, 2**31 - 1, 1, 0
    words = torch.from_numpy(keys.view(np.int32).copy())
    places, out = torch.from_numpy(positions.astype(np.int32)), torch.zeros(40, dtype=torch.float64)
    uniform_rows[(40,)](words, places, out)
    expected = uniforms(keys, positions.astype(np.uint64))
    assert (out.numpy() == expected).all()
    assert (reference.uniforms_of(words[::2], words[1::2], places).numpy() == expected).all()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "num_attention_heads": 7, "num_key_value_heads": 1},
        {"head_dim": 12, "num_attention_heads": 4, "num_key_value_heads": 4},
        {"hidden_size": 1100},
    ],
)
def test_queries_and_the_slot_of_keys_equal_the_reference(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    weights = Model(dtype, **changes).weights
    shape = (5, weights.dims.num_kv_heads, PAGE, weights.dims.head_dim)
    outcomes = []
    for ops in (KERNEL_OPS, REFERENCE_OPS):
        buffers = filled(weights, 3)
        put(buffers, [row(), row(position=0), row()])
        buffers.slots.copy_(torch.tensor([4 * PAGE + 15, 16, -1]))
        keys, values = (torch.zeros(shape, dtype=dtype) for _ in range(2))
        ops.project(buffers, weights, weights.layers[0], keys, values)
        outcomes.append((buffers.q, keys, values))
    for kernel, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(kernel, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    written = outcomes[0][1].abs().sum((1, 3)).nonzero().tolist()
    assert written == [[1, 0], [4, 15]]  # (page, offset); the row without a slot wrote nothing


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_the_gated_activation_equals_the_reference(dtype: torch.dtype, activation: Any) -> None:
    weights = Model(dtype, intermediate_size=1100).weights
    weights = StepWeights(
        *(getattr(weights, name) for name in ("dims", "embed", "layers", "norm", "head", "folded")), Style(activation)
    )
    outcomes = []
    for ops in (KERNEL_OPS, REFERENCE_OPS):
        buffers = filled(weights, 2)
        ops.activate(buffers, weights)
        outcomes.append(buffers.active)
    torch.testing.assert_close(*outcomes, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("place", ["plain", "before", "behind"])
def test_norms_with_their_residual_equal_the_reference(dtype: torch.dtype, place: Any) -> None:
    weights = Model(dtype, hidden_size=1100).weights
    outcomes = []
    for ops in (KERNEL_OPS, REFERENCE_OPS):
        buffers = filled(weights, 2)
        ops.norm(buffers.x, weights.norm, 1e-5, place, y=buffers.branch, out=buffers.normed)
        outcomes.append(torch.stack((buffers.x, buffers.normed)))
    torch.testing.assert_close(*outcomes, rtol=2 * BOUNDS[dtype], atol=2 * BOUNDS[dtype])


def test_a_row_is_new_goes_on_ends_or_waits_as_its_record_says() -> None:
    weights = Model(hidden_size=1100).weights
    starts = [
        row(pages=(3,)),
        row(position=40, first=8, pages=(1, 2, 5), limit=50),  # page 40 - 8 = 2 * 16 + 0
        row(position=12, limit=13),
        row(position=9, limit=20),
    ]
    for ops in (KERNEL_OPS, REFERENCE_OPS):
        buffers = filled(weights, 5)
        put(buffers, starts)
        # The third goes on at its limit, the fourth was ended by a stop id, the fifth row nobody uses.
        buffers.state[2:4] = torch.tensor([[3, 8, 13, 0], [4, 8, 10, 1]])
        buffers.turn[1] = 2
        ops.embed(buffers, weights)
        assert buffers.positions.tolist() == [9, 40, -1, -1, -1]
        assert buffers.slots.tolist() == [3 * PAGE + 9, 5 * PAGE, -1, -1, -1]
        assert buffers.state.tolist() == [[1, 3, 9, 0], [2, 3, 40, 0], [3, 8, 13, 0], [4, 8, 10, 1], [0] * 4]
        assert buffers.turn[0] == 2
        assert torch.equal(buffers.x, weights.embed[[3, 3, 8, 8, 0]])


def settings(num: int, vocab: int) -> list[RowStart]:
    """Rows of every kind of sampling."""
    random = np.random.default_rng(5)
    return [
        row(
            key=int(random.integers(2**63)),
            position=int(random.integers(15)),
            temperature=float(random.choice([0.0, 0.3, 0.7, 1.0, 1.5])),
            top_k=int(random.choice([0, 1, 5, 40, vocab, 2 * vocab])),
            top_p=float(random.choice([1.0, 0.95, 0.5, 0.05])),
            min_p=float(random.choice([0.0, 0.0, 0.05, 1.0])),
            wants_logprobs=bool(i % 2),
            penalty=(1.0, 1.3, 0.5)[i % 3],
            text=tuple(range(i, vocab, 2 + i % 5)),
        )
        for i in range(num)
    ]


@pytest.mark.parametrize(
    ("vocab", "num", "blocks", "scale", "pivots"),
    [(50, 32, 1, 2.0, 1024), (300, 12, 6, 3.0, 1024), (300, 4, 3, 0.01, 8), (2500, 2, 2, 3.0, 8)],
)
def test_a_draw_is_that_of_the_engines_own_sampler(
    vocab: int, num: int, blocks: int, scale: float, pivots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "PIVOTS", pivots)
    weights = Model(vocab_size=vocab).weights
    buffers, starts = filled(weights, num + 1), settings(num, vocab)
    buffers = replace(buffers, stats=torch.zeros(num + 1, NUM_STATS, blocks))
    buffers.logits.mul_(scale)
    put(buffers, starts)
    KERNEL_OPS.survey(buffers, weights)
    KERNEL_OPS.draw(buffers, weights)
    names = ("temperature", "top_p", "top_k", "min_p", "key")
    columns = {name: [getattr(start, name) for start in starts] for name in names}
    expected = sample(
        buffers.logits[:num],
        Rows(
            np.array(columns["temperature"], np.float32),
            np.array(columns["top_p"], np.float32),
            np.array(columns["top_k"], np.int64),
            np.array(columns["min_p"], np.float32),
            np.array(columns["key"], np.uint64),
            np.array([start.position + 1 for start in starts], np.uint64),
            wants_logprobs=True,
            penalties=tuple(Penalty(start.text, (), start.penalty, 0.0, 0.0) for start in starts),
        ),
    )
    assert expected.logprobs is not None and expected.certainty is not None
    assert buffers.output[0, :num, 0].tolist() == expected.tokens.tolist()
    assert buffers.output[0, num, 0] == -1  # the row that does not run
    assert buffers.state[:num, 1:].tolist() == [
        [token, start.position + 1, 0] for token, start in zip(expected.tokens.tolist(), starts, strict=True)
    ]
    facts = buffers.output[0, :num, 1:].contiguous().view(torch.float32).numpy()
    np.testing.assert_allclose(facts[1::2, 0], expected.logprobs[1::2], atol=1e-5)
    np.testing.assert_allclose(facts[1::2, 1], expected.certainty[1::2], atol=1e-4)
    assert (facts[::2] == 0).all()  # nobody asked
    news = [{token} if start.penalty != 1 else set() for start, token in zip(starts, expected.tokens, strict=True)]
    texts = [set(start.text) | new for start, new in zip(starts, news, strict=True)]
    assert [tokens_of(words) for words in buffers.presence[:num]] == texts


def drawn_tokens(weights: StepWeights, logits: list[float], num: int, **changes: Any) -> set[int]:
    """The tokens of `num` draws from one distribution."""
    buffers = filled(weights, num)
    buffers.logits.fill_(-20.0)
    buffers.logits[:, : len(logits)] = torch.tensor(logits)
    put(buffers, [row(key=key, **changes) for key in range(num)])
    KERNEL_OPS.survey(buffers, weights)
    KERNEL_OPS.draw(buffers, weights)
    return set(buffers.output[0, :, 0].tolist())


@pytest.mark.parametrize(
    ("changes", "num", "tokens"),
    [
        ({"top_k": 2}, 16, {0, 1, 2}),  # 1 and 2 are tied for the second place
        ({"top_k": 1}, 4, {0}),
        ({"top_k": 3, "top_p": 0.6}, 16, {0, 1, 2}),  # 0 has half of the three
        ({"top_p": 0.4}, 4, {0}),
        ({"top_k": 4}, 24, {0, 1, 2, 3}),
        ({"min_p": 0.4}, 16, {0, 1, 2}),
        ({"temperature": 0.0}, 2, {0}),
    ],
)
def test_tokens_tied_with_the_last_one_stay(changes: dict[str, Any], num: int, tokens: set[int]) -> None:
    assert drawn_tokens(Model().weights, [2.0, 1.3, 1.3, 0.9, 0.2], num, **changes) == tokens


def test_a_masked_row_draws_allowed_tokens_only_and_its_neighbours_do_not_see_the_mask() -> None:
    weights, num = Model(vocab_size=70).weights, 12
    buffers = filled(weights, num)
    put(buffers, [row(key=key, temperature=0.0 if key == 0 else 2.0, top_k=key % 3 * 30) for key in range(num)])
    buffers.masks.copy_(torch.tensor([0, 0, 0]))  # a row that read them would have no token at all
    allowed = {5, 31, 32, 64, 69}
    bits = np.zeros(96, np.uint8)
    bits[list(allowed)] = 1
    buffers.masks[1] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy())
    buffers.inputs[: num // 2, record.MASK] = 1
    for ops in (KERNEL_OPS, REFERENCE_OPS):
        buffers.turn.zero_()
        ops.survey(buffers, weights)
        ops.draw(buffers, weights)
        tokens = buffers.output[0, :, 0].tolist()
        assert set(tokens[: num // 2]) <= allowed and tokens[0] == max(allowed, key=lambda t: buffers.logits[0, t])
        assert set(tokens[num // 2 :]) - allowed


def test_a_stop_id_ends_a_row() -> None:
    weights = Model().weights
    buffers = filled(weights, 2)
    buffers.logits[:, 11] = 50.0
    put(buffers, [row(stop_ids=(4, 11)), row(stop_ids=(4,))])
    KERNEL_OPS.survey(buffers, weights)
    KERNEL_OPS.draw(buffers, weights)
    assert buffers.state[:, 1:].tolist() == [[11, 10, 1], [11, 10, 0]]


def test_the_whole_step_with_its_kernels_captured_equals_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, execute = EmulatedCuda(), GridExecutor.__call__
    monkeypatch.setattr(
        GridExecutor, "__call__", lambda self, *args, **kwargs: cuda.launch(lambda: execute(self, *args, **kwargs))
    )
    traffic = Traffic(Model(), cuda, KERNEL_OPS, seed=62, events=6, most_rows=2)
    with cuda:
        traffic.run()
    assert cuda.counts["replays"] > 8


def test_the_wired_decoder_with_its_kernels_equals_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, execute, model = EmulatedCuda(), GridExecutor.__call__, Model(head_dim=32, num_hidden_layers=1)
    monkeypatch.setattr(
        GridExecutor, "__call__", lambda self, *args, **kwargs: cuda.launch(lambda: execute(self, *args, **kwargs))
    )
    monkeypatch.setattr(gpu_attention, "_LEAST", PlanCapacity(rows=1, items=4, members=8, pages=8))
    runtime = CudaRuntime(torch.device("cuda:0"), cuda)
    traffic = BatchTraffic(model, DeviceBody(model.weights, runtime, num_pages=30, max_context=512), seed=4, events=5)
    with torch.inference_mode(), cuda, traffic.body.place():
        traffic.run()
        cuda.flush()
    traffic.check()
    assert cuda.counts["replays"] > 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_steps_stay_near_the_model(dtype: torch.dtype) -> None:
    # bf16 has its norms folded into the matrices, fp16 keeps them apart.
    model = Model(dtype)
    assert model.weights.folded == (dtype == torch.bfloat16)
    logits = Traffic.first_logits(model, KERNEL_OPS, [3, 1, 4, 1, 5, 9, 2, 6])
    expected, _ = model.run([3, 1, 4, 1, 5, 9, 2, 6])
    error = (logits.double() - expected[-1]).norm() / expected[-1].norm()
    assert error < {torch.bfloat16: 0.03, torch.float16: 0.004}[dtype]
