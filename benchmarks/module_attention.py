"""What the engine's own attention brings to models that run through transformers' modules.

    python -m benchmarks.module_attention --model build/smollm2 [--rounds 3] [--json FILE.json]

One model, three ways to run it in one process with one thread on a CPU: in the engine's own code, by transformers'
modules with the engine's attention (`ttc.engines.embedded.core.transformers_body`), and by those alone (`fallback`).
Each way computes 16 prompts of 40 to 640 tokens, a tree search (2 problems, N = 8, steps of 16 tokens, constant
scorer), and raw draws with as many sequences in flight as the search had; all in tokens per second of processor time,
the median of `--rounds` rounds in which the ways alternate. The model must be one that the engine's own code can run.
Left out: GPUs, where `fallback` runs what has no code of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.beside_trl import facts
from benchmarks.machine import machine
from benchmarks.tree_throughput import run_raw, run_tree
from evals.tasks.arithmetic import arithmetic
from ttc.core import Message, Prompt, Sampling
from ttc.engines.embedded.engine import embedded

OTHERS = "ttc.engines.embedded.loading.full_attention", "ttc.engines.embedded.core.transformers_body.paged_body"
"""What decides that a model runs in the engine's own code, and that its attention does."""
WAYS: Mapping[str, int] = {"own": 0, "attention": 1, "transformers": 2}
"""How many of these say no."""
LENGTHS = range(40, 641, 40)


@contextmanager
def by(way: str) -> Iterator[None]:
    """Have models loaded in one of the ways."""
    with ExitStack() as stack:
        for place in OTHERS[: WAYS[way]]:
            stack.enter_context(patch(place, lambda *_: None))
        yield


async def prompts(engine: Any, seed: int) -> float:
    """Prompt tokens per second of processor time; no two prompts begin alike."""
    vocab = 1000
    texts = [tuple((seed * 7919 + n * 31 + at * (n + 3)) % vocab + 3 for at in range(n)) for n in LENGTHS]
    started = time.process_time()
    await asyncio.gather(
        *(
            engine.generate(
                Prompt("", ids, (), rendered_len=len(ids), messages=(Message("user", ""),), problem_id=str(len(ids))),
                Sampling(temperature=0.0, max_tokens=1),
                range(1),
                lambda usage: None,
            )
            for ids in texts
        )
    )
    return sum(map(len, texts)) / (time.process_time() - started)


async def one_round(engine: Any, problems: Any, seed: int) -> dict[str, float]:
    """Tokens per second of processor time, of each kind."""
    prompt_rate = await prompts(engine, seed)
    searched = await run_tree(engine, problems, 8, 16, seed)
    raw = await run_raw(engine, problems, max(1, round(searched.live)), 8, seed + 1000)
    return {"prompts": prompt_rate, "tree": searched.cpu_rate, "draws": raw.cpu_rate}


async def measure(model: str, rounds: int) -> dict[str, dict[str, float]]:
    """The medians of each way."""
    engines: dict[str, Any] = {}
    for way in WAYS:
        with by(way):
            engines[way] = embedded(model, device="cpu", threads=1)
    problems = [item.problem for item in arithmetic().items(2, 7)]
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for engine in engines.values():
        await prompts(engine, 0)  # warm up
    for seed in range(1, rounds + 1):
        for way, engine in engines.items():
            row = await one_round(engine, problems, seed)
            rows[way].append(row)
            print(way, {kind: round(rate) for kind, rate in row.items()}, flush=True)
    for engine in engines.values():
        await engine.close()
    return {way: {kind: statistics.median(row[kind] for row in own) for kind in own[0]} for way, own in rows.items()}


def main() -> None:
    """Print the rates of each way, and save them with their conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rates = asyncio.run(measure(args.model, args.rounds))
    for kind in rates["own"]:
        ratio = rates["attention"][kind] / rates["transformers"][kind]
        print(f"{kind}: " + ", ".join(f"{way} {own[kind]:,.0f}" for way, own in rates.items()) + f" tok/s, {ratio:.2f}")
    if args.json:
        report = {"machine": machine(), **facts(), "rounds": args.rounds, "rates": rates}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
