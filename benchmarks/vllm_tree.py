"""Tree search on vLLM against vLLM alone, and against the lock-step schedule of other tools on the same engine.

    VLLM_PYTHON -m benchmarks.vllm_tree --model smollm2 [--boundary sentence] [--rounds 3] [--save FILE.json]
    VLLM_PYTHON -m benchmarks.vllm_tree --scorer prm --boundary step --n 16 --max-tokens 256 [--save FILE.json]
    VLLM_PYTHON -m benchmarks.vllm_tree --model smollm2 --scorer prm --judge FOLDER --n 16 --max-tokens 64 --plain

Three sides alternate, all with vLLM's core in this process and blocks of 32 tokens; with `--apart` in a process of its
own, as vLLM has it on a GPU (`in_process=false`). *Tree*: DVTS with a constant scorer, `--problems` problems in flight,
through the toolkit's engine. Steps have exactly `--step-tokens` tokens (`--boundary tokens`), or end with the first
sentence that ends after so many (`--boundary sentence`; by vLLM's own `min_tokens`, and raw vLLM then also
detokenises), or where the model ends them (`--boundary step`). With `--align` the tree follows the blocks
(`boundary=tokens`): the first step of a path is up to 15 tokens longer, so that the later ones begin just after the
start or the middle of a block. *Barrier*: the same search with `barrier=true`. *Raw*: whole draws of the same prompts
through `vllm.LLM.generate`, whose `max_num_seqs` is the time-averaged number of draws that the tree had in flight;
`raw_same` sends the toolkit's requests (a seed per request, log-probabilities; with `--plain` neither, as in a command
without `--seed`), `raw_bare` neither. Prefix caches are emptied before every side. Reported are medians over the
rounds, of tokens per second and of tokens per CPU second of this process and its children, which other programs on the
machine affect less.

`--scorer prm` is the packaged reward model, or that in the folder `--judge`, one thread of this process beside vLLM's;
then there is no raw side, since raw requests are not scored. Left out: scorers of several models, and those on a
server.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, machine
from benchmarks.tree_throughput import NEVER, Watched
from evals.tasks.arithmetic import arithmetic
from ttc import nano, seeds
from ttc.config.registry import SCORERS
from ttc.core import Answer, Problem, Sampling
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import VllmOptions
from ttc.session.solve import solve_all
from ttc.strategies.tree import tree

UNSAID = {"scorer": "constant", "judge": None, "plain": False, "apart": False, "dtype": "auto"}
"""What older rows were measured with."""


class AtLeast:
    """A driver of vLLM whose requests end at nothing before so many tokens."""

    def __init__(self, inner: Any, num: int) -> None:
        self._inner, self._num = inner, num

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, requests: Sequence[Any]) -> None:
        """Pass on."""
        for request in requests:
            request.params.min_tokens = min(self._num, request.params.max_tokens)
        self._inner.submit(requests)


def processor_seconds() -> float:
    """Of this process and of those below it, where vLLM's cores may be."""
    import psutil  # vLLM brings it

    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(entry.user + entry.system for entry in times)


def steps_of(args: argparse.Namespace) -> dict[str, Any]:
    """The tree's parameters that say what a step is."""
    if args.boundary == "tokens":
        how = {"boundary": "tokens"} if args.align else {"step": NEVER}
        return {**how, "max_step_tokens": args.step_tokens}
    return {"boundary": "sentence"} if args.boundary == "sentence" else {}


async def run_tree(
    engine: Any, scorer: Any, problems: Sequence[Problem], args: argparse.Namespace, seed: int, barrier: bool
) -> dict[str, float]:
    """Tokens per second and per processor second, seconds, and the time-averaged number of draws in flight."""
    await engine._driver.reset_prefix_cache()
    watched: Any = Watched(engine)
    strategy = partial(tree, scorer=scorer, n=args.n, max_depth=1000, barrier=barrier, **steps_of(args))
    before = engine.counters()
    sampling = Sampling(max_tokens=args.max_tokens)
    run = solve_all(
        problems, engine=watched, strategy=strategy, seed=seed, sampling=sampling, concurrency=len(problems)
    )
    started, used = time.perf_counter(), processor_seconds()
    async for _, answer in run:
        if not isinstance(answer, Answer):
            raise answer
    wall, used = time.perf_counter() - started, processor_seconds() - used
    after = engine.counters()
    again = after.prompt - before.prompt - after.cached + before.cached
    return {
        "tokens_per_step": watched.tokens / (after.calls - before.calls),
        "prompt_per_step": again / (after.calls - before.calls),
        "tok_s": watched.tokens / wall,
        "tok_cpu_s": watched.tokens / used,
        "seconds": wall,
        "live": watched.draw_seconds / wall,
        "tokens": watched.tokens,
    }


