"""The embedded engine on a GPU: random weights in real shapes, beside `transformers.generate` and the memory roofline.

    python -m benchmarks.gpu_bench [--shape qwen3-0.6b llama-1b] [--n 1 16 64 256] [--bandwidth 4800] [--json out.json]

Needs torch, transformers and numpy only. The roofline counts reading the weights once and every row's keys and values
once per step at the stated bandwidth (GB/s; known for common devices). Checks first that greedy tokens agree with
transformers in fp32, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BANDWIDTH = {"H200": 4800, "H100": 3350, "A100": 2039, "L40": 864, "A10": 600, "4090": 1008, "T4": 320}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "teacher": ("qwen3", {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 261}),
    "qwen3-0.6b": ("qwen3", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128,
                             "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936,
                             "tie_word_embeddings": True}),
    "llama-1b": ("llama", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
                           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
                           "tie_word_embeddings": True}),
}  # fmt: skip


def reference(shape: str, dtype: Any, device: Any) -> Any:
    """A transformers model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family, sizes = SHAPES[shape]
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, max_position_embeddings=8192, eos_token_id=None, **sizes)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model.eval()


def scheduler(model: Any) -> Any:
    """The embedded scheduler over the same weights."""
    from ttc.engines.embedded.cuda import CudaDecoder

    from ttc.engines.embedded.batch import BatchLimits
    from ttc.engines.embedded.forest import PAGE_SIZES, ForestDecoder
    from ttc.engines.embedded.model import Body
    from ttc.engines.embedded.scheduler import Scheduler
    from ttc.engines.embedded.weights import Weights
    from ttc.engines.shared.shape import Dims

    dims = Dims.from_config(model.config.to_dict())
    body = Body(
        dims,
        Weights.build(model.state_dict(), dims, model.dtype, model.device, head=True),
        max_context=8192,
        page_sizes=PAGE_SIZES,
    )
    decoder = CudaDecoder if model.device.type == "cuda" else ForestDecoder
    limits = BatchLimits(max_batch=256, kv_bytes=64 << 30)
    return Scheduler(body, decoder, lambda _: "", limits=limits, threads=1)


def sample(engine: Any, ids: Sequence[int], n: int, tokens: int, temperature: float = 0.8) -> list[tuple[int, ...]]:
    """N continuations of one prompt."""
    from ttc import seeds
    from ttc.core import Completion, Sampling
    from ttc.engines.embedded.requests import GenerateRequest
    from ttc.engines.shared.tokens import StopRule

    async def go() -> list[tuple[int, ...]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Completion]] = loop.create_future()
        keys = tuple(seeds.derive(0, (d,)) for d in range(n))
        settings = Sampling(temperature=temperature, max_tokens=tokens, seed=0, logprobs=True)
        rule = StopRule((), (), (), (), lambda _: "")
        engine.submit(GenerateRequest(tuple(ids), (), settings, range(n), keys, rule, loop, future, lambda _: None))
        return [c.token_ids for c in await future]

    return asyncio.run(go())


def check(device: Any, ids: Sequence[int]) -> bool:
    """Whether greedy tokens in fp32 equal transformers' on this device."""
    import torch

    model = reference("teacher", torch.float32, device)
    engine = scheduler(model)
    ours = sample(engine, ids, 3, 40, temperature=0)[0]
    engine.close()
    given = torch.tensor([list(ids)], device=device)
    with torch.inference_mode():
        theirs = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=40, do_sample=False)
    return list(ours) == theirs[0, len(ids) :].tolist()


def measure(shape: str, counts: Sequence[int], tokens: int, bandwidth: float, device: Any) -> list[dict[str, Any]]:
    """Tokens per second of both, and the roofline, for every number of sequences."""
    import torch

    model = reference(shape, torch.bfloat16, device)
    engine = scheduler(model)
    ids = [i % 200 for i in range(200)]
    weights = sum(p.numel() for p in model.parameters()) * 2
    rows = []
    for n in counts:
        sample(engine, ids, n, tokens)  # captures the graphs
        started = time.perf_counter()
        sample(engine, ids, n, tokens)
        ours = n * tokens / (time.perf_counter() - started)
        given = torch.tensor([ids], device=device)
        with torch.inference_mode():
            theirs = 0.0
            for _ in range(2):
                started = time.perf_counter()
                model.generate(
                    given, attention_mask=torch.ones_like(given), do_sample=True, temperature=0.8, top_k=0,
                    num_return_sequences=n, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0,
                )  # fmt: skip
                theirs = n * tokens / (time.perf_counter() - started)
        kv = engine.body.dims.kv_bytes(2) * (len(ids) + tokens / 2) * n
        roof = n / ((weights + kv) / (bandwidth * 1e9))
        rows.append({"shape": shape, "n": n, "embedded": ours, "transformers": theirs, "roofline": roof})
        print(
            f"{shape:<12} n={n:<4} embedded {ours:>9,.0f}  transformers {theirs:>9,.0f} ({ours / theirs:.2f}x)  "
            f"roofline {roof:>9,.0f} ({ours / roof:.0%})",
            flush=True,
        )
    engine.close()
    return rows


def main() -> None:
    """Command line; see the module docstring."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["teacher", "qwen3-0.6b", "llama-1b"], choices=list(SHAPES))
    parser.add_argument("--n", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--bandwidth", type=float, help="GB/s; known for common devices")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    bandwidth = arguments.bandwidth or next((v for k, v in BANDWIDTH.items() if k in name), 50.0)
    agrees = check(device, range(60))
    print(f"{name}, {bandwidth:.0f} GB/s, torch {torch.__version__}; greedy fp32 equals transformers: {agrees}")
    rows = [row for s in arguments.shape for row in measure(s, arguments.n, arguments.tokens, bandwidth, device)]
    if arguments.json:
        facts = {"device": name, "bandwidth": bandwidth, "torch": torch.__version__, "greedy_equal": agrees}
        arguments.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
