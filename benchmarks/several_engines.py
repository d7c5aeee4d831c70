"""One search over one engine and over two: the hit rate of the prefix caches, and whether the ledger is exact.

    python -m benchmarks.several_engines --vllm VLLM_PYTHON [--problems 48] [--save FILE.json]

*Ray*: the packaged teacher in one actor and in two, batch-invariant as its judge and seeded: the answers must be equal.
*Servers*: one vLLM server and two, without seeds; the generated tokens of the ledger must be those of the servers.
Everywhere DVTS of 8 with the packaged reward model, all problems in flight. `one` and `two` are the shares of cached
prompt tokens, `ratio` is that of two engines over that of one. Left out: speed, since all share one machine
(`tests/ttc/test_ray_engine.py` tests it, with a delay for each step).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import server
from benchmarks.vllm_tree import facts
from evals.tasks.arithmetic import arithmetic
from ttc import nano
from ttc.config.registry import ENGINES
from ttc.core import Sampling
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.session.solve import solve_all
from ttc.strategies.tree import tree

SEED = 23


async def searched(engine: Any, args: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """The problems' answers and what the engine has counted."""
    problems = [item.problem for item in arithmetic(level=4).items(args.problems, SEED)]
    strategy = partial(tree, scorer=prm(None, EmbeddedCore(batch_invariant=True)), n=8, policy="dvts")
    sampling = Sampling(max_tokens=256)
    run = solve_all(problems, engine=engine, strategy=strategy, seed=SEED, sampling=sampling, concurrency=args.problems)
    answers = {problem.id: answer async for problem, answer in run}
    usage = engine.counters()
    await engine.close()
    return answers, usage


def hits(usage: Any) -> float:
    """Share of prompt tokens that a cache had."""
    return float(usage.cached / usage.prompt)


def over_ray(args: argparse.Namespace) -> dict[str, Any]:
    """One actor and two."""
    runs = {}
    for workers in (1, 2):
        engine = ENGINES.load("ray_workers")(None, workers=workers, batch_invariant=True)
        runs[workers] = asyncio.run(searched(engine, args))
    (one, first), (two, second) = runs[1], runs[2]
    same = [(a.final, a.text, a.usage.generated) for a in one.values()]
    return {
        "one": hits(first),
        "two": hits(second),
        "ratio": hits(second) / hits(first),
        "equal_answers": same == [(two[name].final, two[name].text, two[name].usage.generated) for name in one],
        "equal_generated": first.generated == second.generated,
    }


def over_servers(args: argparse.Namespace) -> dict[str, Any]:
    """One vLLM server and two; counts are the servers' own."""
    row: dict[str, Any] = {}
    folder = nano.path("teacher")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as servers:
        urls = []
        for port in (args.port, args.port + 1):
            line = server.command(args.vllm, folder, "packaged", port, None)
            urls.append(servers.enter_context(server.serving(line, port, Path(scratch) / f"{port}.log")))
        for name, some in {"one": urls[:1], "two": urls}.items():
            for url in some:
                server.settle(url)
                server.forget(url)
            base = ",".join(f"{url}/v1" for url in some)
            engine = ENGINES.load("openai")(
                "packaged", base_url=base, tokenizer=str(folder), seeded=False, logprobs=False
            )
            before = [server.counters(url) for url in some]
            _, usage = asyncio.run(searched(engine, args))
            counted = [server.difference(old, server.counters(url)) for old, url in zip(before, some, strict=True)]
            asked, found, generated = (
                sum(counts[key] for counts in counted)
                for key in ("prefix_cache_queries_total", "prefix_cache_hits_total", "generation_tokens_total")
            )
            row[name] = found / asked
            row[f"{name}_exact"] = usage.generated + usage.overrun == generated
            row[f"{name}_shares"] = [counts["generation_tokens_total"] / generated for counts in counted]
    return {**row, "ratio": row["two"] / row["one"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both rows and optionally save them with their conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, help="python of an environment with vLLM")
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--port", type=int, default=8140)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    result = {**facts(), "problems": args.problems, "ray": over_ray(args), "servers": over_servers(args)}
    print(json.dumps(result, indent=1))
    if args.save:
        args.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
