"""Cost of a reward model in a tree search, in scored tokens per unique token, on every backend.

    VLLM_PYTHON -m benchmarks.scorer_tokens --tokenizer smollm2 [--save FILE.json]

A search is simulated without a generator: at each depth the kept paths get four children each, of random words, with
step lengths as measured on reasoning models (log-normal, mean 60 tokens, coefficient of variation 0.9), two are kept.
Unique tokens are the distinct prefixes that the reward model must read. The models are small and random, with the
tokenizer of `--tokenizer`, since only lengths matter: a Llama that judges steps as a language model (`rlhflow_prm`), a
Llama token classifier (`trl_prm`) and a Qwen2 with the head of Qwen2.5-Math-PRM (`qwen_prm`). Servers are real vLLM
servers on loopback, started in each of the ways of `ttc/scorers/reward_models/server.py`; the ledger is compared with
the server's own counts. Blocks of the prefix cache hold 32 tokens, the least on a CPU (16 on a GPU halve the surplus).
Left out: speed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.vllm_tree import facts
from tests.ttc.vllm_server import counted, vllm_server
from ttc.core import Completion, Message, Prompt, Scorer, Usage
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore, InVllm, StepsOverHttp

PROBLEMS, DEPTH, CHILDREN, KEPT = 12, 6, 4, 2
WORDS = """the a one two three first then so we know that number sum product of is equal to half twice it and with from
take add find how many each total more less than left apples train hours speed length area side angle because hence"""
SERVER = ["--max-model-len", "2048", "--served-model-name", "reward"]
POOLING = ["--runner", "pooling", "--pooler-config"]
TOKENS = [*POOLING, '{"tok_pooling_type": "ALL"}']
WAYS = {
    "http, completions": [],
    "http, spans": [*TOKENS, "--io-processor-plugin", "ttc_steps"],
    "http, last": [*POOLING, '{"task": "classify"}'],
    "http, tokens": TOKENS,
}
"""How the server is started, by the way that the scorer then takes."""


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


@dataclass(frozen=True)
class Form:
    """A form of reward model: its adapter, what ends a step, the ways to query a server of it, and its constructor."""

    adapter: str
    delimiter: str
    ways: tuple[str, ...]
    build: Callable[[int], Any]


SIZE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZE |= {"max_position_embeddings": 2048}


def language_model(vocab: int) -> Any:
    """A Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZE, vocab_size=vocab))


def token_classifier(vocab: int) -> Any:
    """A Llama with a label a token."""
    from transformers import LlamaConfig, LlamaForTokenClassification

    return LlamaForTokenClassification(LlamaConfig(**SIZE, vocab_size=vocab, num_labels=2))


def process_reward_model(vocab: int) -> Any:
    """A Qwen2 with the two layers of Qwen2.5-Math-PRM, whose own code is not run."""
    import torch
    from transformers import Qwen2Config, Qwen2Model

    class Body(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = Qwen2Config(**SIZE, num_key_value_heads=2, vocab_size=vocab)
            self.config.architectures = ["Qwen2ForProcessRewardModel"]
            self.model, width = Qwen2Model(self.config), SIZE["hidden_size"]
            self.score = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

        def save_pretrained(self, folder: Path) -> None:
            from safetensors.torch import save_file

            save_file(self.state_dict(), folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps(self.config.to_dict()))

    return Body()


FORMS = {
    "token": Form("rlhflow_prm", "\n\n", ("http, completions",), language_model),
    "label": Form("trl_prm", "\n", ("http, spans", "http, last", "http, tokens"), token_classifier),
    "label, Qwen": Form("qwen_prm", "\n\n", ("http, spans", "http, tokens"), process_reward_model),
}


def random_model(tokenizer: Path, folder: Path, form: Form) -> Path:
    """A small random model of this form with this tokenizer, to which the form's step tag is added."""
    import torch
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(tokenizer)
    own.add_special_tokens({"additional_special_tokens": ["<extra_0>"]})
    torch.manual_seed(0)
    form.build(len(own)).save_pretrained(folder)
    own.save_pretrained(folder)
    return folder


def computed(url: str) -> int:
    """Prompt tokens that the server has computed, by its own counters."""
    counts = counted(url)
    return counts["prompt_tokens"] - counts["prefix_cache_hits"]


def measure(kind: str, folder: Path, form: Form, backends: Sequence[str]) -> list[dict[str, Any]]:
    """One row per backend, and per way to query a server, for one form of the model; only those of `backends`."""
    found, rows = searches(form.delimiter), []
    local = prm(str(folder), EmbeddedCore(device="cpu"), adapter=form.adapter)
    reference: list[float] = []

    def add(backend: str, scorer: Scorer, url: str | None = None) -> None:
        before = 0 if url is None else computed(url)
        scored, scores = asyncio.run(play(scorer, found))
        reference.extend(scores if not reference else [])
        apart = max(abs(a - b) for a, b in zip(scores, reference, strict=True))
        row = {"model": kind, "backend": backend, "ratio": scored / whole, "scored": scored, "unique": whole}
        row["tokens_per_step"] = whole / len(scores)
        row["counted_by_the_server"] = None if url is None else computed(url) - before
        rows.append({**row, "largest_difference": apart})
        print(f"{kind:12} {backend:18} {scored / whole:6.3f} scored tokens per unique token, scores within {apart:.4f}")
        print(f"{'':12} the server counted {row['counted_by_the_server']}, the ledger {scored}", flush=True)

    whole = unique(local, found)
    add("embedded", local)
    if "vllm" in backends:
        add("vllm", prm(str(folder), InVllm(max_context=2048, kv_cache_bytes=1 << 30), adapter=form.adapter))
    for way in [way for way in form.ways if way in backends]:
        with tempfile.TemporaryDirectory() as log, vllm_server(str(folder), Path(log), *SERVER, *WAYS[way]) as url:
            add(way, prm(str(folder), StepsOverHttp(base_url=url), adapter=form.adapter), url)
    return rows


def main() -> None:
    """Measure all forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--backends", nargs="+", choices=["vllm", *WAYS], default=["vllm", *WAYS])
    parser.add_argument("--save", type=Path, help="rows that are there of other forms and backends are kept")
    args = parser.parse_args()
    rows = []
    for kind in args.forms:
        with tempfile.TemporaryDirectory() as scratch:
            folder = random_model(args.tokenizer, Path(scratch), FORMS[kind])
            rows += measure(kind, folder, FORMS[kind], args.backends)
    if args.save is not None:
        servers = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = time.process_time() + servers.ru_utime + servers.ru_stime
        old = json.loads(args.save.read_text(encoding="utf-8")) if args.save.exists() else {"rows": []}
        measured = {(row["model"], row["backend"]) for row in rows}
        kept = [row for row in old["rows"] if (row["model"], row["backend"]) not in measured]
        size = {"problems": PROBLEMS, "depth": DEPTH, "children": CHILDREN, "kept": KEPT, "block_size": 32}
        conditions = {**facts(), **size, "cpu_seconds": round(used) + old.get("cpu_seconds", 0)}
        args.save.write_text(json.dumps({**conditions, "rows": [*kept, *rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
