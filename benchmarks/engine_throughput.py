r"""Tokens per second of the embedded engine beside `transformers.generate` and vLLM, alternating on one machine.

    python -m benchmarks.engine_throughput --model FOLDER --model random-teacher \\
        --n 16 64 256 --threads 1 2 [--vllm-python /path/to/venv/bin/python] [--json out.json]

Every engine runs in its own process with the same number of threads and waits while another one is timed. In a round
every engine does the same work; the best of the rounds counts. Shared: n samples of one 60-token prompt. Ragged: n
prompts of 20 to 200 tokens, one sample each. All sample at temperature 0.8 and ignore the end of sequence; the embedded
engine and vLLM also return log-probabilities. All run in bf16 where the processor has it, else in fp32. The time
includes prefill. vLLM runs eagerly and in one process (its fastest CPU mode with a short start); it needs its own
environment, hence the path to its Python. With `--top-k` and `--top-p` the same work is also run with these filters.

`random-teacher` is a random Qwen3 of 4 layers, hidden 256, 4/2 heads x 64, MLP 768, vocabulary 261.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import commit

PROMPT = 60
Work = list[list[int]]
Cuts = dict[str, Any]
Run = Callable[[Work, int, int, Cuts], int]
"""A run: prompts, samples of each, tokens of each sample, cuts of the distribution; returns the tokens drawn."""


def prompts(n: int, ragged: bool, vocab: int, turn: int) -> tuple[Work, int]:
    """The prompts of one run and how many samples each gets; those of another turn are others: no cache holds them."""
    rng = random.Random(n * 1000 + turn)
    top = min(vocab, 256)
    if not ragged:
        return [[rng.randrange(top) for _ in range(PROMPT)]], n
    return [[rng.randrange(top) for _ in range(20 + 180 * i // max(n - 1, 1))] for i in range(n)], 1


def embedded(
    folder: str,
    threads: int,
    invariant: bool = False,
    processes: int | None = None,
    place: str = "ttc.engines.embedded.engine",
) -> Run:
    """The engine of this repository, through its public interface."""
    import asyncio

    from ttc.core import Prompt, Sampling

    make = importlib.import_module(place).embedded
    engine = make(folder, device="cpu", threads=threads, batch_invariant=invariant, processes=processes)
    rounds = iter(range(1 << 30))

    def run(work: Work, samples: int, tokens: int, cuts: Cuts) -> int:
        sampling = Sampling(temperature=0.8, max_tokens=tokens, seed=next(rounds), logprobs=True, **cuts)

        async def go() -> int:
            jobs = (engine.generate(Prompt("", tuple(ids)), sampling, range(samples), lambda _: None) for ids in work)
            return sum(len(c.token_ids) for done in await asyncio.gather(*jobs) for c in done)

        return asyncio.run(go())

    return run


def invariant(folder: str, threads: int) -> Run:
    """The same in batch-invariant mode."""
    return embedded(folder, threads, invariant=True)


def processes(folder: str, threads: int) -> Run:
    """The same in as many processes as there are threads, each with one."""
    return embedded(folder, 1, processes=threads)


def before(folder: str, threads: int) -> Run:
    """The engine of a checkout of 4af414b, before the paged cache; `Worker` gets its path."""
    return embedded(folder, threads, place="ttc.engines.embedded")


def transformers(folder: str, threads: int) -> Run:
    """`model.generate`, left-padded when ragged."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=fast_dtype()).eval()
    model.generation_config.eos_token_id = None

    def run(work: Work, samples: int, tokens: int, cuts: Cuts) -> int:
        longest = max(map(len, work))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in work])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in work])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=0.8,
                **{"top_k": 0, **cuts},
                num_return_sequences=samples,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )
        return int(out.shape[0] * (out.shape[1] - longest))

    return run


