"""Memory of the GPU decoder in real sizes, on tensors without memory: pages in use, and number of rows.

    python -m benchmarks.gpu_memory [--json FILE]       (a minute or two of one core; no GPU)

The batch, its pool of pages, the prefix tree and the planning of attention are those that run on a GPU; only the step
is replaced, by one that samples nothing and reports four tokens for every row. The budget is that of a GPU of 80 GB.
`pool` is allocated once and never grows; `held` is the most of it in use, including finished texts that may be
continued; `live` is what was in use before the first draw ended, and `unique` the unique keys of those texts. The
figures are counted, not measured. Needs torch, numpy and triton.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu_counts import SHAPES, meta_body
from ttc.engines.shared.shape import Dims

RESULTS = Path(__file__).parent / "results" / "gpu_memory.json"
FREE = 80 * 10**9
FOURTEEN = SHAPES["7B"] | {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
                           "num_attention_heads": 40, "num_key_value_heads": 8}  # fmt: skip
MODELS = {"0.5B": (SHAPES["0.5B"], 494_000_000), "7B": (SHAPES["7B"], 7_616_000_000), "14B": (FOURTEEN, 14_770_000_000)}
"""Name -> config.json, numbers of the weights."""


@dataclass(frozen=True)
class Scenario:
    """`prompts` prompts of `prompt` tokens, `draws` draws of each, answers of half to all of `answer` tokens."""

    name: str
    prompts: int
    prompt: int
    draws: int
    answer: int


SCENARIOS = (
    Scenario("16 draws, answers to 3k", 8, 500, 16, 3_000),
    Scenario("64 branches over 32k", 1, 32_000, 64, 700),
    Scenario("256 rows, answers to 16k", 256, 300, 1, 16_000),
)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes, and rows at once: `most_rows`."""

    model: str
    scenario: str
    weights: int
    scratch: int
    pool: int
    held: int
    live: int
    unique: int
    most_rows: int
    finished: int

    @property
    def peak(self) -> int:
        """Of all that the engine takes."""
        return self.weights + self.scratch + self.pool


class CountedStep:
    """The step's bookkeeping without a step: every row gets four tokens a look, up to its limit and its pages."""

    ahead, num_places, idle = 4, 256, False

    def __init__(self) -> None:
        self.rows: dict[int, SimpleNamespace] = {}
        self.free = list(range(self.num_places))[::-1]
        self.next = 1

    @property
    def tickets(self) -> Sequence[int]:
        """Of live rows."""
        return list(self.rows)

    def start(self, row: Any) -> int:
        """See `DeviceStep`."""
        ticket, self.next = self.next, self.next + 1
        self.rows[ticket] = SimpleNamespace(
            start=row, index=self.free.pop(), position=row.position, room=len(row.pages)
        )
        return ticket

    def stop(self, ticket: int) -> None:
        """See `DeviceStep`."""
        self.free.append(self.rows.pop(ticket).index)

    def grow(self, ticket: int, pages: Sequence[int]) -> None:
        """See `DeviceStep`."""
        self.rows[ticket].room = len(pages)

    def index(self, ticket: int) -> int:
        """See `DeviceStep`."""
        return int(self.rows[ticket].index)

    def reach(self, ticket: int) -> int:
        """See `DeviceStep`; nothing is queued when it is asked."""
        return int(self.rows[ticket].position)

    def look(self) -> Any:
        """Four tokens for each row."""
        from ttc.engines.embedded.device.step import RowTokens

        tokens = {}
        for ticket, row in list(self.rows.items()):
            count = min(self.ahead, row.start.limit - row.position, row.start.first + 16 * row.room - row.position)
            row.position += count
            ended = "length" if row.position >= row.start.limit else None
            tokens[ticket] = RowTokens((0,) * count, ended=ended)
            if ended:
                self.stop(ticket)
        return SimpleNamespace(rows=tokens)

    def drain(self) -> None:
        """See `DeviceStep`."""


