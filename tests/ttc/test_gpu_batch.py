"""The decoder for GPUs as the scheduler runs it, on an emulated one: what it draws, launches, waits for, holds."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from tests.ttc import gpu_traffic, tiny_model
from tests.ttc.device_model import Model
from tests.ttc.emulated_cuda import EmulatedCuda
from tests.ttc.gpu_traffic import BatchTraffic
from ttc.engines.embedded.core.batch import BatchLimits
from ttc.engines.embedded.core.prefill import chosen, score
from ttc.engines.embedded.core.requests import LiveDraw
from ttc.engines.embedded.device.step import DeviceStep
from ttc.engines.embedded.gpu import attention as gpu_attention
from ttc.engines.embedded.gpu.attention import PlannedAttention
from ttc.engines.embedded.gpu.batch import DeviceBatch
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.decoder import DeviceDecoder
from ttc.engines.embedded.gpu.pool import DevicePool
from ttc.engines.embedded.kernels.plan import PlanCapacity
from ttc.engines.shared.text import Text

pytestmark = pytest.mark.numeric


def traffic(seed: int, **options: Any) -> None:
    cuda, model = EmulatedCuda(home=1), Model()
    run = BatchTraffic(model, gpu_traffic.emulated(model, cuda, 30 if seed % 2 else 150), seed=seed, **options)
    with torch.inference_mode(), cuda, run.body.place():
        run.run()
        cuda.flush()
    run.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_draws_that_come_go_and_grow_equal_the_model(seed: int) -> None:
    traffic(seed, events=18)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_a_thousand_sequences_of_draws_equal_the_model(block: int) -> None:
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        traffic(seed)


class Engine:
    """A batch of which the test is the scheduler."""

    def __init__(
        self, *, num_pages: int = 150, max_batch: int = 16, kv_tokens: int | None = None, vocab_size: int = 50
    ) -> None:
        self.cuda, self.model = EmulatedCuda(), Model(vocab_size=vocab_size)
        self.body = gpu_traffic.emulated(self.model, self.cuda, num_pages)
        token = self.model.dims.kv_bytes(4)
        limits = BatchLimits(max_batch, (kv_tokens or (num_pages - 8) * 16) * token)
        self.batch = DeviceBatch(self.body, DeviceDecoder, limits, self.look)
        self.ids: dict[int, list[int]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with torch.inference_mode(), self.cuda, self.body.place():
            yield

    def look(self, draw: LiveDraw) -> None:
        self.ids[draw.key] = draw.ids
        draw.ended = len(draw.ids) >= draw.request.sampling.max_tokens or draw.ids[-1] in draw.request.rule.final

    def add(self, ids: list[int], *keys: int, **settings: Any) -> Any:
        request = gpu_traffic.request(ids, list(keys), **settings)
        self.batch.add(request)
        return request

    def finish(self, recover: Callable[[], bool] | None = None) -> dict[int, list[int]]:
        for _ in range(500):
            if self.batch.idle:
                return self.ids
            try:
                self.batch.tick()
            except MemoryError:
                assert recover is not None and recover()
        raise AssertionError("the batch does not end")


def alone(prompt: list[int], *keys: int, vocab_size: int = 50, **settings: Any) -> dict[int, list[int]]:
    engine = Engine(vocab_size=vocab_size)
    with engine.running():
        engine.add(prompt, *keys, **settings)
        return dict(engine.finish())


def _or_none(action: Callable[[], Any]) -> Any:
    """What an action returns, or None where the emulation has noticed by itself that it reads wrongly."""
    try:
        return action()
    except AssertionError:
        return None


def test_a_token_takes_one_replay_and_four_take_one_wait() -> None:
    engine = Engine()
    with engine.running():
        engine.add([3, 1, 4, 1, 5], 7, 8, max_tokens=90)
        for _ in range(3):
            engine.batch.tick()
        engine.cuda.counts.clear()
        before = len(engine.ids[7])
        for _ in range(12):
            engine.batch.tick()
        tokens = len(engine.ids[7]) - before
    counts = engine.cuda.counts
    assert tokens == 48 and counts["replays"] == 48 and counts["waits"] == 12
    assert counts["launches"] <= 2 * tokens  # one copy of tokens a block, and now and then a plan and the records
    assert counts["launches"] < 20 and counts["reads"] == 0


def test_a_draw_that_ends_by_its_length_leaves_no_replay_behind() -> None:
    engine = Engine()
    with engine.running():
        engine.add([3, 1, 4], 7, max_tokens=6)
        engine.finish()
        assert engine.batch._decoder.idle
    assert len(engine.ids[7]) == 6 and engine.cuda.counts["replays"] == 6 + 1  # and one that is compared at first


def test_plans_that_outgrow_their_buffers_take_the_graphs_along(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {key: [key, 2, key + 1] * (1 + key) for key in range(8)}
    single = {key: alone(prompt, key, max_tokens=25)[key] for key, prompt in prompts.items()}
    monkeypatch.setattr(gpu_attention, "_LEAST", PlanCapacity(rows=1, items=64, members=8, pages=8))

    def together() -> tuple[dict[int, list[int]], int]:
        engine = Engine()
        with engine.running():
            for key in range(5):  # eight rows' graph, and a plan of 32 pages
                engine.add(prompts[key], key, max_tokens=25)
            engine.batch.tick()
            engine.batch.tick()
            for key in range(5, 8):  # the same graph, and 64 pages
                engine.add(prompts[key], key, max_tokens=25)
            return engine.finish(), engine.batch._decoder.captures

    tokens, captures = together()
    assert tokens == single and captures >= 2
    # The check can fail: a table that does not see the plan's buffers and the step's replays on the old ones.
    pool = torch.empty(1)
    monkeypatch.setattr(DeviceStep, "held", property(lambda self: (pool,)))
    assert _or_none(together) != (single, captures)


def test_pages_that_the_prefix_tree_moves_are_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [1 + i % 40 for i in range(60)]
    expected = alone(long, 5, max_tokens=40)[5]

    def beside() -> list[int]:
        engine = Engine()
        with engine.running():
            engine.add(long, 5, max_tokens=40)
            for _ in range(4):
                engine.batch.tick()
            score((*long[:25], 9, 9, 9), 26, engine.body, engine.batch.tree, chosen)  # splits what the draw reads
            score((7,) * 90, 1, engine.body, engine.batch.tree, chosen)  # and takes the pages of it
            return engine.finish()[5]

    assert beside() == expected
    # The check can fail: a decoder that does not look at the pool's version reads pages of others.
    monkeypatch.setattr(DevicePool, "version", property(lambda self: 0, lambda self, value: None), raising=False)
    assert _or_none(beside) != expected


def test_a_prompt_that_follows_pages_of_another_from_now_on_is_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    start = [1 + i % 40 for i in range(15)]
    prompts = {5: [*start, *range(20, 36)], 6: [*start, *range(30, 46)]}  # computed at once, so each has its own start
    expected = {key: alone(prompt, key, max_tokens=40)[key] for key, prompt in prompts.items()}

    def together() -> dict[int, list[int]]:
        engine = Engine(max_batch=2)
        with engine.running():
            engine.add(prompts[5], 5, 7, max_tokens=40)  # one draw waits, so the prompt's last token stays where it is
            engine.add(prompts[6], 6, max_tokens=40)
            for _ in range(3):
                engine.batch.tick()
            score((7,) * 90, 1, engine.body, engine.batch.tree, chosen)  # takes the pages that nobody reads any more
            drawn = engine.finish()
        return {key: drawn[key] for key in prompts}

    assert together() == expected
    # The check can fail: a decoder that does not look at the pool's version reads pages of others.
    monkeypatch.setattr(DevicePool, "version", property(lambda self: 0, lambda self, value: None), raising=False)
    assert _or_none(together) != expected


def test_tokens_behind_a_stop_string_are_neither_delivered_nor_counted_as_generated() -> None:
    whole = alone([3, 1, 4], 5, max_tokens=40)[5]
    engine = Engine()
    with engine.running():
        engine.add([3, 1, 4], 5, max_tokens=40)

        def end_at_ten(draw: LiveDraw) -> None:
            engine.ids[5] = draw.ids
            draw.ended = len(draw.ids) == 10
            if draw.ended:
                usage = draw.usage(lambda new, before: 0.0, aborted=False)
                assert (usage.generated, usage.overrun) == (10, 2)

        engine.batch._on_token = end_at_ten
        engine.finish()
        engine.batch._decoder.reset()
        # What came late left nothing behind: the next draw of the same text goes on from its tenth token.
        engine.batch._on_token = engine.look
        engine.add([3, 1, 4, *whole[:10]], 5, max_tokens=30)
        rest = engine.finish()[5]
    assert rest == whole[10:]


@pytest.mark.long
@pytest.mark.parametrize(("place", "call"), [("reserve", 3), ("reserve", 14), ("plan", 2), ("start", 3)])
def test_memory_that_runs_out_loses_nothing(monkeypatch: pytest.MonkeyPatch, place: str, call: int) -> None:
    prompts = {key: [key, 2, key + 1] * (1 + key % 3) for key in range(6)}
    single = {key: alone(prompt, key, max_tokens=25)[key] for key, prompt in prompts.items()}
    owner: Any = {"reserve": DevicePool, "plan": PlannedAttention, "start": DeviceStep}[place]
    real, calls = getattr(owner, place), []

    def scarce(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(place)
        if len(calls) == call:
            raise MemoryError("injected")
        return real(self, *arguments, **options)

    engine = Engine(max_batch=6)
    with engine.running():
        for key, prompt in prompts.items():
            engine.add(prompt, key, max_tokens=25)
        monkeypatch.setattr(owner, place, scarce)
        tokens = engine.finish(engine.batch.shrink)
    assert tokens == single and len(calls) > call


def test_a_prompt_that_memory_is_short_for_is_computed_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {key: [key + 1, 2, key + 1] * 30 for key in range(3)}
    single = {key: alone(prompt, key, max_tokens=10)[key] for key, prompt in prompts.items()}
    real, sizes = DeviceBody._append, []

    def scarce(self: Any, items: Any, steps: Any) -> Any:
        sizes.append(sum(len(ids) for _, ids in items))
        if sizes[-1] > 40:
            raise torch.OutOfMemoryError("injected")
        return real(self, items, steps)

    monkeypatch.setattr(DeviceBody, "_append", scarce)
    engine = Engine()
    with engine.running():
        for key, prompt in prompts.items():
            engine.add(prompt, key, max_tokens=10)
        tokens = engine.finish()
    assert tokens == single and 0 < sum(size > 40 for size in sizes) < 8


def test_more_draws_than_fit_wait_and_the_pool_never_grows() -> None:
    engine = Engine(num_pages=40, max_batch=16)
    stored = engine.body.device_pool.shelf.stored
    most = 0
    with engine.running():
        for key in range(10):
            engine.add([key + 1, 5, 9] * 8, key, max_tokens=40)
        while not engine.batch.idle:
            engine.batch.tick()
            most = max(most, engine.body.device_pool.num_tokens)
    assert all(len(ids) == 40 for ids in engine.ids.values()) and len(engine.ids) == 10
    assert engine.body.device_pool.shelf.stored is stored and 20 * 16 < most <= 40 * 16


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs llguidance")
def test_answers_follow_a_json_schema_and_their_neighbours_draw_what_they_draw_alone(tmp_path: Path) -> None:
    from ttc.engines.embedded.core.guide import Guides

    tiny_model.write_tokenizer(tmp_path)
    text = Text(tmp_path)
    schema = {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}, "degrees": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["unit", "degrees"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    guide = Guides(text, tiny_model.VOCAB).follow(f"start: %json {json.dumps(schema)}")
    single = alone([3, 1, 4], 7, vocab_size=tiny_model.VOCAB, max_tokens=60)
    engine = Engine(vocab_size=tiny_model.VOCAB, max_batch=8)
    with engine.running():
        engine.add([3, 1, 4], 7, max_tokens=60)
        engine.batch.tick()
        engine.add([3, 1, 4, 1], *range(10, 16), guide=guide, stop=text.eos_ids, max_tokens=60, temperature=9.0)
        engine.batch.tick()
        engine.batch.tick()
        assert engine.batch.shrink()  # a draw that is put back goes on in its grammar where it was
        drawn = engine.finish()
    answers = [json.loads(text.decode(drawn[key][:-1])) for key in range(10, 16)]
    assert all(drawn[key][-1] in text.eos_ids for key in range(10, 16))
    assert all(set(a) == {"unit", "degrees"} and a["unit"] in "CF" and 0 <= a["degrees"] <= 99 for a in answers)
    assert len({str(answer) for answer in answers}) > 1 and drawn[7] == single[7]


def test_draws_of_one_prompt_share_its_pages_and_a_fork_copies_nothing() -> None:
    engine = Engine(max_batch=16)
    prompt = [1 + i % 40 for i in range(161)]
    with engine.running():
        engine.add(prompt, *range(12), max_tokens=8)
        engine.batch.tick()
        # Ten pages of prompt, one with its last token, and what is planned for each draw.
        assert engine.body.device_pool.num_tokens <= (10 + 1 + 12) * 16
        engine.finish()


def test_what_runs_on_a_gpu_imports_nothing_that_such_a_machine_may_lack(repository: Path) -> None:
    code = """
import sys

class Absent:
    NAMES = {"pytest", "_pytest", "hypothesis", "datasets", "math_verify", "matplotlib", "openai", "httpx2", "fastapi",
             "pydantic", "uvicorn", "trl", "accelerate", "scipy", "pandas", "tqdm", "transformers", "tokenizers"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            raise ImportError(f"absent here: {name}")

sys.meta_path.insert(0, Absent())
import tests.gpu, tests.ttc.gpu_traffic, benchmarks.gpu_bench, benchmarks.gpu_counts
import ttc.engines.embedded.gpu.loading
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repository, check=False)
    assert done.stdout == "imported\n", done.stderr[-2000:]
