"""What the forest of keys and values costs on a CPU: six ratios, each of one run, in processor seconds.

    python -m benchmarks.forest --model FOLDER [--rounds 3] [--only nodes prefill ...] [--save FILE.json]

`nodes`: a token of 32 branches, each under a node of its own below a common prompt of 2,047 tokens, against a token of
32 draws of one prompt of as many; and the memory of the former against its unique keys. `neighbour`: a token of 63
prompts of 60 and one of 6,000 against 64 of 60. `prefill`: a prompt of 512 to 4,096 tokens against transformers'
forward pass. `steps`: scoring 16 steps of 16 tokens after a common prefix of 2,048 against 64; `arithmetic` beside it
is the same ratio in floating-point operations. `cache`: prompt tokens that a search of 8 paths computes again for each
token it generates, with 16 and 48 problems in flight in 8 MiB. `reward`: what a reward model holds at the end of a
search, against the tokens of the live leaves. Keys that are only read are made up: time does not depend on them.

A lower ratio is better everywhere; the least of the rounds counts on both sides. The model must not end by itself, so
its end-of-sequence token is taken away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.tree_throughput import NEVER
from evals.tasks.arithmetic import arithmetic
from ttc.core import Prompt, Sampling
from ttc.engines.embedded.engine import embedded
from ttc.engines.shared.folder import generator_folder
from ttc.scorers.constant import constant
from ttc.scorers.prm import prm
from ttc.session.solve import solve
from ttc.strategies.tree import tree

PREFIX, OWN, BRANCHES = 2047, 17, 32


def endless(folder: Path, scratch: Path) -> str:
    """A copy of the model that never ends by itself."""
    copy = scratch / "model"
    shutil.copytree(folder, copy)
    for name in ("config.json", "generation_config.json"):
        path = copy / name
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps({**config, "eos_token_id": None}), encoding="utf-8")
    return str(copy)


class Bench:
    """One engine, driven through its public interface, whose cache is filled with made-up keys."""

    def __init__(self, folder: str, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.engine: Any = embedded(folder, device="cpu", threads=1, kv_bytes=12 << 30)
        self.scheduler = self.engine._scheduler
        self.body = self.scheduler.body
        self.rng = random.Random(3)

    def ids(self, count: int) -> tuple[int, ...]:
        """Random tokens that are no markers."""
        top = 30 if self.body.dims.vocab < 4000 else 4000
        return tuple(self.rng.randrange(5, top) for _ in range(count))

    def call(self, action: Callable[[], Any]) -> Any:
        """Run in the worker."""
        return self.scheduler.call(action).result()

    def plant(self, ids: Sequence[int], prefix: Sequence[int] = ()) -> None:
        """Put made-up keys of `ids` into the cache, after those of `prefix`."""
        dims, pool, cache = self.body.dims, self.body.pool, self.scheduler._batch.tree

        def go() -> None:
            segment = pool.segment(cache.find(prefix).segment)
            shape = (dims.num_layers, 2, dims.num_kv_heads, len(ids) - len(prefix), dims.head_dim)
            pool.append(segment, torch.randn(shape).mul_(0.1).to(self.body.dtype))
            cache.insert(ids, segment)

        self.call(go)

    def spend(self, prompts: Sequence[Sequence[int]], draws: int, tokens: int) -> float:
        """Processor seconds of so many tokens for each draw of each prompt."""
        sampling = Sampling(temperature=0.8, max_tokens=tokens, seed=1)

        async def go() -> None:
            requests = (
                self.engine.generate(Prompt("", tuple(ids), path=(i,)), sampling, range(draws), lambda _: None)
                for i, ids in enumerate(prompts)
            )
            await asyncio.gather(*requests)

        started = time.process_time()
        asyncio.run(go())
        return time.process_time() - started

    def slope(self, fill: Callable[[], None], prompts: Sequence[Sequence[int]], draws: int) -> float:
        """Processor milliseconds a token, without what starting costs."""
        spent = []
        for tokens in (2, 22):
            self.call(self.scheduler._batch.forget)
            fill()
            spent.append(self.spend(prompts, draws, tokens))
        return (spent[1] - spent[0]) / (20 * len(prompts) * draws) * 1e3

    def alternate(self, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
        """The least of the rounds of each."""
        pairs = [(first(), second()) for _ in range(self.rounds)]
        return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def nodes(bench: Bench) -> dict[str, float]:
    """Branches under nodes of their own against draws of one prompt."""
    trunk = bench.ids(PREFIX + OWN)
    leaves = [trunk[:-OWN] + bench.ids(OWN) for _ in range(BRANCHES)]

    def fill() -> None:
        bench.plant(trunk[:-OWN])
        for leaf in leaves:
            bench.plant(leaf[:-1], trunk[:-OWN])

    apart, together = bench.alternate(
        lambda: bench.slope(fill, leaves, 1), lambda: bench.slope(lambda: bench.plant(trunk[:-1]), [trunk], BRANCHES)
    )
    bench.call(bench.scheduler._batch.forget)
    fill()
    bench.spend(leaves, 1, 22)
    held = bench.call(lambda: bench.body.pool.num_tokens)
    unique = PREFIX + BRANCHES * (OWN + 21)
    return {"nodes_ms": apart, "group_ms": together, "ratio": apart / together, "memory": held / unique}


def neighbour(bench: Bench) -> dict[str, float]:
    """One long prompt among short ones."""
    short = [bench.ids(60) for _ in range(64)]
    mixed = [*short[:-1], bench.ids(6000)]

    def run(prompts: Sequence[Sequence[int]]) -> float:
        return bench.slope(lambda: [bench.plant(ids[:-1]) for ids in prompts] and None, prompts, 1)

    long, alike = bench.alternate(lambda: run(mixed), lambda: run(short))
    return {"mixed_ms": long, "alike_ms": alike, "ratio": long / alike}


def prefill(bench: Bench) -> dict[str, float]:
    """Prompts of growing length against transformers' own forward pass."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(bench.folder, dtype=bench.body.dtype).eval()

    def theirs(ids: Sequence[int]) -> float:
        started = time.process_time()
        with torch.inference_mode():
            model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        return time.process_time() - started

    def ours(ids: Sequence[int]) -> float:
        bench.call(bench.scheduler._batch.forget)
        return bench.spend([ids], 1, 1)

    result = {}
    for length in (512, 1024, 2048, 4096):
        ids = bench.ids(length)
        mine, other = bench.alternate(partial(ours, ids), partial(theirs, ids))
        result[f"ratio_{length}"] = mine / other
        result[f"tokens_per_s_{length}"] = length / mine
    return result


