"""Tree search on vLLM against vLLM alone, and against the lock-step schedule of other tools on the same engine.

    VLLM_PYTHON -m benchmarks.vllm_tree --model smollm2 [--boundary sentence] [--rounds 3] [--save FILE.json]

Three sides alternate in one process, all with vLLM's core in this process and blocks of 32 tokens. *Tree*: DVTS with a
constant scorer, `--problems` problems in flight, through the toolkit's engine. Steps have exactly `--step-tokens`
tokens (`--boundary tokens`), or end with the first sentence that ends after so many (`--boundary sentence`; vLLM's own
`min_tokens` sees to that, and raw vLLM then turns ids into text as well). With `--align` the first step of a path is up
to 15 tokens longer, so that the later ones begin just behind the start or the middle of a block.
*Barrier*: the same search with `barrier=true`. *Raw*: whole draws of the same prompts through `vllm.LLM.generate`,
whose `max_num_seqs` is the time-averaged number of draws that the tree had in flight; `raw_same` asks for what the
toolkit asks for (a seed per request, log-probabilities), `raw_bare` for neither. Prefix caches are emptied before every
side. Medians over the rounds. Beside tokens per second stand tokens per second of processor time of the whole process,
which other programs on the machine disturb less. Left out: scorers, whose cost the ratio must not hide or show.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tree_throughput import NEVER, Watched
from evals.tasks.arithmetic import arithmetic
from ttc import nano, seeds
from ttc.core import Completion, Problem, Prompt, Sampling, UsageSink
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import VllmOptions
from ttc.scorers.constant import constant
from ttc.session.solve import solve
from ttc.strategies.tree import tree


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


class Aligned(Watched):
    """Makes the first step of a path so much longer that later steps of 16 tokens begin just behind a half block."""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Pass on, and count."""
        if not prompt.generated_ids:
            begin = len(prompt.token_ids or ())
            sampling = replace(sampling, max_tokens=sampling.max_tokens + (1 - begin - sampling.max_tokens) % 16)
        return await super().generate(prompt, sampling, draws, on_usage)


