"""The embedded engine on a GPU: whether its results equal the CPU's, then its speed beside the estimates.

    python -m benchmarks.gpu_bench [--model 0.5B 7B] [--bandwidth 4800] [--json out.json]      (make gpu-bench)

Needs torch, triton, transformers and numpy only; ends within nine minutes, with status 1 if results differ.
Correctness: a small random model in fp32 draws with the same seeds on the GPU and on the CPU, token by token, and its
greedy tokens are those of transformers. Speed: random weights in the shapes of Qwen2.5-0.5B and 7B in bf16, prompts of
540 tokens, rows of about 600; tokens per second of decoding alone, from two runs that differ by 128 tokens. The
roofline reads the weights and every unique key once per step at the stated bandwidth (GB/s; known for common devices).
The estimates for an H100 are those of `gpu_counts`, made before any run on a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_counts import BANDWIDTH as H100
from benchmarks.gpu_counts import BATCHES, SHAPES, WEIGHTS, branches, count, estimate, meta_weights

BANDWIDTHS = {"H200": 4800, "H100": 3350, "A100": 2039, "L40": 864, "A10": 600, "4090": 1008, "T4": 320}
SMALL = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 261}  # fmt: skip
LIMIT_S = 480.0
"""Seconds after which no further measurement starts."""
MORE = 128  # tokens by which the two timed runs differ


@dataclass(frozen=True)
class GpuSpeed:
    """Decoding: tokens per second, the share of the roofline, and the share that was estimated."""

    model: str
    rows: int
    prefix: int
    measured: float
    share: float
    estimated: float


def on_a_gpu(weights: Any, device: Any, max_context: int) -> Any:
    """The scheduler as `engine.device=cuda` starts it; the pool is half of what is free."""
    import torch

    from ttc.engines.embedded.core.batch import BatchLimits
    from ttc.engines.embedded.core.scheduler import Scheduler
    from ttc.engines.embedded.device.runtime import CudaRuntime
    from ttc.engines.embedded.gpu.batch import DeviceBatch
    from ttc.engines.embedded.gpu.body import DeviceBody
    from ttc.engines.embedded.gpu.decoder import DeviceDecoder
    from ttc.engines.embedded.gpu.pool import page_bytes

    page = page_bytes(weights.dims, weights.embed.element_size())
    num_pages = min(torch.cuda.mem_get_info(device)[0] // 2 // page, 40_000)
    body = DeviceBody(weights, CudaRuntime(device), num_pages=num_pages, max_context=max_context)
    limits = BatchLimits(max_batch=256, kv_bytes=(num_pages - num_pages // 8) * page)
    return Scheduler(body, DeviceDecoder, lambda _: "", limits=limits, threads=1, make_batch=DeviceBatch)


def on_the_cpu(state: Any, dims: Any) -> Any:
    """The scheduler of the CPU, in fp32."""
    import torch

    from ttc.engines.embedded.core.batch import BatchLimits
    from ttc.engines.embedded.core.invariant import PAD_ROWS, BlockedPrefix, InvariantDecoder
    from ttc.engines.embedded.core.model import Body
    from ttc.engines.embedded.core.scheduler import Scheduler
    from ttc.engines.embedded.core.weights import Weights

    weights = Weights.build(state, dims, torch.float32, torch.device("cpu"), head=True)
    body = Body(dims, weights, max_context=2048, attention=BlockedPrefix, pad_rows=PAD_ROWS)
    return Scheduler(body, InvariantDecoder, lambda _: "", limits=BatchLimits(256, 1 << 30), threads=1)


def sample(
    engine: Any, prompts: Sequence[Sequence[int]], draws: int, tokens: int, **settings: Any
) -> list[tuple[int, ...]]:
    """`draws` continuations of each prompt."""
    from ttc import seeds
    from ttc.core import Completion, Sampling
    from ttc.engines.embedded.core.requests import GenerateRequest
    from ttc.engines.shared.tokens import StopRule

    async def go() -> list[tuple[int, ...]]:
        loop = asyncio.get_running_loop()
        sampling = Sampling(**{"temperature": 0.8, "max_tokens": tokens, "seed": 0, "logprobs": True, **settings})
        rule = StopRule((), (), (), (), lambda _: "")
        futures: list[asyncio.Future[list[Completion]]] = []
        for number, ids in enumerate(prompts):
            future: asyncio.Future[list[Completion]] = loop.create_future()
            keys = tuple(seeds.derive(0, (number, draw)) for draw in range(draws))
            engine.submit(
                GenerateRequest(
                    tuple(ids), "", (), sampling, range(draws), keys, rule, loop, future, lambda _: None
                )
            )  # fmt: skip
            futures.append(future)
        return [completion.token_ids for future in futures for completion in await future]

    return asyncio.run(go())


def agreement(device: Any) -> dict[str, bool]:
    """Whether a small model draws the same tokens on the GPU and on the CPU, and greedily those of transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ttc.engines.embedded.device.shape import fold
    from ttc.engines.shared.shape import Dims

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", max_position_embeddings=2048, eos_token_id=None, **SMALL)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    dims, state = Dims.from_config(model.config.to_dict()), model.state_dict()
    gpu = on_a_gpu(fold(state, dims, torch.float32, device, max_context=2048), device, 2048)
    cpu = on_the_cpu(state, dims)
    prompts = [[(7 * i + n) % 261 for i in range(40 + n)] for n in range(6)]
    same = {
        name: sample(gpu, prompts, 4, 60, **settings) == sample(cpu, prompts, 4, 60, **settings)
        for name, settings in {
            "draws equal the CPU's": {},
            "draws with top_k and top_p equal the CPU's": {"top_p": 0.9, "top_k": 20},
            "greedy tokens equal the CPU's": {"temperature": 0.0},
        }.items()
    }
    ours = sample(gpu, prompts[:1], 1, 40, temperature=0.0)[0]
    gpu.close(), cpu.close()
    whole = torch.tensor([prompts[0]])
    with torch.inference_mode():
        theirs = model.generate(whole, attention_mask=torch.ones_like(whole), max_new_tokens=40, do_sample=False)
    return same | {"greedy tokens equal transformers'": list(ours) == theirs[0, len(prompts[0]) :].tolist()}