def engine(
    dims: Dims, max_batch: int, num_pages: int, kv_bytes: int, lengths: Mapping[int, int], finished: set[int]
) -> Any:
    """The batch over a pool without memory; a draw ends at the length that its key names."""
    from ttc.engines.embedded.core.batch import BatchLimits
    from ttc.engines.embedded.device.runtime import CudaRuntime
    from ttc.engines.embedded.gpu.attention import KERNELS, PlannedAttention
    from ttc.engines.embedded.gpu.batch import DeviceBatch
    from ttc.engines.embedded.gpu.decoder import DeviceDecoder
    from ttc.engines.embedded.gpu.pool import DevicePool

    meta = torch.device("meta")
    cuda = SimpleNamespace(device=lambda device: contextlib.nullcontext())
    runtime = CudaRuntime(meta, cuda)
    pool = DevicePool(dims, torch.bfloat16, meta, num_pages, lambda numbers: torch.empty(numbers.shape, device="meta"))
    pool._send = lambda numbers: torch.empty(numbers.shape, dtype=torch.long, device="meta")

    body = meta_body(dims, pool, runtime=runtime)

    class CountedDecoder(DeviceDecoder):
        def __init__(self, body: Any) -> None:
            self._pool, self._step, self._version = pool, CountedStep(), -1  # type: ignore[assignment]
            self._attention = PlannedAttention(pool, runtime, KERNELS, [None] * dims.num_layers, 132)
            self._seats, self._tickets, self._ends = {}, {}, {}

    def on_token(draw: Any) -> None:
        draw.ended = len(draw.ids) >= lengths[draw.key] or len(draw.ids) >= draw.request.sampling.max_tokens
        if draw.ended:
            finished.add(draw.key)

    return DeviceBatch(body, CountedDecoder, BatchLimits(max_batch, kv_bytes), on_token)  # type: ignore[arg-type]


def requests(scenario: Scenario, vocab: int, seed: int) -> tuple[list[Any], dict[int, int]]:
    """What is asked, and how long each draw will be."""
    from ttc.core import Sampling
    from ttc.engines.embedded.core.requests import GenerateRequest
    from ttc.engines.shared.tokens import StopRule

    chance, loop, asked, lengths = random.Random(seed), asyncio.new_event_loop(), [], dict[int, int]()
    rule = StopRule((), (), (), (), lambda _: "")
    sampling = Sampling(temperature=1.0, max_tokens=scenario.answer, seed=0)
    for number in range(scenario.prompts):
        ids = tuple(chance.randrange(vocab) for _ in range(scenario.prompt))
        keys = tuple(number * scenario.draws + draw for draw in range(scenario.draws))
        lengths |= {key: chance.randint(scenario.answer // 2, scenario.answer) for key in keys}
        future: Any = loop.create_future()
        draws = range(scenario.draws)
        asked.append(
            GenerateRequest(ids, f"p{number}", (), sampling, draws, keys, rule, loop, future, lambda _: None)
        )  # fmt: skip
    loop.close()
    return asked, lengths


def measure(model: str, scenario: Scenario, free: int = FREE, max_batch: int = 256, seed: int = 0) -> MemoryUse:
    """Run a scenario to its end."""
    from ttc.engines.embedded.gpu.budget import budget, scratch_bytes

    config, numbers = MODELS[model]
    dims = Dims.from_config(config)
    context = scenario.prompt + scenario.answer
    plan = budget(
        dims, weights=numbers, itemsize=2, free=free, max_batch=max_batch, max_context=context, kv_bytes=None
    )  # fmt: skip
    asked, lengths = requests(scenario, dims.vocab, seed)
    finished = set[int]()
    batch = engine(dims, max_batch, plan.num_pages, plan.kv_bytes, lengths, finished)
    for request in asked:
        batch.add(request)
    held = live = unique = most = 0
    pool = batch._body.device_pool
    while not batch.idle:
        batch.tick()
        tokens, most, held = pool.num_tokens, max(most, len(batch.rows)), max(held, pool.num_tokens)
        if len(batch.rows) == most and not finished:
            prompts = {row.request.ids for row in batch.rows}
            live, unique = tokens, sum(map(len, prompts)) + sum(len(row.ids) for row in batch.rows)
    token = dims.kv_bytes(2)
    scratch = scratch_bytes(dims, 2, max_batch, context)
    return MemoryUse(
        model, scenario.name, 2 * numbers, scratch, plan.num_pages * 16 * token, held * token,
        live * token, unique * token, most, len(finished),
    )  # fmt: skip


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    uses = []
    heads = "  ".join(f"{name:>6}" for name in ("peak", "pool", "held", "live", "unique"))
    print(f"{'model':<6} {'scenario':<26} {heads}  rows (GB)")
    for model in arguments.model:
        for scenario in SCENARIOS:
            use = measure(model, scenario)
            uses.append(use)
            sizes = "  ".join(f"{size / 1e9:6.1f}" for size in (use.peak, use.pool, use.held, use.live, use.unique))
            print(f"{model:<6} {scenario.name:<26} {sizes}   {use.most_rows:>4}", flush=True)
    arguments.json.write_text(json.dumps([asdict(use) for use in uses], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