async def run_tree(
    engine: Any, problems: Sequence[Problem], args: argparse.Namespace, seed: int, barrier: bool
) -> dict[str, float]:
    """Tokens per second and per processor second, seconds, and the time-averaged number of draws in flight."""
    await engine._driver.reset_prefix_cache()
    watched: Any = (Aligned if args.align else Watched)(engine)
    exact = {"step": NEVER, "max_step_tokens": args.step_tokens}
    steps = exact if args.boundary == "tokens" else {"boundary": "sentence"}
    strategy = partial(tree, scorer=constant(), n=args.n, max_depth=1000, barrier=barrier, **steps)
    before = engine.counters()
    sampling = Sampling(max_tokens=args.max_tokens)
    run = partial(solve, engine=watched, strategy=strategy, seed=seed, sampling=sampling, shared={})
    started, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(run(problem) for problem in problems))
    wall, used = time.perf_counter() - started, time.process_time() - used
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

    def __init__(self, folder: Path, live: int, threads: int, max_context: int) -> None:
        import torch
        from vllm import LLM

        torch.set_num_threads(threads)
        args = VllmOptions(max_num_seqs=live, max_context=max_context).engine_args(folder, on_cpu=True)
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
        started, used = time.perf_counter(), time.process_time()
        done = self._llm.generate([{"prompt_token_ids": list(ids)} for ids, _ in jobs], params, use_tqdm=False)
        wall, used = time.perf_counter() - started, time.process_time() - used
        tokens = sum(len(output.token_ids) for request in done for output in request.outputs)
        return {"tok_s": tokens / wall, "tok_cpu_s": tokens / used}


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One round to warm up and to find the number of live draws, then alternating rounds."""
    folder = Path(args.model) if args.model else nano.path("teacher")
    engine: Any = vllm(args.model, VllmOptions(threads=args.threads, max_num_seqs=256, max_context=args.max_context))
    problems = [item.problem for item in arithmetic().items(args.problems, args.seed)]
    prompts = [engine.render(problem.messages, None).token_ids for problem in problems]
    stops = engine.capabilities.eos_ids
    if args.boundary == "sentence":
        engine._driver = AtLeast(engine._driver, args.step_tokens)
    rounds: list[dict[str, float]] = []
    try:
        live = round((await run_tree(engine, problems, args, 999, False))["live"])
        raw = Raw(folder, live, args.threads, args.max_context)
        raw.run(prompts[:8], stops, args, 998, True)
        for seed in range(args.rounds):
            load = os.getloadavg()[0]
            found = await run_tree(engine, problems, args, seed, False)
            same = raw.run(prompts, stops, args, seed + 1000, True)
            bare = raw.run(prompts, stops, args, seed + 1000, False)
            step = await run_tree(engine, problems, args, seed, True)
            rounds.append(
                {
                    "load": load,
                    "live": found["live"],
                    "tokens_per_step": found["tokens_per_step"],
                    "prompt_per_step": found["prompt_per_step"],
                    "tree": found["tok_s"],
                    "raw_same": same["tok_s"],
                    "raw_bare": bare["tok_s"],
                    "barrier": step["tok_s"],
                    "against_raw_same": found["tok_s"] / same["tok_s"],
                    "against_raw_bare": found["tok_s"] / bare["tok_s"],
                    "cpu_against_raw_same": found["tok_cpu_s"] / same["tok_cpu_s"],
                    "cpu_against_raw_bare": found["tok_cpu_s"] / bare["tok_cpu_s"],
                    "barrier_wall_ratio": step["seconds"] / found["seconds"],
                    "barrier_live": step["live"],
                }
            )
            print(json.dumps({name: round(value, 3) for name, value in rounds[-1].items()}), flush=True)
    finally:
        await engine.close()
    medians = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    return {"raw_max_num_seqs": live, **medians, "rounds": rounds}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per model and optionally save it with its conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder; the packaged teacher without it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--step-tokens", type=int, default=16)
    parser.add_argument("--boundary", choices=["tokens", "sentence"], default="tokens")
    parser.add_argument("--align", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        OMP_NUM_THREADS=str(args.threads),
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    result = asyncio.run(measure(args))
    print(
        f"steps of {result['tokens_per_step']:.1f} tokens, with {result['prompt_per_step']:.1f} of prompt computed;"
        f" tree {result['tree']:,.0f} tok/s at {result['live']:.0f} live draws:"
        f" {100 * result['against_raw_same']:.0f} % of raw vLLM asked for the same,"
        f" {100 * result['against_raw_bare']:.0f} % of bare ({100 * result['cpu_against_raw_same']:.0f} % and"
        f" {100 * result['cpu_against_raw_bare']:.0f} % by processor time);"
        f" lock-step takes {result['barrier_wall_ratio']:.2f}x the time"
    )
    if args.save:
        used = round(time.process_time())
        row = {
            **facts(),
            "cpu_seconds": used,
            **{k: v for k, v in vars(args).items() if k not in ("save", "model")},
            **result,
        }
        row["model"] = Path(args.model).name if args.model else "nano-teacher"
        rows = json.loads(args.save.read_text(encoding="utf-8")) if args.save.exists() else []
        same = ("model", "threads", "step_tokens", "n", "boundary", "align", "max_tokens")
        kept = [old for old in rows if any(old.get(key) != row[key] for key in same)]
        args.save.parent.mkdir(parents=True, exist_ok=True)
        args.save.write_text(json.dumps([*kept, row], indent=1) + "\n", encoding="utf-8")


def facts() -> dict[str, Any]:
    """Date, commit, versions and machine."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    versions = {name: found[name] for name in ("vllm", "vllm-cpu", "torch") if name in found}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": versions,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    main()