def rate(engine: Any, prompts: Sequence[Sequence[int]], draws: int) -> float:
    """Tokens per second of decoding."""
    sample(engine, prompts, draws, 8)  # fills the prefix tree, captures the graphs

    def seconds(tokens: int) -> float:
        started = time.perf_counter()
        sample(engine, prompts, draws, tokens)
        return time.perf_counter() - started

    seconds(8 + MORE)  # the plans of longer rows may take graphs of their own
    return len(prompts) * draws * MORE / (seconds(8 + MORE) - seconds(8))


def speeds(models: Sequence[str], bandwidth: float, device: Any, started: float) -> Iterator[GpuSpeed]:
    """Batches of unshared prompts, and 64 branches over one of 4,096 tokens."""
    import torch

    from ttc.engines.shared.shape import Dims

    for name in models:
        dims = Dims.from_config(SHAPES[name])
        kv, weights = dims.kv_bytes(2), WEIGHTS[name]
        engine = on_a_gpu(meta_weights(dims, str(device)), device, 16384)
        for rows, prefix in (*((rows, 540) for rows in BATCHES), (64, 4096)):
            if time.monotonic() - started > LIMIT_S:
                break
            shared = prefix == 4096
            prompts = [[(i * 31 + n * 7) % dims.vocab for i in range(prefix)] for n in range(1 if shared else rows)]
            measured = rate(engine, prompts, rows if shared else 1)
            unique = prefix + rows * MORE / 2 if shared else rows * (prefix + MORE / 2)
            roof = rows / ((weights + unique * kv) / (bandwidth * 1e9))
            counted = count(name, rows, looks=2)
            expected = _expected(counted, rows, shared, weights, kv)
            yield GpuSpeed(name, rows, prefix if shared else 0, measured, measured / roof, expected)
        engine.close()
        del engine
        torch.cuda.empty_cache()


def _expected(counted: Any, rows: int, shared: bool, weights: float, kv: int) -> float:
    """The share that `gpu_counts` estimates."""
    if not shared:
        return next(float(v) for name, v in estimate(counted).items() if "tree" in name)
    tokens = float(branches(counted)["tree tok/s"])
    return tokens * (weights + (4096 + rows * 300) * kv) / H100 / rows


def main() -> None:
    """Command line; see the module docstring."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--bandwidth", type=float, help="GB/s; known for common devices")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU is here")
    started, device = time.monotonic(), torch.device(arguments.device)
    name = torch.cuda.get_device_name(device)
    bandwidth = arguments.bandwidth or next((v for k, v in BANDWIDTHS.items() if k in name), 1000)
    print(f"{name}, {bandwidth:.0f} GB/s, torch {torch.__version__}")
    agrees = agreement(device)
    for what, holds in agrees.items():
        print(f"{what}: {holds}", flush=True)
    print(f"{'model':<6} {'rows':>4} {'prefix':>6} {'tok/s':>9} {'of the roofline':>16} {'estimated':>10}")
    rows = []
    for one in speeds(arguments.model, bandwidth, device, started):
        rows.append(one)
        line = f"{one.model:<6} {one.rows:>4} {one.prefix or '':>6} {one.measured:>9,.0f} {one.share:>16.0%}"
        print(f"{line} {one.estimated:>10.0%}", flush=True)
    if arguments.json:
        facts = {"device": name, "bandwidth": bandwidth, "torch": torch.__version__, **agrees}
        arguments.json.write_text(json.dumps({**facts, "rows": [asdict(one) for one in rows]}, indent=1) + "\n")
    sys.exit(0 if all(agrees.values()) else 1)


if __name__ == "__main__":
    main()
