"""What the controller itself costs: strategies over engines that take no time, with many problems in flight.

    python -m benchmarks.controller_overhead --json benchmarks/results/controller_overhead.json

The scripted engine answers at once, so all time is the toolkit's own: sessions, leases, seeds, traces, the search
runtime, and the fake engine and scorer themselves (`engine` is their share, measured by calling them alone, with the
same prompts). `ms_per_step` is processor time per generated step of one problem with all problems in flight.
`peak_mib` is resident memory after the problems of a run, which are dropped as they finish.

`--embedded N` also runs N problems of the packaged model. There the model and the reward model compute in threads of
their own, so `controller_share` is the event loop's thread's part of all processor time: the controller, reading
answers, and the engine's hand-over together.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import resource
import time
from pathlib import Path
from typing import Any

from ttc.core import Message, Problem, Prompt, Sampling, Score, Usage, UsageSink
from ttc.engines.scripted import ScriptedEngine
from ttc.solve import solve_all
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree

STEPS, N = 8, 4


def script(prompt: Prompt, path: tuple[int, ...], key: int) -> str:
    """Eight short steps and an answer, wherever it is continued."""
    done = prompt.generated_text.count("\n\n")
    return "step\n\n" * (STEPS - done) + "\\boxed{7}"


class Flat:
    """A scorer that costs nothing."""

    async def score(self, prompts: list[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score by the path."""
        on_usage(Usage())
        return [Score(0.5 + 0.01 * (prompt.path[-1] % 7)) for prompt in prompts]

    def release(self, problem_id: str) -> None:
        """Nothing is kept."""


STRATEGIES: dict[str, tuple[Any, int]] = {
    "majority": (functools.partial(majority, n=N), N),
    "dvts": (functools.partial(tree, scorer=Flat(), n=N, beam_width=2), N * (STEPS + 1)),
    "beam": (functools.partial(tree, scorer=Flat(), n=N, policy="beam", beam_width=2), N * (STEPS + 1)),
    "particle": (functools.partial(tree, scorer=Flat(), n=N, policy="particle"), N * (STEPS + 1)),
}


async def run(strategy: Any, problems: int, in_flight: int) -> None:
    """Solve so many problems and drop their answers."""
    engine = ScriptedEngine(script)
    asked = (Problem(f"p{i}", (Message("user", f"question {i}"),), "number") for i in range(problems))
    solved = solve_all(
        asked, engine=engine, strategy=strategy, seed=1, sampling=Sampling(max_tokens=512), concurrency=in_flight
    )
    async for _ in solved:
        pass


async def alone(problems: int, steps: int) -> None:
    """The engine's part: as many draws of one step, without any controller."""
    engine, sampling = ScriptedEngine(script), Sampling(max_tokens=512, seed=1, stop=("\n\n",))
    prompt = engine.render((Message("user", "question"),), None)
    for _ in range(problems):
        await engine.generate(prompt, sampling, range(steps), lambda usage: None)


def embedded(problems: int) -> dict[str, Any]:
    """The event loop's share of the processor time of a search on the packaged model."""
    from evals.tasks.arithmetic import arithmetic
    from ttc.engines.embedded import embedded as make_engine
    from ttc.scorers.prm import prm

    engine, scorer = make_engine(), prm()
    asked = [item.problem for item in arithmetic().items(problems, 1)]

    async def go() -> tuple[float, float]:
        async def once(chosen: list[Problem]) -> None:
            strategy = functools.partial(tree, scorer=scorer, n=16)
            sampling = Sampling(max_tokens=512)
            async for _ in solve_all(
                chosen, engine=engine, strategy=strategy, seed=1, sampling=sampling, concurrency=16
            ):
                pass

        await once(asked[:2])  # what is imported and compiled on first use is no controller
        loop, whole = time.thread_time(), time.process_time()
        await once(asked)
        found = time.thread_time() - loop, time.process_time() - whole
        await engine.close()
        return found

    own, whole = asyncio.run(go())
    return {"strategy": "tree of 16", "problems": problems, "controller_share": own / whole, "cpu_seconds": whole}


def main() -> None:
    """Measure and print, or save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--embedded", type=int, default=0, metavar="N", help="problems on the packaged model, too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name, (strategy, steps) in STRATEGIES.items():
        started = time.process_time()
        asyncio.run(run(strategy, args.problems, args.in_flight))
        whole = time.process_time() - started
        started = time.process_time()
        asyncio.run(alone(args.problems, steps))
        engine = time.process_time() - started
        row = {
            "strategy": name,
            "problems": args.problems,
            "in_flight": args.in_flight,
            "steps_per_problem": steps,
            "ms_per_step": 1e3 * whole / args.problems / steps,
            "engine_ms_per_step": 1e3 * engine / args.problems / steps,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        rows.append(row)
        print(
            f"{name:9s} {row['ms_per_step']:.3f} ms a step, of it {row['engine_ms_per_step']:.3f} the fake engine's; "
            f"peak {row['peak_mib']:.0f} MiB",
            flush=True,
        )
    model = embedded(args.embedded) if args.embedded else None
    if model:
        print(f"packaged model: the controller takes {100 * model['controller_share']:.1f} % of the processor time")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "embedded": model}, indent=1) + "\n")


if __name__ == "__main__":
    main()
