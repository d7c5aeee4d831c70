"""Launches, transfers and waits of a decoding step on a GPU, counted without one; and its speed, estimated.

    python -m benchmarks.gpu_counts [--json FILE]

Counted: the engine's own batch and decoder over meta tensors in the shapes of Qwen2.5-0.5B and 7B, with `torch.cuda`
replaced by a counter and Triton's launches intercepted; prefill is left out. Attention counts as two nodes a layer, the
partial results of pieces and their merge. Matrix products count as one node each; a library that splits one over its
inner size adds a node to it, which cannot be seen here. Keys are those of one key head: of the plan's items up to the
positions of their rows, and of the existing segments. Where more rows share a key than a tile holds (18 at seven query
heads), its programs start together and all but the first should find it in the device's cache.

Estimated (+-40 %), never measured: tokens per second on one H100 SXM (3.35 TB/s), bf16, context 600, by the arithmetic
of the first audit: weights at the share of the bandwidth that matrix products reach, three quarters of the nodes at 2.2
us, keys at the attention's share of the bandwidth, the head, and the sampler's passes over the logits. The host is
assumed to cost nothing: it reads results once in four tokens, while the next four are queued.

Needs torch, numpy and triton.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ttc.engines.shared.shape import Dims

RESULTS = Path(__file__).parent / "results" / "gpu_counts.json"
BATCHES = (1, 64, 256)
QWEN2 = {"model_type": "qwen2", "max_position_embeddings": 32768}
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": QWEN2
    | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
       "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "7B": QWEN2
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
       "num_key_value_heads": 4, "vocab_size": 152064},
}  # fmt: skip

# The audit's original constants, from its `speed_estimate.py`.
BANDWIDTH = 3.35e12
NODE_S = 2.2e-6
WEIGHTS = {"0.5B": 0.99e9, "7B": 14.1e9}
HEAD_S = {"0.5B": 0.02e-3, "7B": 0.05e-3}
PRODUCTS = {("0.5B", 1): 0.85, ("0.5B", 64): 0.85, ("0.5B", 256): 0.85,
            ("7B", 1): 0.8, ("7B", 64): 0.8, ("7B", 256): 0.62}  # fmt: skip
MASKED, TREE = 0.55, 0.7
"""Share of the bandwidth: of torch's masked attention, which the audit's batches had, and of tree attention."""
BEFORE = {"0.5B": (12, 16, 19), "7B": (54, 53, 39)}
"""Percent of the roofline that the audit gave the code of then."""
PEERS = {
    "gpt-fast, 7B, batch 1, its own page": "82 % of the attainable bandwidth (1,397 of about 1,700 GB/s)",
    "nano-vllm, 256 sequences, 0.6B, RTX 4070 laptop, its own page": "1,434 tok/s, vLLM 1,362 tok/s",
}


class CountingCuda(TorchDispatchMode):
    """`torch.cuda`, as far as the step uses it: counts what is queued, runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.nodes: Counter[str] = Counter()
        self.capturing = self.apart = False

    def count(self, name: str) -> None:
        """A kernel: of a graph while one is captured, beside it otherwise."""
        if self.capturing:
            self.nodes[name] += 1
        elif not self.apart:
            self.counts[f"launch {name}"] += 1

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count kernels; values are of no interest."""
        kwargs, name = kwargs or {}, function._schema.name.removeprefix("aten::")
        if name in ("_local_scalar_dense", "equal", "is_nonzero"):
            self.counts["blocking read"] += 1
            return True
        arguments = [a for a in function._schema.arguments if a.alias_info is not None]
        if any(not a.alias_info.is_write for a in arguments) or name.startswith(("empty", "new_empty", "zeros")):
            return function(*args, **kwargs)
        self.count(name)
        for place, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                return kwargs[argument.name] if argument.kwarg_only else args[place]
        return function(*args, **kwargs)

    def CUDAGraph(self) -> CountingCuda:
        """The graph is the counter."""
        return self

    def replay(self) -> None:
        """A graph is launched."""
        self.counts["replay"] += 1

    @contextlib.contextmanager
    def graph(self, graph: Any, capture_error_mode: str) -> Iterator[None]:
        """Count nodes, once."""
        self.capturing, self.nodes = True, Counter()
        yield
        self.capturing = False

    def current_stream(self, device: Any) -> CountingCuda:
        """A stream is the counter."""
        return self

    Stream = current_stream

    def wait_stream(self, other: Any) -> None:
        """No kernel, no wait of the host."""

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """The warm-up of a capture."""
        self.apart = True
        yield
        self.apart = False

    def device(self, device: Any) -> contextlib.nullcontext[None]:
        """There is one."""
        return contextlib.nullcontext()

    def Event(self) -> CountingCuda:
        """An event is the counter."""
        return self

    def record(self, stream: Any) -> None:
        """No wait."""

    def synchronize(self) -> None:
        """The host waits."""
        self.counts["blocking wait"] += 1


@dataclass(frozen=True)
class Counted:
    """Of one model and batch; per token."""

    model: str
    batch: int
    nodes: int
    nodes_a_layer: float
    replays: float
    launches_beside: float
    launches_beside_with_rows_that_change: float
    blocking: float
    keys_read: int
    keys_unique: int


def meta_weights(dims: Dims, device: str = "meta") -> Any:
    """Weights without memory; on another device random ones."""
    from ttc.engines.embedded.device.shape import StepLayer, StepWeights

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(std=0.02)

    heads = (dims.num_heads + 2 * dims.num_kv_heads) * dims.head_dim
    table = torch.ones(32768, dims.head_dim, device=device)
    layers = tuple(
        StepLayer(
            qkv=matrix(heads, dims.hidden),
            bias=torch.zeros(heads, device=device),
            out=matrix(dims.hidden, dims.num_heads * dims.head_dim),
            gate_up=matrix(2 * dims.intermediate, dims.hidden),
            down=matrix(dims.hidden, dims.intermediate),
            cos=table,
            sin=table,
        )
        for _ in range(dims.num_layers)
    )
    embed, norm = matrix(dims.vocab, dims.hidden), torch.ones(dims.hidden, device=device)
    return StepWeights(dims, embed, layers, norm, embed, folded=True)


class MetaRuntime:
    """CUDA that counts; host tensors read as token 0."""

    def __init__(self, cuda: CountingCuda) -> None:
        from ttc.engines.embedded.device.runtime import CudaRuntime

        self.real = CudaRuntime(torch.device("cuda"), cuda)
        self.here, self.apart, self.capture, self.mark = (
            getattr(self.real, name) for name in ("here", "apart", "capture", "mark")
        )
        self.device = torch.device("cuda")

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return torch.zeros(like.shape, dtype=like.dtype)


def meta_body(dims: Dims, pool: Any, **parts: Any) -> Any:
    """A body of a GPU over meta tensors, whose prefill takes pages and computes nothing."""

    def extend(items: Sequence[tuple[Any, Sequence[int]]]) -> list[tuple[None, Any]]:
        segments = [pool.segment(prefix) for prefix, _ in items]
        for segment, (_, ids) in zip(segments, items, strict=True):
            pool.reserve(segment, len(ids))
            segment.length += len(ids)
        return [(None, segment) for segment in segments]

    return SimpleNamespace(
        ends_prompts=False, dims=dims, dtype=torch.bfloat16, device=torch.device("meta"), pool=pool, device_pool=pool,
        extend=extend, prefill=extend, **parts,
    )  # fmt: skip


def wired(model: str, rows: int, cuda: CountingCuda, ended: set[int]) -> Any:
    """The batch of a GPU over meta tensors: the engine's own decoder, its step counted, prefill left out."""
    from ttc.engines.embedded.core.batch import BatchLimits
    from ttc.engines.embedded.device.ops import KERNEL_OPS
    from ttc.engines.embedded.gpu.attention import AttentionKernels
    from ttc.engines.embedded.gpu.batch import DeviceBatch
    from ttc.engines.embedded.gpu.decoder import DeviceDecoder
    from ttc.engines.embedded.gpu.pool import DevicePool

    dims, meta = Dims.from_config(SHAPES[model]), torch.device("meta")

    def send(numbers: Any) -> torch.Tensor:
        cuda.count("transfer")
        return torch.empty(numbers.shape, dtype=torch.long, device=meta)

    def decode(q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        cuda.count("attention partials")
        cuda.count("attention merge")
        return q

    pool = DevicePool(dims, torch.bfloat16, meta, 80_000, send)

    def on_token(draw: Any) -> None:
        draw.ended = draw.key in ended

    body = meta_body(
        dims, pool, windows=(None,) * 99, runtime=MetaRuntime(cuda), kernels=AttentionKernels(decode, decode),
        ops=KERNEL_OPS, step_weights=meta_weights(dims), max_context=32768,
    )  # fmt: skip
    return DeviceBatch(body, DeviceDecoder, BatchLimits(rows, 1 << 40), on_token)  # type: ignore[arg-type]


def ask(batch: Any, prompt: tuple[int, ...], keys: Sequence[int]) -> None:
    """Draws of one prompt that go on for long."""
    from ttc.core import Sampling
    from ttc.engines.embedded.core.requests import GenerateRequest
    from ttc.engines.shared.tokens import StopRule

    settings, rule = Sampling(max_tokens=20_000, top_p=0.95, seed=0), StopRule((), (), (), (), lambda _: "")
    loop = asyncio.new_event_loop()
    future: Any = loop.create_future()
    loop.close()
    batch.add(
        GenerateRequest(prompt, "", (), settings, range(len(keys)), tuple(keys), rule, loop, future, lambda _: None)
    )


def count(model: str, batch: int, looks: int = 32) -> Counted:
    """Run the engine's decoder for `looks` blocks, first as it is, then with one row gone and one come in each."""
    from triton.runtime.jit import JITFunction

    cuda, ended = CountingCuda(), set[int]()
    runs, JITFunction.run = JITFunction.run, lambda self, *_, **__: cuda.count(self.fn.__name__)
    try:
        with torch.inference_mode(), cuda:
            rows = wired(model, batch, cuda, ended)
            for row in range(batch):
                ask(rows, tuple(range(row, row + 600)), [row])
            for _ in range(batch + 4):
                rows.tick()
            read, unique = keys_of(rows)
            cuda.counts.clear()
            for _ in range(looks):
                rows.tick()
            steady = cuda.counts.copy()
            cuda.counts.clear()
            for look in range(looks):
                ended.add(look)
                ask(rows, tuple(range(batch + look, batch + look + 600)), [batch + look])
                rows.tick()
            changed = cuda.counts.copy()
    finally:
        JITFunction.run = runs
    dims, tokens, total = Dims.from_config(SHAPES[model]), steady["replay"], sum(cuda.nodes.values())
    blocking = steady["blocking wait"] + steady["blocking read"]
    outside = 5  # embedding, final norm, head, and the sampler's two
    return Counted(
        model, batch, total, (total - outside) / dims.num_layers, steady["replay"] / (4 * looks),
        _launches(steady) / tokens, _launches(changed) / max(changed["replay"], 1), blocking / tokens, read, unique,
    )  # fmt: skip


def keys_of(batch: Any) -> tuple[int, int]:
    """Keys that the programs of one key head read in the next step, and those that are there."""
    decoder, plan = batch._decoder, batch._decoder._attention.schedule
    places = {decoder._step.index(ticket): decoder._step.reach(ticket) for ticket in decoder._seats}
    own = {
        seat.segment: decoder._step.reach(ticket) + 1 - seat.segment.start for ticket, seat in decoder._seats.items()
    }
    segments = {part for draw in batch.rows for part in draw.segment.chain()}
    read = 0
    for _, tokens, first, offset, rows in plan.items.tolist():
        # An item ends at the highest position of its rows: room that is planned ahead is not read.
        highest = max(places.get(row, -1) for row in plan.members[offset : offset + rows].tolist())
        read += max(min(tokens, highest + 1 - first), 0)
    return read, sum(own.get(part, part.length) for part in segments)


def branch_keys(model: str, rows: int = 64, prefix: int = 4096, own: int = 300) -> tuple[int, int]:
    """The same for branches over one prompt, once each has `own` tokens."""
    from triton.runtime.jit import JITFunction

    cuda = CountingCuda()
    runs, JITFunction.run = JITFunction.run, lambda self, *_, **__: None
    try:
        with torch.inference_mode(), cuda:
            batch = wired(model, rows, cuda, set())
            ask(batch, tuple(range(prefix)), range(rows))
            while not batch.rows or len(batch.rows[0].ids) < own:
                batch.tick()
            return keys_of(batch)
    finally:
        JITFunction.run = runs


def _launches(counts: Counter[str]) -> int:
    return sum(number for name, number in counts.items() if name.startswith("launch"))


def estimate(counted: Counted, context: int = 600) -> dict[str, Any]:
    """Share of the roofline, with either share of the bandwidth for attention."""
    dims, model, rows = Dims.from_config(SHAPES[counted.model]), counted.model, counted.batch
    kv = dims.kv_bytes(2)
    floor = (WEIGHTS[model] + rows * context * kv) / BANDWIDTH
    keys = rows * -(-context // 16) * 16 * kv
    step = WEIGHTS[model] / (PRODUCTS[model, rows] * BANDWIDTH) + 0.75 * counted.nodes * NODE_S + HEAD_S[model]
    step += rows * dims.vocab * 2 * 3 / (MASKED * BANDWIDTH)  # written, surveyed, drawn from
    shares = {name: floor / (step + keys / (share * BANDWIDTH)) for name, share in (("masked", MASKED), ("tree", TREE))}
    before = BEFORE[model][BATCHES.index(rows)] / 100
    return {"model": model, "batch": rows, "roofline tok/s": round(rows / floor), "audited code": before} | {
        f"share, {name} attention at {share} of the bandwidth": round(shares[name], 3)
        for name, share in (("masked", MASKED), ("tree", TREE))
    }


def branches(counted: Counted, rows: int = 64, prefix: int = 4096, own: int = 300) -> dict[str, Any]:
    """The audit's tokens per second of a paged engine and of tree attention, the latter with the nodes counted here."""
    model, kv = counted.model, Dims.from_config(SHAPES[counted.model]).kv_bytes(2)
    then = {"0.5B": 482, "7B": 558}[model]
    read = WEIGHTS[model] / (PRODUCTS[model, 64] * BANDWIDTH)
    paged = read + 0.35 * then * NODE_S + rows * (prefix + own) * kv / (0.85 * BANDWIDTH) + 0.5e-3
    tree = read + 0.75 * counted.nodes * NODE_S + (prefix + rows * own) * kv / (TREE * BANDWIDTH) + 0.3e-3
    read, unique = branch_keys(model, rows, prefix, own)
    return {"model": model, "branches": rows, "prefix": prefix, "keys of programs": read, "unique keys": unique,
            "paged tok/s": round(rows / paged),
            "tree tok/s": round(rows / tree), "ratio": round(paged / tree, 2)}  # fmt: skip


def main() -> None:
    """Print three tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    counts = [count(model, batch) for model in SHAPES for batch in BATCHES]
    tables = {
        "counted, per token": [vars(one) for one in counts],
        "estimated share of the roofline": [estimate(one) for one in counts],
        "estimated, branches over one prefix": [branches(one) for one in counts if one.batch == 64],
        "peers": PEERS,
        "conditions": f"torch {torch.__version__}, Python {platform.python_version()}, no GPU: meta tensors",
    }
    print(json.dumps(tables, indent=1))
    arguments.json.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
