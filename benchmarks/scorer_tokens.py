"""What a reward model costs in a tree search, in scored tokens per unique token, on every backend.

    VLLM_PYTHON -m benchmarks.scorer_tokens --tokenizer smollm2 [--save FILE.json]

A search is played without a generator: at each depth the kept paths get four children each, of random words, with step
lengths as measured on reasoning models (log-normal, mean 60 tokens, coefficient of variation 0.9), two are kept. Unique
tokens are the distinct prefixes that the reward model must read. The model is small and random, a Llama with the
tokenizer of `--tokenizer`, since only lengths matter: once a language model that judges steps (`rlhflow_prm`), once a
token classifier (`trl_prm`). Servers are real vLLM servers on loopback; blocks of the prefix cache hold 32 tokens, the
least on a CPU (16 on a GPU halve the surplus). Left out: speed; scores are only compared with `embedded`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ttc.core import Completion, Message, Prompt, Scorer, Usage
from ttc.scorers.prm import prm

PROBLEMS, DEPTH, CHILDREN, KEPT = 12, 6, 4, 2
WORDS = """the a one two three first then so we know that number sum product of is equal to half twice it and with from
take add find how many each total more less than left apples train hours speed length area side angle because hence"""
SERVER = ["--max-model-len", "2048", "--block-size", "32", "--enforce-eager", "--enable-prompt-tokens-details"]
SERVER += ["--no-enable-chunked-prefill", "--served-model-name", "reward"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def searches(delimiter: str) -> list[list[list[Prompt]]]:
    """Per problem and depth: the paths that a search would have scored."""
    rng = random.Random(1)
    words = WORDS.split()

    def step() -> str:
        num = min(max(round(rng.lognormvariate(3.84, 0.77)), 5), 250)
        return " ".join(rng.choice(words) for _ in range(num)) + "." + delimiter

    found = []
    for number in range(PROBLEMS):
        messages = (Message("user", " ".join(rng.choice(words) for _ in range(60)) + "?"),)
        kept = [Prompt("", None, messages=messages, problem_id=str(number))]
        levels = []
        for _ in range(DEPTH):
            children = [
                node.then(Completion((*node.path, draw), step(), (), "stop"))
                for node in kept
                for draw in range(CHILDREN)
            ]
            levels.append(children)
            kept = rng.sample(children, KEPT)
        found.append(levels)
    return found


async def play(scorer: Scorer, found: Sequence[Sequence[Sequence[Prompt]]]) -> tuple[int, list[float]]:
    """Score level by level, all problems at once; returns the scored tokens and the last score of every path."""
    usages: list[Usage] = []

    async def one(levels: Sequence[Sequence[Prompt]]) -> list[float]:
        scores = [score for level in levels for score in await scorer.score(level, usages.append)]
        return [score.steps[-1] for score in scores]

    scores = await asyncio.gather(*(one(levels) for levels in found))
    return sum(usages, Usage()).scored, [score for part in scores for score in part]


def unique(local: Any, found: Sequence[Sequence[Sequence[Prompt]]]) -> int:
    """Distinct prefixes of what the reward model reads."""
    total = 0
    for levels in found:
        laid = [local._layout.root(levels[0][0]), *(local._layout.lay(path).ids for level in levels for path in level)]
        total += len({hash(ids[: end + 1]) for ids in laid for end in range(len(ids))})
    return total


def random_model(tokenizer: Path, folder: Path, num_labels: int | None) -> Path:
    """A small random Llama with this tokenizer: a language model, or a token classifier of so many labels."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

    own = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    size = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**size, vocab_size=len(own), max_position_embeddings=2048, num_labels=num_labels or 2)
    model = LlamaForCausalLM(config) if num_labels is None else LlamaForTokenClassification(config)
    model.save_pretrained(folder)
    own.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def vllm_server(folder: Path, *options: str) -> Iterator[str]:
    """A vLLM server of `folder` on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *SERVER, *options]
    with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "log").open("wb") as log:
        where = {"stdout": log, "stderr": subprocess.STDOUT, "cwd": scratch}
        process = subprocess.Popen([*command, "--port", str(port)], env=os.environ | ENVIRONMENT, **where)
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                    break
                time.sleep(0.5)
            else:
                sys.exit((Path(scratch) / "log").read_text(errors="replace")[-2000:])
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def measure(kind: str, folder: Path, adapter: str, delimiter: str, options: Sequence[str]) -> list[dict[str, Any]]:
    """One row per backend for one form of the model."""
    found, rows = searches(delimiter), []
    local = prm(str(folder), adapter=adapter, device="cpu")
    reference: list[float] = []

    def add(backend: str, scorer: Scorer) -> None:
        scored, scores = asyncio.run(play(scorer, found))
        reference.extend(scores if not reference else [])
        apart = max(abs(a - b) for a, b in zip(scores, reference, strict=True))
        row = {"model": kind, "backend": backend, "ratio": scored / whole, "scored": scored, "unique": whole}
        row["tokens_per_step"] = whole / len(scores)
        rows.append({**row, "largest_difference": apart})
        print(f"{kind:6} {backend:18} {scored / whole:6.3f} scored tokens per unique token, scores within {apart:.4f}")

    whole = unique(local, found)
    add("embedded", local)
    add("vllm", prm(str(folder), adapter=adapter, backend="vllm", max_context=2048, kv_cache_bytes=1 << 30))
    with vllm_server(folder, *options) as url:
        add("http, vllm server", prm(str(folder), adapter=adapter, backend="http", base_url=url))
    return rows


def main() -> None:
    """Measure both forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    rows = []
    pooling = ("--runner", "pooling", "--pooler-config", '{"tok_pooling_type": "ALL"}')
    forms = (("token", "rlhflow_prm", "\n\n", None, ()), ("label", "trl_prm", "\n", 2, pooling))
    for kind, adapter, delimiter, num_labels, options in forms:
        with tempfile.TemporaryDirectory() as scratch:
            folder = random_model(args.tokenizer, Path(scratch), num_labels)
            rows += measure(kind, folder, adapter, delimiter, options)
    if args.save is not None:
        args.save.write_text(json.dumps({"block_size": 32, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