def steps(bench: Bench) -> dict[str, float]:
    """Scoring steps after a long prefix against a short one."""
    work = [bench.ids(16) for _ in range(16)]
    body, dims = bench.body, bench.body.dims

    def run(prefix: int) -> float:
        ids = bench.ids(prefix)
        bench.plant(ids)

        def go() -> float:
            segment = bench.scheduler._batch.tree.find(ids).segment
            started = time.process_time()
            body.extend([(segment, step) for step in work])
            return time.process_time() - started

        return float(bench.call(go))

    long, short = bench.alternate(lambda: run(2048), lambda: run(64))
    shape = dims.model_shape(0)
    return {
        "after_2048_ms": long * 1e3 / 256,
        "after_64_ms": short * 1e3 / 256,
        "ratio": long / short,
        "arithmetic": shape.flops(16, 2048) / shape.flops(16, 64),
    }


async def search_all(engine: Any, problems: Sequence[Any]) -> Any:
    """Search every problem at once; returns what the engine has counted."""
    strategy = partial(tree, scorer=constant(), n=8, step=NEVER, max_step_tokens=24)
    sampling = Sampling(max_tokens=160)
    await asyncio.gather(*(solve(p, engine=engine, strategy=strategy, seed=5, sampling=sampling) for p in problems))
    usage = engine.counters()
    await engine.close()
    return usage


def cache(bench: Bench) -> dict[str, float]:
    """Prompt tokens computed again when more problems are in flight than fit; with the packaged model."""
    result = {}
    for count in (16, 48):
        folder = endless(generator_folder(None), Path(tempfile.mkdtemp()))
        engine: Any = embedded(folder, device="cpu", threads=1, kv_bytes=8 << 20)
        problems = [item.problem for item in arithmetic().items(count, 11)]
        fresh = sum(len(engine.render(problem.messages, None).token_ids) for problem in problems)
        usage = asyncio.run(search_all(engine, problems))
        result[f"again_{count}"] = (usage.prompt - usage.cached - fresh) / usage.generated
    return result


def reward(bench: Bench) -> dict[str, float]:
    """What the packaged reward model holds at the end of searches, against the tokens of their live leaves."""
    engine: Any = embedded(device="cpu")
    scorer: Any = prm()
    ratios: list[float] = []
    release = scorer.release

    def watched(problem_id: str) -> None:
        def look() -> None:
            for paths in scorer._problems.get(problem_id, {}).values():
                leaves = [path for path in paths if not any(p != path and p[: len(path)] == path for p in paths)]
                segments = {
                    id(s): s for leaf in leaves for s in (paths[leaf].handle.chain() if paths[leaf].handle else ())
                }
                live = sum(segment.length for segment in segments.values())
                kept = {id(s): s for p in paths.values() if p.handle for s in p.handle.chain()}
                pages = sum(len(s.pages) * s.pool.shelves[s.shelf].size for s in kept.values())
                ratios.append(pages / max(live, 1))

        scorer._batcher.later(look)
        release(problem_id)

    scorer.release = watched

    async def go() -> None:
        problems = [item.problem for item in arithmetic().items(4, 3)]
        strategy = partial(tree, scorer=scorer, n=16, beam_width=4)
        sampling = Sampling(max_tokens=512)
        await asyncio.gather(*(solve(p, engine=engine, strategy=strategy, seed=1, sampling=sampling) for p in problems))
        await engine.close()

    asyncio.run(go())
    return {"ratio": max(ratios), "mean": sum(ratios) / len(ratios)}


PARTS: dict[str, Callable[[Bench], dict[str, float]]] = {
    part.__name__: part for part in (nodes, neighbour, prefill, steps, cache, reward)
}


def main() -> None:
    """Run the parts and print what each says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    bench = Bench(endless(Path(args.model), Path(tempfile.mkdtemp())), args.rounds)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    results: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "model": Path(args.model).name,
        "dtype": str(bench.body.dtype),
        "rounds": args.rounds,
        "unit": "processor time, one thread",
    }
    for name in args.only:
        results[name] = {key: round(value, 3) for key, value in PARTS[name](bench).items()}
        print(name, results[name], flush=True)
    asyncio.run(bench.engine.close())
    if args.save:
        args.save.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