class Raw:
    """VLLM alone, with so many sequences at once."""

    def __init__(self, folder: Path, live: int, threads: int, max_context: int, dtype: str) -> None:
        import torch
        from vllm import LLM

        torch.set_num_threads(threads)
        args = VllmOptions(max_num_seqs=live, max_context=max_context, dtype=dtype).engine_args(folder, on_cpu=True)
        self._llm = LLM(**{name: value for name, value in args.items() if name != "worker_extension_cls"})

    def run(
        self, prompts: Sequence[tuple[int, ...]], stops: Sequence[int], args: Any, seed: int, same: bool
    ) -> dict[str, float]:
        """Tokens per second, and per processor second, of `args.n` whole draws of every prompt."""
        from vllm import SamplingParams

        self._llm.reset_prefix_cache()
        jobs = [(ids, draw) for draw in range(args.n) for ids in prompts]
        params = [
            SamplingParams(
                temperature=Sampling().temperature,
                max_tokens=args.max_tokens,
                ignore_eos=True,
                stop_token_ids=list(stops),
                detokenize=same and args.boundary == "sentence",
                seed=seeds.derive(seed, i) >> 1 if same else None,
                logprobs=0 if same else None,
                flat_logprobs=same,
            )
            for i in range(len(jobs))
        ]
        started, used = time.perf_counter(), processor_seconds()
        done = self._llm.generate([{"prompt_token_ids": list(ids)} for ids, _ in jobs], params, use_tqdm=False)
        wall, used = time.perf_counter() - started, processor_seconds() - used
        tokens = sum(len(output.token_ids) for request in done for output in request.outputs)
        return {"tok_s": tokens / wall, "tok_cpu_s": tokens / used}


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One round to warm up and to find the number of live draws, then alternating rounds."""
    options = VllmOptions(
        threads=args.threads,
        max_num_seqs=256,
        max_context=args.max_context,
        seeded=not args.plain,
        logprobs=not args.plain,
        in_process=not args.apart,
        dtype=args.dtype,
    )
    engine: Any = vllm(args.model, options)
    scorer: Any = SCORERS.load(args.scorer)(*([args.judge] if args.judge else []))
    problems = [item.problem for item in arithmetic().items(args.problems, args.seed)]
    if args.boundary == "sentence":
        engine._driver = AtLeast(engine._driver, args.step_tokens)
    rounds: list[dict[str, float]] = []
    try:
        live = round((await run_tree(engine, scorer, problems, args, 999, False))["live"])
        raw = RawSides(args, engine, problems, live) if args.scorer == "constant" else None
        for seed in range(args.rounds):
            load = os.getloadavg()[0]
            searched = await run_tree(engine, scorer, problems, args, seed, False)
            beside = raw.run(seed, searched) if raw is not None else {}
            step = await run_tree(engine, scorer, problems, args, seed, True)
            row = {
                "load": load,
                "live": searched["live"],
                "tokens": searched["tokens"],
                "tokens_per_step": searched["tokens_per_step"],
                "prompt_per_step": searched["prompt_per_step"],
                "tree": searched["tok_s"],
                "barrier": step["tok_s"],
                **beside,
                "barrier_wall_ratio": step["seconds"] / searched["seconds"],
                "barrier_live": step["live"],
            }
            print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
            rounds.append(row)
    finally:
        await engine.close()
    medians = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    return {"raw_max_num_seqs": live, **medians, "rounds": rounds}


class RawSides:
    """The two raw sides beside a tree, and what part of theirs its throughput is."""

    def __init__(self, args: argparse.Namespace, engine: Any, problems: Sequence[Problem], live: int) -> None:
        folder = Path(args.model) if args.model else nano.path("teacher")
        self._args, self._stops = args, engine.capabilities.eos_ids
        self._prompts = [engine.render(problem.messages, None).token_ids for problem in problems]
        self._raw = Raw(folder, live, args.threads, args.max_context, args.dtype)
        self._raw.run(self._prompts[:8], self._stops, args, 998, not args.plain)

    def run(self, seed: int, tree: Mapping[str, float]) -> dict[str, float]:
        """A round; `tree` is what the search did in it."""
        args = self._args
        same = self._raw.run(self._prompts, self._stops, args, seed + 1000, not args.plain)
        bare = same if args.plain else self._raw.run(self._prompts, self._stops, args, seed + 1000, False)
        return {
            "raw_same": same["tok_s"],
            "raw_bare": bare["tok_s"],
            "against_raw_same": tree["tok_s"] / same["tok_s"],
            "against_raw_bare": tree["tok_s"] / bare["tok_s"],
            "cpu_against_raw_same": tree["tok_cpu_s"] / same["tok_cpu_s"],
            "cpu_against_raw_bare": tree["tok_cpu_s"] / bare["tok_cpu_s"],
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per model and optionally save it with its conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder; the packaged teacher without it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="auto", help="of vLLM's weights; float32 where the processor has no bf16")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--step-tokens", type=int, default=16)
    parser.add_argument("--boundary", choices=["tokens", "sentence", "step"], default="tokens")
    parser.add_argument("--scorer", choices=["constant", "prm"], default="constant")
    parser.add_argument("--judge", help="folder of the reward model of --scorer prm; the packaged one without it")
    parser.add_argument("--plain", action="store_true", help="no seeds and no log-probabilities")
    parser.add_argument("--align", action="store_true")
    parser.add_argument("--apart", action="store_true", help="vLLM's core in a process of its own")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    if args.judge and args.scorer != "prm":
        parser.error("--judge is the folder of --scorer prm: add that, or leave --judge out")
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="1" if args.apart else "0",
        VLLM_WORKER_MULTIPROC_METHOD="spawn",
        OMP_NUM_THREADS=str(args.threads),
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    result = asyncio.run(measure(args))
    print(line(result))
    if args.save:
        used = round(processor_seconds())
        row = {
            **facts(),
            "cpu_seconds": used,
            **{k: v for k, v in vars(args).items() if k not in ("save", "model", "judge")},
            **result,
        }
        row["model"] = Path(args.model).name if args.model else "nano-teacher"
        row["judge"] = Path(args.judge).name if args.judge else None
        rows = json.loads(args.save.read_text(encoding="utf-8")) if args.save.exists() else []
        same = ("machine", "model", "threads", "step_tokens", "n", "boundary", "align", "max_tokens", "scorer", "judge")
        same = (*same, "plain", "apart", "dtype")
        kept = [old for old in rows if any(old.get(key, UNSAID.get(key)) != row[key] for key in same)]
        args.save.parent.mkdir(parents=True, exist_ok=True)
        args.save.write_text(json.dumps([*kept, row], indent=1) + "\n", encoding="utf-8")


def line(result: Mapping[str, Any]) -> str:
    """What was measured, in words."""
    words = [
        f"steps of {result['tokens_per_step']:.1f} tokens, with {result['prompt_per_step']:.1f} of prompt computed",
        f"tree {result['tree']:,.0f} tok/s at {result['live']:.0f} live draws",
    ]
    if "raw_same" in result:
        same, bare, cpu_same, cpu_bare = (
            f"{100 * result[key]:.0f} %"
            for key in ("against_raw_same", "against_raw_bare", "cpu_against_raw_same", "cpu_against_raw_bare")
        )
        words += [f"{same} of raw vLLM asked for the same, {bare} of bare (by processor time {cpu_same}, {cpu_bare})"]
    return "; ".join([*words, f"lock-step takes {result['barrier_wall_ratio']:.2f}x the time"])


def facts() -> dict[str, Any]:
    """Date, commit, versions and machine."""
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    versions = {name: found[name] for name in ("vllm", "vllm-cpu", "torch") if name in found}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions,
        "machine": machine(),
    }


if __name__ == "__main__":
    main()
