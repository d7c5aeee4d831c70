"""Overhead of the sglang engine over a server's own time: our draws and steps beside bare requests for the same.

    SGLANG_VENV/bin/python -m benchmarks.sglang_cpu.cost MODEL --url http://127.0.0.1:PORT [--out FILE.json]

`run.sh` starts the server and runs this when COST=1. Sides alternate, each on an emptied prefix cache (`/flush_cache`):

- *vote*: `majority` with n draws of `--problems` questions, all problems in flight, through `ttc`'s engine.
- *bare*: the same prompts, seeds and lengths as one coroutine per draw would send them: aiohttp, one session, no limit
  of connections, the reply parsed and nothing else done.
- *steps*: `tree` (DVTS) with a constant scorer and steps of 16 tokens; *bare steps*: draws as long, cut into the same
  steps, each the next request of its own draw, so that nothing is chosen and no draw waits for another.

`wall` is seconds a thousand tokens; `client` is processor time of this process in microseconds a token (which other
load on the machine affects less). Tokens are those that the server returned. Medians over the rounds, with all values.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.machine import machine
from benchmarks.tree_throughput import NEVER
from evals.tasks.arithmetic import arithmetic
from ttc import seeds
from ttc.core import Answer, Problem, Sampling
from ttc.engines.sglang.factory import sglang
from ttc.engines.sglang.wire import draw_body
from ttc.scorers.constant import constant
from ttc.session.solve import solve_all
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree

STEP = 16


async def bare(url: str, engine: Any, problems: Sequence[Problem], n: int, length: int, piece: int) -> int:
    """Every draw as requests of `piece` tokens, one after the other; returns the tokens that came."""
    sampling = Sampling(max_tokens=piece, seed=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def draw(problem: Problem, number: int) -> int:
            ids, count = list(engine.render(problem.messages, None).token_ids), 0
            while count < length:
                body = draw_body(ids, sampling, seeds.derive(0, (number,)))
                async with session.post(url + "/generate", json=body) as response:
                    reply = json.loads(await response.read())
                ids += reply["output_ids"]
                count += len(reply["output_ids"])
                if reply["meta_info"]["finish_reason"]["type"] != "length":
                    break
            return count

        return sum(await asyncio.gather(*(draw(problem, number) for problem in problems for number in range(n))))


async def ours(engine: Any, problems: Sequence[Problem], strategy: Callable[..., Any], length: int) -> int:
    """The same work by a strategy; returns the tokens that came."""
    before = engine.counters()
    run = solve_all(
        problems,
        engine=engine,
        strategy=strategy,
        seed=0,
        sampling=Sampling(max_tokens=length),
        concurrency=len(problems),
    )
    async for _, answer in run:
        if not isinstance(answer, Answer):
            raise answer
    now = engine.counters()
    return (now.generated + now.overrun) - (before.generated + before.overrun)


async def timed(side: Callable[[], Awaitable[int]]) -> dict[str, float]:
    """Seconds a thousand tokens, and microseconds of this process a token."""
    wall, own = time.perf_counter(), time.process_time()
    tokens = await side()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    return {"wall": 1000 * wall / tokens, "client": 1e6 * own / tokens, "tokens": tokens}


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All sides, in turn."""
    engine, url, n = sglang(arguments.model, base_url=arguments.url), arguments.url, arguments.n
    problems = [item.problem for item in arithmetic().items(arguments.problems, 0)]
    length = arguments.max_tokens
    sides = {
        "bare": lambda: bare(url, engine, problems, n, length, length),
        "vote": lambda: ours(engine, problems, partial(majority, n=n), length),
        "bare_steps": lambda: bare(url, engine, problems, n, length, STEP),
        "steps": lambda: ours(
            engine,
            problems,
            partial(tree, n=n, scorer=constant(), step=NEVER, max_step_tokens=STEP, max_depth=1000),
            length,
        ),
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(arguments.rounds + 1):
        for name, side in sides.items():
            urllib.request.urlopen(urllib.request.Request(url + "/flush_cache", method="POST"), timeout=60).read()
            row = await timed(side)
            if number:  # the first round warms the server up
                rounds[name].append(row)
    await engine.close()
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in rounds.items()
    }
    ratios = {
        pair: {key: round(medians[pair[0]][key] / medians[pair[1]][key], 3) for key in ("wall", "client")}
        for pair in (("vote", "bare"), ("steps", "bare_steps"))
    }
    return {
        "sglang": importlib.metadata.version("sglang"),
        "machine": machine(),
        "conditions": {key: str(value) for key, value in vars(arguments).items() if key not in ("out", "url")},
        "ratios": {" / ".join(pair): values for pair, values in ratios.items()},
        "medians": medians,
        "rounds": rounds,
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the model folder that the server serves")
    parser.add_argument("--url", required=True)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    print(json.dumps({key: result[key] for key in ("ratios", "medians")}, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
