"""Overhead of the controller: strategies over engines that take no time, and a search on the packaged model.

    python -m benchmarks.controller_overhead --embedded 24 --json benchmarks/results/controller_overhead.json

The scripted engine answers at once, so all time is the toolkit's own: sessions, leases, seeds, traces, the search
runtime, and the fake engine and scorer themselves (`engine` is their share, measured by calling them alone, with the
same prompts). `ms_per_step` is processor time per generated step of one problem with all problems in flight. `peak_mib`
is resident memory after the problems of a run, which are dropped as they finish.

`--embedded N` also solves N problems of the packaged model by a tree of 16, 16 problems in flight. There the model and
the reward model compute in threads of their own, and everything else runs in the thread of the event loop. That whole
thread counts as the controller: the strategy and the search runtime, sessions (leases, ledger, trace), asyncio with its
wake-ups, reading answers and voting, and the parts of engine and scorer in that thread (rendering and tokenising the
question, seeds, passing requests and results, detokenising the leaves). `loop_share` is its fraction of the CPU time,
`loop_share_of_wall` of the wall time.

`without` is the same work without a controller: the requests of one such search are recorded and sent again to a fresh
engine and scorer, each as soon as the one it depended on has returned. The remaining work in its event loop is what any
caller needs. `added_cpu` and `added_wall` are the controller's overhead as a fraction. Both run alternately several
times; medians are reported, with all values. The process has the same settings as that of a command.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.machine import commit
from ttc.cli.process import collect_rarely, keep_little
from ttc.concurrent import gather
from ttc.core import Completion, Engine, Message, Problem, Prompt, Sampling, Score, Scorer, Usage, UsageSink
from ttc.engines.scripted import ScriptedEngine
from ttc.session.solve import solve_all
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree

STEPS, N = 8, 4
WIDE, BEAM, IN_FLIGHT, WARM_UP = 16, 4, 16, 2
"""On the packaged model: live paths, children of a node, problems at once, problems before the clock starts."""

Step: TypeAlias = Callable[[Engine, Scorer], Awaitable[Any]]
Tape: TypeAlias = dict[str, dict[int, list[Step]]]
"""By problem and subtree: the requests, each of which waited for the one before it."""


def script(prompt: Prompt, path: tuple[int, ...], key: int) -> str:
    """Return eight short steps and an answer, whatever the prompt."""
    done = prompt.generated_text.count("\n\n")
    return "step\n\n" * (STEPS - done) + "\\boxed{7}"


class Flat(Scorer):
    """A scorer that costs nothing."""

    async def score(self, prompts: list[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score by the path."""
        on_usage(Usage())
        return [Score(0.5 + 0.01 * (prompt.path[-1] % 7)) for prompt in prompts]


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


