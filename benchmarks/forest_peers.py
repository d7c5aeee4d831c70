"""The rows of `benchmarks.forest` that compare the embedded engine with other engines, and with itself.

`ragged_16`, `ragged_64`: prompts of 20 to 200 tokens, one sample of 24 tokens each, against vLLM's CPU build, in
alternating processes. `shared_16`, `shared_64`: as many samples of one prompt, against vLLM, transformers and the
engine of an older checkout. `threads`: 64 ragged prompts with two threads against two processes of one thread; in wall
time, which threads are meant to reduce. `tree_*`: tree search against the raw engine at equal live sequences, with the
packaged model; the lengths of steps and the numbers of problems and paths are in `TREES`. A ratio above 1 is in our
favour.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.engine_throughput import Worker, endless
from benchmarks.tree_throughput import run_raw, run_tree
from evals.tasks.arithmetic import arithmetic
from ttc.engines.embedded.engine import embedded

TOKENS = 24

TREES = {"tree_32x8": (32, 8, 24), "tree_32x8_short": (32, 8, 8), "tree_4x64": (4, 64, 16), "tree_4x4": (4, 4, 24)}
"""Problems at once, paths of each, and tokens of a step."""


@dataclass(frozen=True)
class Others:
    """Paths of the engines to compare with; None leaves one out."""

    vllm_python: str | None
    before: Path | None = None
    """A checkout of 4af414b: the engine from before keys and values lay in pages."""

    def workers(self, names: Sequence[str], folder: str, threads: int) -> dict[str, Worker]:
        """Start a process for each engine that is present."""
        lacking = {"vllm"} if self.vllm_python is None else set()
        lacking |= {"before"} if self.before is None else set()
        return {
            name: Worker(
                name,
                self.vllm_python if name == "vllm" and self.vllm_python else sys.executable,
                folder,
                threads,
                self.before if name == "before" else None,
            )
            for name in names
            if name not in lacking
        }


def race(
    names: Sequence[str], model: Path, others: Others, rounds: int, *, n: int, ragged: bool, threads: int = 1
) -> dict[str, float]:
    """Tokens per second of the first engine against the others, in turns; the best round of each counts."""
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = endless(str(model), Path(scratch))
        workers = others.workers(names, folder, threads)
        for worker in workers.values():
            worker.ask(n=4, ragged=False, tokens=4, turn=0, cuts={})
        for turn in range(rounds):
            for name, worker in workers.items():
                answer = worker.ask(n=n, ragged=ragged, tokens=TOKENS, turn=turn, cuts={})
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


def ragged(n: int, model: Path, others: Others, rounds: int) -> dict[str, float]:
    """Prompts of many lengths against vLLM."""
    return race(["embedded", "vllm"], model, others, rounds, n=n, ragged=True)


def shared(n: int, model: Path, others: Others, rounds: int) -> dict[str, float]:
    """One prompt, many samples, against vLLM, transformers, and this engine before it had pages."""
    return race(["embedded", "vllm", "transformers", "before"], model, others, rounds, n=n, ragged=False)


def threads(model: Path, others: Others, rounds: int) -> dict[str, float]:
    """Two threads against two processes; their processor time is not in this process, so only the clock is given."""
    row = race(["embedded", "processes"], model, others, rounds, n=64, ragged=True, threads=2)
    return {key: value for key, value in row.items() if "cpu" not in key}


def searched(name: str, model: Path, others: Others, rounds: int) -> dict[str, float]:
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


PARTS: dict[str, Callable[[Path, Others, int], dict[str, float]]] = {
    **{f"ragged_{n}": partial(ragged, n) for n in (16, 64)},
    **{f"shared_{n}": partial(shared, n) for n in (16, 64)},
    "threads": threads,
    **{name: partial(searched, name) for name in TREES},
}

AIMS: dict[str, dict[str, str]] = {
    **{f"ragged_{n}": {"vllm_cpu_ratio": ">= 1.1", "vllm_wall_ratio": ">= 1.1"} for n in (16, 64)},
    "shared_16": {"transformers_cpu_ratio": ">= 3.8", "vllm_cpu_ratio": ">= 1.37", "before_cpu_ratio": ">= 1.0"},
    "shared_64": {"transformers_cpu_ratio": ">= 5.3", "vllm_cpu_ratio": ">= 1.62", "before_cpu_ratio": ">= 1.0"},
    "threads": {"processes_wall_ratio": ">= 1.0"},
    **{name: {"ratio": ">= 1.0"} for name in TREES},
}
"""What is asked; for shared prompts, what was measured before keys and values lay in pages, on another processor, with
the same prompt in every round: `before` is that code on the machine and the prompts at hand."""
