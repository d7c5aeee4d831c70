"""The rows of `benchmarks.forest` that compare the embedded engine with other engines, and with itself.

`ragged_16`, `ragged_64`: prompts of 20 to 200 tokens, one sample of 24 tokens each, against vLLM's CPU build, in
processes of their own that take turns. `shared_16`, `shared_64`: as many samples of one prompt, against vLLM and
transformers. `threads`: 64 ragged prompts with two threads against two processes of one thread; by the clock, since
that is what threads are for. `tree_*`: tree search against the raw engine at equal live sequences, with the packaged
model; the lengths of steps and the numbers of problems and paths are in `TREES`. A ratio above 1 is ours.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.engine_throughput import Worker, endless
from benchmarks.tree_throughput import run_raw, run_tree
from evals.tasks.arithmetic import arithmetic
from ttc.engines.embedded.engine import embedded

__all__ = ["AIMS", "PARTS"]

TOKENS = 24

TREES = {"tree_32x8": (32, 8, 24), "tree_32x8_short": (32, 8, 8), "tree_4x64": (4, 64, 16), "tree_4x4": (4, 4, 24)}
"""Problems at once, paths of each, and tokens of a step."""


def race(
    names: Sequence[str], model: Path, vllm_python: str | None, rounds: int, *, n: int, ragged: bool, threads: int = 1
) -> dict[str, float]:
    """Tokens per second of the first engine against the others, in turns; the best round of each counts."""
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = endless(str(model), Path(scratch))
        pythons = {name: vllm_python if name == "vllm" else sys.executable for name in names}
        workers = {name: Worker(name, python, folder, threads) for name, python in pythons.items() if python}
        for worker in workers.values():
            worker.ask(n=4, ragged=False, tokens=4, turn=0)
        for turn in range(rounds):
            for name, worker in workers.items():
                answer = worker.ask(n=n, ragged=ragged, tokens=TOKENS, turn=turn)
                rates = {"wall": answer["tokens"] / answer["seconds"], "cpu": answer["tokens"] / answer["cpu_seconds"]}
                best[name] = {unit: max(rate, best.get(name, rates)[unit]) for unit, rate in rates.items()}
        for worker in workers.values():
            worker.close()
    first = names[0]
    figures = {f"{name}_per_{unit}_s": rate for name, rates in best.items() for unit, rate in rates.items()}
    ratios = {
        f"{name}_{unit}_ratio": best[first][unit] / rate
        for name, rates in best.items()
        for unit, rate in rates.items()
        if name != first
    }
    return ratios | figures


def ragged(n: int, model: Path, vllm_python: str | None, rounds: int) -> dict[str, float]:
    """Prompts of many lengths against vLLM."""
    return race(["embedded", "vllm"], model, vllm_python, rounds, n=n, ragged=True)


def shared(n: int, model: Path, vllm_python: str | None, rounds: int) -> dict[str, float]:
    """One prompt, many samples, against vLLM and transformers."""
    return race(["embedded", "vllm", "transformers"], model, vllm_python, rounds, n=n, ragged=False)


def threads(model: Path, vllm_python: str | None, rounds: int) -> dict[str, float]:
    """Two threads against two processes; their processor time is not in this process, so only the clock is given."""
    row = race(["embedded", "processes"], model, vllm_python, rounds, n=64, ragged=True, threads=2)
    return {key: value for key, value in row.items() if "cpu" not in key}


def searched(name: str, model: Path, vllm_python: str | None, rounds: int) -> dict[str, float]:
    """Tree search against raw draws, by processor time and by the clock; the median round by processor time."""
    num_problems, n, step_tokens = TREES[name]

    async def go() -> list[dict[str, float]]:
        engine = embedded(device="cpu", threads=1, max_batch=1024)
        problems = [item.problem for item in arithmetic().items(num_problems, 7)]
        rows = []
        await run_raw(engine, problems[:4], 4, 1, 0)  # warm up
        for seed in range(rounds + 1):
            tree = await run_tree(engine, problems, n, step_tokens, seed)
            raw = await run_raw(engine, problems, max(1, round(tree.live)), n, seed + 1000)
            ratios = {"ratio": tree.cpu_rate / raw.cpu_rate, "wall_ratio": tree.rate / raw.rate}
            rows.append({**ratios, "tree_per_cpu_s": tree.cpu_rate, "raw_per_cpu_s": raw.cpu_rate, "live": tree.live})
        await engine.close()
        return rows

    rows = sorted(asyncio.run(go()), key=lambda row: row["ratio"])
    return rows[len(rows) // 2]


PARTS: dict[str, Callable[[Path, str | None, int], dict[str, float]]] = {
    **{f"ragged_{n}": partial(ragged, n) for n in (16, 64)},
    **{f"shared_{n}": partial(shared, n) for n in (16, 64)},
    "threads": threads,
    **{name: partial(searched, name) for name in TREES},
}

AIMS: dict[str, dict[str, str]] = {
    **{f"ragged_{n}": {"vllm_cpu_ratio": ">= 1.1", "vllm_wall_ratio": ">= 1.1"} for n in (16, 64)},
    "shared_16": {"transformers_cpu_ratio": ">= 3.8", "vllm_cpu_ratio": ">= 1.37"},
    "shared_64": {"transformers_cpu_ratio": ">= 5.3", "vllm_cpu_ratio": ">= 1.62"},
    "threads": {"processes_wall_ratio": ">= 1.0"},
    **{name: {"ratio": ">= 1.0"} for name in TREES},
}
"""What is asked; for shared prompts, what was measured before keys and values lay in pages."""