def row(name: str, strategy: Any, steps: int, problems: int, in_flight: int) -> dict[str, Any]:
    """Measure one strategy on the scripted engine."""
    started = time.process_time()
    asyncio.run(run(strategy, problems, in_flight))
    whole = time.process_time() - started
    started = time.process_time()
    asyncio.run(alone(problems, steps))
    engine = time.process_time() - started
    return {
        "strategy": name,
        "problems": problems,
        "in_flight": in_flight,
        "steps_per_problem": steps,
        "ms_per_step": 1e3 * whole / problems / steps,
        "engine_ms_per_step": 1e3 * engine / problems / steps,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


class TapedEngine:
    """Forwards requests and records them."""

    def __init__(self, inner: Engine, tape: Tape) -> None:
        self.inner, self.tape = inner, tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        subtree = (*prompt.path, draws.start)[0] // BEAM
        again: Step = lambda engine, _: engine.generate(prompt, sampling, draws, drop)  # noqa: E731
        self.tape[prompt.problem_id][subtree].append(again)
        return await self.inner.generate(prompt, sampling, draws, on_usage)


class TapedScorer:
    """Forwards prompts and records them."""

    def __init__(self, inner: Scorer, tape: Tape) -> None:
        self.inner, self.tape = inner, tape

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """See `ttc.core.Scorer`."""
        again: Step = lambda _, scorer: scorer.score(prompts, drop)  # noqa: E731
        self.tape[prompts[0].problem_id][prompts[0].path[0] // BEAM].append(again)
        return await self.inner.score(prompts, on_usage)

    def release(self, problem_id: str) -> None:
        """See `ttc.core.Scorer`."""
        self.inner.release(problem_id)


def drop(usage: Usage) -> None:
    """Discard the usage."""


async def search(engine: Engine, scorer: Scorer, problems: Sequence[Problem]) -> None:
    """Solve the problems by a tree and drop their answers."""
    strategy = functools.partial(tree, scorer=scorer, n=WIDE, beam_width=BEAM)
    sampling = Sampling(max_tokens=512)
    async for _ in solve_all(
        problems, engine=engine, strategy=strategy, seed=1, sampling=sampling, concurrency=IN_FLIGHT
    ):
        pass


async def replay(engine: Engine, scorer: Scorer, tape: Tape) -> None:
    """Send the requests of a search again."""
    waiting = iter(tape.items())

    async def follow(steps: Sequence[Step]) -> None:
        for step in steps:
            await step(engine, scorer)

    async def work() -> None:
        for name, subtrees in waiting:
            await gather(follow(steps) for steps in subtrees.values())
            scorer.release(name)

    await gather(work() for _ in range(IN_FLIGHT))


def measured(work: Callable[[Engine, Scorer], Awaitable[None]], warm_up: Sequence[Problem]) -> dict[str, float]:
    """Run `work` on a fresh engine and scorer; seconds of wall, processor and event loop, and generated tokens."""
    from ttc.engines.embedded.engine import embedded as make_engine
    from ttc.scorers.prm import prm

    async def go() -> dict[str, float]:
        engine, scorer = make_engine(), prm()
        await search(engine, scorer, warm_up)  # imports and lazy initialization are not the controller's
        before = engine.counters().generated
        wall, loop, whole = time.perf_counter(), time.thread_time(), time.process_time()
        await work(engine, scorer)
        found = {
            "wall_seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - whole,
            "loop_seconds": time.thread_time() - loop,
            "generated": float(engine.counters().generated - before),
        }
        await engine.close()
        return found

    return asyncio.run(go())


def embedded(problems: int, repeats: int) -> dict[str, Any]:
    """A search on the packaged model, with the controller and without, in turn."""
    from evals.tasks.arithmetic import arithmetic

    asked = [item.problem for item in arithmetic().items(problems + WARM_UP, 1)]
    warm_up, asked = asked[:WARM_UP], asked[WARM_UP:]
    tape: Tape = defaultdict(lambda: defaultdict(list))
    measured(lambda engine, scorer: search(TapedEngine(engine, tape), TapedScorer(scorer, tape), asked), warm_up)
    with_it, without = [], []
    for _ in range(repeats):
        with_it.append(measured(lambda engine, scorer: search(engine, scorer, asked), warm_up))
        without.append(measured(lambda engine, scorer: replay(engine, scorer, tape), warm_up))
        print(f"with {_show(with_it[-1])}; without {_show(without[-1])}", flush=True)
    middle, bare = _medians(with_it), _medians(without)
    return {
        "strategy": f"tree of {WIDE}",
        "problems": problems,
        "in_flight": IN_FLIGHT,
        "requests": sum(len(steps) for subtrees in tape.values() for steps in subtrees.values()),
        "loop_share": middle["loop_seconds"] / middle["cpu_seconds"],
        "loop_share_of_wall": middle["loop_seconds"] / middle["wall_seconds"],
        "added_cpu": middle["cpu_seconds"] / bare["cpu_seconds"] - 1,
        "added_wall": middle["wall_seconds"] / bare["wall_seconds"] - 1,
        "added_loop_seconds_share": (middle["loop_seconds"] - bare["loop_seconds"]) / middle["cpu_seconds"],
        "with": {**middle, "all": with_it},
        "without": {**bare, "all": without},
    }


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in runs) for name in runs[0]}


def _show(one: dict[str, float]) -> str:
    return (
        f"{one['cpu_seconds']:.2f} CPU s, {one['wall_seconds']:.2f} s, event loop {one['loop_seconds']:.3f} s, "
        f"{one['generated']:.0f} tokens"
    )


def main() -> None:
    """Measure and print, or save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000, help="on the scripted engine; 0 leaves it out")
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--embedded", type=int, default=0, metavar="N", help="problems on the packaged model, too")
    parser.add_argument("--repeats", type=int, default=3, help="of the packaged model, with and without in turn")
    parser.add_argument(
        "--json", type=Path, help="where to save the result, beside what the file has of the other kind"
    )
    args = parser.parse_args()
    found = json.loads(args.json.read_text()) if args.json and args.json.is_file() else {}
    rows = [row(name, *how, args.problems, args.in_flight) for name, how in STRATEGIES.items() if args.problems]
    for one in rows:
        print(
            f"{one['strategy']:9s} {one['ms_per_step']:.3f} ms a step, of it {one['engine_ms_per_step']:.3f} the fake "
            f"engine's; peak {one['peak_mib']:.0f} MiB",
            flush=True,
        )
    if args.embedded:
        keep_little()
        collect_rarely()
    model = embedded(args.embedded, args.repeats) if args.embedded else None
    if model:
        print(
            f"packaged model: the event loop takes {100 * model['loop_share']:.1f} % of the processor time and is busy "
            f"{100 * model['loop_share_of_wall']:.1f} % of the wall; with a controller it takes "
            f"{100 * model['added_cpu']:.1f} % more processor time and {100 * model['added_wall']:.1f} % more wall"
        )
    if args.json:
        measured_now = {"rows": rows, "embedded": model}
        found |= {"commit": commit()} | {name: value for name, value in measured_now.items() if value}
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
