"""Cost of the search runtime: tree search against the raw engine at the same number of live sequences.

    python -m benchmarks.tree_throughput [--model FOLDER] [--threads 1] [--problems 64] [--save FILE.json]

Tree search (beam, constant scorer, steps of `--step-tokens` tokens) runs on `--problems` problems at once. A wrapper
around the engine integrates the number of draws in flight over time. The raw engine then runs whole draws of the same
prompts, with that time-averaged number in flight. Both in one process, alternating, `--rounds` times; medians are
reported. The ratio includes the cost of controller, session, ledger, re-submission and waiting at selection;
`cpu_ratio` is that of tokens per CPU second. Left out: scorers.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import commit
from evals.tasks.arithmetic import arithmetic
from ttc.core import Answer, Completion, Engine, Problem, Prompt, Sampling, UsageSink
from ttc.engines.embedded.engine import embedded
from ttc.scorers.constant import constant
from ttc.session.solve import solve_all
from ttc.strategies.tree import tree

NEVER = "\x00"
"""A step delimiter that does not occur: steps end by their number of tokens."""


class Throughput(NamedTuple):
    """Tokens per second, by the clock and of processor time, and the time-averaged number of live draws."""

    rate: float
    cpu_rate: float
    live: float


class Watched:
    """An engine that integrates its draws in flight over time."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.draw_seconds = 0.0
        self.tokens = 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        setattr(self, name, value)  # looked up once: the search alone would pay for this
        return value

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Pass on, and count."""
        started = time.perf_counter()
        completions = await self._inner.generate(prompt, sampling, draws, on_usage)
        self.draw_seconds += len(draws) * (time.perf_counter() - started)
        self.tokens += sum(len(completion.token_ids) for completion in completions)
        return completions

    def throughput(self) -> Throughput:
        """The rates since it was made."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Throughput(self.tokens / wall, self.tokens / cpu, self.draw_seconds / wall)


async def run_tree(engine: Engine, problems: Sequence[Problem], n: int, step_tokens: int, seed: int) -> Throughput:
    """Search all problems at once."""
    watched = Watched(engine)
    strategy = partial(tree, scorer=constant(), n=n, step=NEVER, max_step_tokens=step_tokens)
    sampling = Sampling(max_tokens=512)
    run = solve_all(
        problems, engine=watched, strategy=strategy, seed=seed, sampling=sampling, concurrency=len(problems)
    )
    async for _, answer in run:
        if not isinstance(answer, Answer):
            raise answer
    return watched.throughput()


async def run_raw(engine: Engine, problems: Sequence[Problem], live: int, draws: int, seed: int) -> Throughput:
    """Whole draws with `live` of them in flight."""
    watched = Watched(engine)
    limit = asyncio.Semaphore(live)
    sampling = Sampling(seed=seed, max_tokens=512)

    async def one(problem: Problem, draw: int) -> None:
        async with limit:
            prompt = engine.render(problem.messages, None)
            await watched.generate(prompt, sampling, range(draw, draw + 1), lambda usage: None)

    await asyncio.gather(*(one(problem, draw) for draw in range(draws) for problem in problems))
    return watched.throughput()


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Alternate tree and raw rounds."""
    engine = embedded(args.model, threads=args.threads, max_batch=args.max_batch)
    problems = [item.problem for item in arithmetic().items(args.problems, args.seed)]
    rounds: list[dict[str, float]] = []
    try:
        await run_raw(engine, problems[:8], 8, 2, 0)  # warm up
        for seed in range(args.rounds):
            searched = await run_tree(engine, problems, args.n, args.step_tokens, seed)
            raw = await run_raw(engine, problems, max(1, round(searched.live)), args.n, seed + 1000)
            ratios = {"ratio": searched.rate / raw.rate, "cpu_ratio": searched.cpu_rate / raw.cpu_rate}
            rounds.append({"tree": searched.rate, "live": searched.live, "raw": raw.rate, **ratios})
    finally:
        await engine.close()
    medians = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    return {"rounds": rounds, **medians}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row and optionally save it with its conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--step-tokens", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    result = asyncio.run(measure(args))
    options = {k: v for k, v in vars(args).items() if k != "save"}
    print(
        f"tree {result['tree']:,.0f} tok/s, raw {result['raw']:,.0f} tok/s at {result['live']:.0f} live sequences:"
        f" {100 * result['ratio']:.0f} %, {100 * result['cpu_ratio']:.0f} % by processor time"
    )
    if args.save:
        args.save.parent.mkdir(parents=True, exist_ok=True)
        row = {"date": datetime.date.today().isoformat(), "commit": commit(), **options, **result}
        args.save.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