def vllm(folder: str, threads: int) -> Run:
    """VLLM for CPUs: eager, in one process."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        dtype=fast_dtype(),
        max_model_len=1024,
        max_num_seqs=256,
        enforce_eager=True,
        kv_cache_memory_bytes=2 << 30,
        block_size=32,
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
    )

    def run(work: Work, samples: int, tokens: int, cuts: Cuts) -> int:
        llm.reset_prefix_cache()
        params = SamplingParams(
            n=samples, temperature=0.8, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False, **cuts
        )
        done = llm.generate([{"prompt_token_ids": ids} for ids in work], params, use_tqdm=False)
        return sum(len(output.token_ids) for request in done for output in request.outputs)

    return run


def fast_dtype() -> str:
    """The dtype that the embedded engine takes by itself: bf16 where this processor multiplies it."""
    import torch

    flags = torch.cpu.get_capabilities()
    native = any(flags.get(name) for name in ("avx512_bf16", "amx_bf16", "amx_tile"))
    return "bfloat16" if native else "float32"


ENGINES = {f.__name__: f for f in (embedded, processes, invariant, before, transformers, vllm)}
NAMES = [name for name in ENGINES if name != "before"]
"""The engines that this command measures; `benchmarks.forest --before` uses the other one."""


def serve(engine: str, folder: str, threads: int) -> None:
    """A worker: one JSON request per line in, one JSON answer per line out."""
    out, sys.stdout = sys.stdout, sys.stderr
    run = ENGINES[engine](folder, threads)
    vocab = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        work, samples = prompts(request["n"], request["ragged"], vocab, request["turn"])
        started, before = time.perf_counter(), time.process_time()
        tokens = run(work, samples, request["tokens"], request["cuts"])
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - before}
        print(json.dumps({"tokens": tokens, **spent}), file=out, flush=True)


class Worker:
    """The parent's end of `serve`; `tree` is another checkout, whose `ttc` is taken in place of this one's."""

    def __init__(self, engine: str, python: str, folder: str, threads: int, tree: Path | None = None) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        script = [python, "-m", "benchmarks.engine_throughput"]
        if tree is not None:  # by its file, so that this checkout's root is not the first place of imports
            environment["PYTHONPATH"], script = str(tree), [python, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            [*script, "--worker", engine, "--model", folder, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("BENCH_DEBUG") else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._read()

    def ask(self, **request: Any) -> dict[str, Any]:
        """One timed run."""
        if self._process.stdin is None:
            raise RuntimeError("the worker has no input")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"a worker died (exit {self._process.wait()}): run with BENCH_DEBUG=1 to see why")
        return dict(json.loads(line))

    def close(self) -> None:
        """Stop the worker."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def measure(arguments: argparse.Namespace, model: str, threads: int) -> list[dict[str, Any]]:
    """All rows of one model at one thread count."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = endless(model, Path(scratch))
        pythons = {name: arguments.vllm_python if name == "vllm" else sys.executable for name in arguments.engines}
        workers = {name: Worker(name, python, folder, threads) for name, python in pythons.items() if python}
        for worker in workers.values():
            worker.ask(n=4, ragged=False, tokens=8, turn=0, cuts={})
        cuts = {name: value for name in ("top_k", "top_p") if (value := getattr(arguments, name)) is not None}
        kinds: list[Cuts] = [{}, cuts] if cuts else [{}]
        for n, ragged in itertools.product(arguments.n, (False, True)):
            best: list[dict[str, float]] = [dict.fromkeys(workers, 0.0) for _ in kinds]
            for turn in range(arguments.rounds):
                for (kind, rates), (name, worker) in itertools.product(zip(kinds, best, strict=True), workers.items()):
                    number = turn * len(kinds) + kinds.index(kind)
                    answer = worker.ask(n=n, ragged=ragged, tokens=arguments.tokens, turn=number, cuts=kind)
                    rates[name] = max(rates[name], answer["tokens"] / answer["seconds"])
            about = {"model": Path(model).name, "threads": threads, "n": n, "ragged": ragged}
            for kind, rates in zip(kinds, best, strict=True):
                rows.append({**about, "cuts": kind, "tok_s": rates})
                show(rows[-1])
        for worker in workers.values():
            worker.close()
    return rows


def endless(model: str, scratch: Path) -> str:
    """A folder like `model` whose end-of-sequence ids are gone."""
    if model == "random-teacher":
        from tests.ttc.tiny_model import build

        sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64}
        source = build(scratch / "source", **sizes, max_position_embeddings=2048, initializer_range=0.05)
    else:
        source = Path(model).resolve()
    folder = scratch / "model"
    folder.mkdir()
    for file in source.iterdir():
        if file.name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            data = json.loads(file.read_text())
            data = {k: v for k, v in data.items() if k not in ("eos_token_id", "eos_token")}
            (folder / file.name).write_text(json.dumps(data))
        else:
            (folder / file.name).symlink_to(file)
    return str(folder)


def show(row: dict[str, Any]) -> None:
    """One table line."""
    speeds = row["tok_s"]
    ours = speeds.get("embedded", 0.0)
    cells = [
        f"{name} {value:>8,.0f}" + (f" ({ours / value:4.2f}x)" if name != "embedded" and value else "")
        for name, value in speeds.items()
    ]
    kind = " ".join(["ragged" if row["ragged"] else "shared", *(f"{k}={v:g}" for k, v in row["cuts"].items())])
    print(f"{row['model']:<16} {row['threads']}t n={row['n']:<4} {kind}  " + "  ".join(cells), flush=True)


def version(package: str, python: str | None) -> str | None:
    """Installed version of a package under some Python; None when absent."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    if python is None:
        return None
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="model folder, or random-teacher")
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64], help="sequences at once")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per sequence")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--engines", nargs="+", default=["embedded", "transformers", "vllm"], choices=NAMES)
    parser.add_argument("--vllm-python", help="Python of an environment with vllm-cpu; vLLM is left out without it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=list(ENGINES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.worker, arguments.model[0], arguments.threads[0])
        return
    rows = [row for model in arguments.model for t in arguments.threads for row in measure(arguments, model, t)]
    if arguments.json:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
        versions["vllm"] = version("vllm-cpu", arguments.vllm_python) or version("vllm", arguments.vllm_python) or ""
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        arguments.json.write_text(json.dumps({**facts, "versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
