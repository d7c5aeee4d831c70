"""The embedded engine from outside: sampling, sharing, ledger, aborts, invariance, weights, errors."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import random
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ttc import tiny_model
from ttc import nano
from ttc.core import (
    Completion,
    Engine,
    ExtraSampling,
    LogprobEngine,
    Message,
    Prompt,
    Sampling,
    StreamingEngine,
    TopLogprobEngine,
    Usage,
    WeightSync,
)
from ttc.engines.embedded.core import batch, model
from ttc.engines.embedded.core.cache import PrefixTree
from ttc.engines.embedded.core.fallback import fallback_body
from ttc.engines.embedded.core.model import load_body
from ttc.engines.embedded.core.paged import PagedDecoder
from ttc.engines.embedded.core.prefill import advance
from ttc.engines.embedded.core.requests import Job
from ttc.engines.embedded.core.scheduler import Scheduler
from ttc.engines.embedded.core.tenants import Tenants
from ttc.engines.embedded.core.transformers_module import load_module
from ttc.engines.embedded.engine import embedded
from ttc.engines.shared.shape import read_config
from ttc.engines.shared.tokens import MAX_RULES, check_room
from ttc.errors import ConfigError, EngineError, PromptTooLong, Unsupported

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tiny_model.build(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def engine(folder):
    made = embedded(str(folder), dtype="float32")
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def invariant(folder):
    made = embedded(str(folder), batch_invariant=True)
    yield made
    asyncio.run(made.close())


def ask(engine: Engine, text: str, thinking: bool | None = None) -> Prompt:
    return engine.render([Message("user", text)], thinking)


def total(usages: list[Usage]) -> Usage:
    return sum(usages, start=Usage())


def close_to(left: Usage, right: Usage) -> bool:
    return replace(left, flops=0) == replace(right, flops=0) and left.flops == pytest.approx(right.flops)


@pytest.mark.parametrize(("device", "invariant"), [("cpu", True), ("cuda", False)])
def test_auto_asks_for_equal_bits_on_a_cpu_alone(folder, monkeypatch, device: str, invariant: bool) -> None:
    from ttc.engines.embedded import loading
    from ttc.engines.embedded.core import model

    class Asked(Exception):
        pass

    def load(folder: Any, **options: Any) -> Any:
        raise Asked(options["batch_invariant"])

    monkeypatch.setattr(model, "pick_device", lambda name: torch.device(name))
    monkeypatch.setattr(loading, "load", load)
    with pytest.raises(Asked, match=str(invariant)):
        embedded(str(folder), device=device, batch_invariant="auto")


def test_a_gpu_that_refuses_equal_bits_is_told_of_auto() -> None:
    from ttc.engines.embedded.core.invariant import refusal

    assert "use batch_invariant=auto, which enables it on a CPU only" in str(refusal(torch.device("cuda")))
    assert "MKL_CBWR" not in str(refusal(torch.device("cuda")))
    assert "set MKL_CBWR=AVX2,STRICT" in str(refusal(torch.device("cpu")))


def test_the_engine_offers_all_the_optional_protocols(engine) -> None:
    for protocol in (StreamingEngine, LogprobEngine, TopLogprobEngine, WeightSync):
        assert isinstance(engine, protocol)
    assert engine.capabilities.think_open == (259,) and engine.capabilities.eos_ids == (258,)
    assert engine.capabilities.draws_share_time


def test_rendering_knows_whether_the_think_block_is_open(engine) -> None:
    assert ask(engine, "a </think> b").think_state == "open"
    assert ask(engine, "a <think> b", False).think_state == "closed"
    prompt = ask(engine, "h\u00e9llo")
    assert engine.decode(prompt.token_ids) == prompt.text and prompt.rendered_len == len(prompt.token_ids)


def greedy_of_transformers(folder, prompt: Prompt, kind: Any = None, **settings: float) -> tuple[int, ...]:
    from transformers import AutoModelForCausalLM

    model = (kind or AutoModelForCausalLM).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        ids = torch.tensor([prompt.token_ids])
        ones = torch.ones_like(ids)
        expected = model.generate(ids, attention_mask=ones, max_new_tokens=40, do_sample=False, **settings)
    return tuple(expected[0, len(prompt.token_ids) :].tolist())


def greedy_draws(engine, prompt: Prompt) -> set[tuple[int, ...]]:
    draws = asyncio.run(engine.generate(prompt, Sampling(temperature=0, max_tokens=40), range(3), lambda _: None))
    return {draw.token_ids for draw in draws}


def test_greedy_text_equals_transformers(engine, folder) -> None:
    prompt = ask(engine, "What is it?")
    assert greedy_draws(engine, prompt) == {greedy_of_transformers(folder, prompt)}


@pytest.mark.parametrize(("numba", "head_dim"), [(False, 16), (True, 24), (True, 32)])
def test_without_numba_and_for_heads_of_any_size_the_text_is_the_same(tmp_path, monkeypatch, numba, head_dim) -> None:
    folder = tiny_model.build(tmp_path, head_dim=head_dim)
    if not numba:
        monkeypatch.setattr("ttc.engines.shared.compute._native", lambda: None)
    engine = embedded(str(folder), dtype="float32")
    is_compiled = isinstance(engine._scheduler._batch._decoder, PagedDecoder)
    assert is_compiled == (numba and head_dim == 32)
    prompt = ask(engine, "What is it?")
    assert greedy_draws(engine, prompt) == {greedy_of_transformers(folder, prompt)}
    asyncio.run(engine.close())


def test_a_single_draw_goes_on_in_the_page_of_its_prompts_last_token(folder) -> None:
    engine = embedded(str(folder))
    prompt = Prompt("", tuple(range(17)))

    async def go() -> None:
        usages: list[Usage] = []
        known = Prompt("", tuple(range(16)))  # so that the last token alone is missing
        await engine.generate(known, Sampling(max_tokens=1, seed=1), range(1), usages.append)
        (draw,) = await engine.generate(prompt, Sampling(max_tokens=16, seed=1), range(1), usages.append)
        pool, longer = engine._scheduler.body.pool, prompt
        assert await asyncio.wrap_future(engine._scheduler.call(lambda: pool.num_tokens)) == 32
        for tokens in (1, 1, 2):  # what ends with its first token leaves nothing to compute again, either
            longer = longer.then(draw)
            (draw,) = await engine.generate(longer, Sampling(max_tokens=tokens, seed=1), range(1), usages.append)
            assert usages[-1].prompt - usages[-1].cached == 1
        await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize(("invariant", "steps"), [(False, 0), (True, 1)])
def test_a_fresh_prompt_takes_a_decoding_step_of_its_own_in_invariant_mode_only(folder, invariant, steps) -> None:
    engine = embedded(str(folder), dtype="float32", batch_invariant=invariant)
    decoder = engine._scheduler._batch._decoder
    calls, step = [], decoder.step
    decoder.step = lambda tokens: calls.append(tokens) or step(tokens)

    async def go() -> None:
        usages: list[Usage] = []
        sampling = Sampling(max_tokens=1, seed=1)
        await engine.generate(Prompt("", tuple(range(20))), sampling, range(2), usages.append)
        assert sum(usage.prompt - usage.cached for usage in usages) == 20
        await engine.close()

    asyncio.run(go())
    assert len(calls) == steps


def test_a_prompt_asked_for_again_is_answered_from_the_very_state_it_was_computed_to(folder) -> None:
    engine = embedded(str(folder), dtype="bfloat16", batch_invariant=False)
    prompt, sampling = Prompt("", tuple(range(5, 70))), Sampling(max_tokens=12, seed=3, logprobs=True)

    async def ask(prompt: Prompt) -> tuple[list[Any], int]:
        usages: list[Usage] = []
        answers = await engine.generate(prompt, sampling, range(1), usages.append)
        return [(answer.token_ids, answer.logprobs) for answer in answers], sum(u.prompt - u.cached for u in usages)

    async def go() -> None:
        first, computed = await ask(prompt)
        await ask(Prompt("", (*prompt.token_ids, 71)))  # what goes on behind it leaves it whole
        again, computed_again = await ask(prompt)
        assert (computed, computed_again) == (65, 0)
        assert again == first
        await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("lengths", "fuses", "passes"),
    [((40, 60, 100, 200), True, 1), ((2, 2, 2, 100), True, 2), ((2, 2, 2, 100), False, 1)],
)
def test_unlike_prompts_are_computed_in_one_pass_where_none_is_padded(
    folder, lengths, fuses, passes, monkeypatch
) -> None:
    if not fuses:
        pytest.importorskip("numba")
    monkeypatch.setattr(model, "fuses_attention", lambda _: fuses)
    body, _ = load_body(folder, device="cpu")
    calls, forward = [], body.forward
    body.forward = lambda ids, *rest: calls.append(len(ids)) or forward(ids, *rest)
    prompts = [tuple((7 * number + place) % 200 for place in range(length)) for number, length in enumerate(lengths)]
    with torch.inference_mode():
        together = body.extend([(None, ids) for ids in prompts])
        assert len(calls) == passes and sum(calls) == sum(lengths)
        for ids, (hidden, segment) in zip(prompts, together, strict=True):
            ((alone, _),) = body.extend([(None, ids)])
            assert segment.end == len(ids)
            torch.testing.assert_close(hidden, alone, rtol=1e-4, atol=1e-4)


def test_a_prompt_is_computed_once_however_it_is_asked_for(folder) -> None:
    engine = embedded(str(folder))
    prompt = ask(engine, "the same prompt " * 5)
    length = len(prompt.token_ids)
    usages: list[Usage] = []
    sampling = Sampling(max_tokens=4, seed=1)

    async def go() -> None:
        await asyncio.gather(*(engine.generate(prompt, sampling, range(i, i + 3), usages.append) for i in (0, 3, 6)))
        assert sum(u.prompt - u.cached for u in usages) == length
        (first,) = await engine.generate(prompt, sampling, range(1), usages.append)
        assert usages[-1].cached == length
        await engine.generate(prompt.then(first), sampling, range(2), usages.append)
        assert [u.prompt - u.cached for u in usages[-2:]] == [1, 0]
        assert close_to(engine.counters(), total(usages))
        await engine.close()

    asyncio.run(go())


def test_prompts_with_a_common_start_compute_it_once(folder) -> None:
    engine = embedded(str(folder))
    usages: list[Usage] = []

    async def go() -> None:
        prompts = [ask(engine, "a long common beginning of many words " * 3 + str(i)) for i in range(6)]
        sampling = Sampling(max_tokens=3, seed=1)
        await asyncio.gather(*(engine.generate(p, sampling, range(2), usages.append) for p in prompts))
        computed = sum(u.prompt - u.cached for u in usages)
        assert computed < len(prompts[0].token_ids) + 6 * 40
        await engine.close()

    asyncio.run(go())


def test_logprobs_equal_those_the_engine_gives_to_the_same_ids(engine) -> None:
    prompt = ask(engine, "probabilities")
    usages: list[Usage] = []

    async def go() -> None:
        sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=30, seed=4, logprobs=True)
        (completion,) = await engine.generate(prompt, sampling, range(1), usages.append)
        whole = (*prompt.token_ids, *completion.token_ids)
        scored = await engine.logprobs(whole, len(prompt.token_ids), usages.append)
        assert scored == pytest.approx(completion.logprobs, abs=1e-3)
        assert usages[-1].scored == usages[-1].prompt - usages[-1].cached > 0
        fresh = await engine.logprobs((5, *whole[1:]), 1, usages.append)
        assert len(fresh) == len(whole) - 1 and usages[-1].scored == len(whole) - 1
        assert all(value >= 0 for value in completion.certainty)

    asyncio.run(go())


@pytest.mark.parametrize("piece", [40, 7])
def test_a_repetition_penalty_is_that_of_transformers_however_a_draw_is_cut(engine, folder, piece: int) -> None:
    prompt = asked = ask(engine, "What is it?")
    sampling = Sampling(temperature=0, max_tokens=piece, repetition_penalty=1.3)
    while len(prompt.generated_ids) < 40:
        (part,) = asyncio.run(engine.generate(prompt, sampling, range(1), lambda _: None))
        prompt = prompt.then(part)
        if part.finish_reason != "length":
            break
    assert prompt.generated_ids[:40] == greedy_of_transformers(folder, asked, repetition_penalty=1.3)
    assert prompt.generated_ids[:40] != greedy_of_transformers(folder, asked)


def test_penalties_count_the_draw_and_the_prompt_of_each_request_alone(engine) -> None:
    prompt = ask(engine, "probabilities")

    async def drawn(**penalty: float) -> tuple[int, ...]:
        sampling = ExtraSampling(temperature=0.0, max_tokens=30, **penalty)
        return (await engine.generate(prompt, sampling, range(1), lambda _: None))[0].token_ids

    async def go() -> None:
        plain, each, both, again = await asyncio.gather(
            drawn(), drawn(frequency_penalty=1e4), drawn(repetition_penalty=1e4, presence_penalty=1e4), drawn()
        )
        assert plain == again and len(set(plain)) < len(plain)
        assert len(set(each)) == len(each) and set(each) & set(prompt.token_ids)
        assert len(set(both)) == len(both) and not set(both) & set(prompt.token_ids)

    asyncio.run(go())


def test_a_bias_keeps_a_token_out_of_the_draw_of_its_request_alone(engine) -> None:
    prompt = ask(engine, "probabilities")

    async def drawn(*bias: tuple[int, float]) -> tuple[int, ...]:
        sampling = ExtraSampling(temperature=0.0, max_tokens=12, logit_bias=bias)
        return (await engine.generate(prompt, sampling, range(1), lambda _: None))[0].token_ids

    async def go() -> None:
        first = (await drawn())[0]
        without, plain, forced = await asyncio.gather(drawn((first, -100.0)), drawn(), drawn((7, 1e4)))
        assert first not in without and plain[0] == first and set(forced) == {7}

    asyncio.run(go())


def test_the_likeliest_tokens_stand_in_order_beside_given_ones_and_drawn_ones(engine) -> None:
    prompt = ask(engine, "probabilities")
    usages: list[Usage] = []

    async def go() -> None:
        before = engine.counters()
        plain = {"temperature": 0.9, "max_tokens": 20, "seed": 4, "logprobs": True}
        draws = await engine.generate(prompt, ExtraSampling(**plain, top_logprobs=3), range(2), usages.append)
        (bare,) = await engine.generate(prompt, Sampling(**plain), range(1, 2), usages.append)
        assert bare.token_ids == draws[1].token_ids and type(bare) is Completion
        assert draws[1].logprobs == pytest.approx(bare.logprobs, abs=1e-4)
        whole = (*prompt.token_ids, *draws[1].token_ids)
        rows = await engine.top_logprobs(whole, 1, 3, usages.append)
        values = await engine.logprobs(whole, 1, usages.append)
        own = [row[token] for row, token in zip(rows, whole[1:], strict=True)]
        assert own == pytest.approx(values, abs=1e-3)
        assert all(len(row) == 3 or (len(row) == 4 and own[at] == min(row.values())) for at, row in enumerate(rows))
        start = len(prompt.token_ids) - 1
        for top, row, token, value in zip(
            draws[1].top_logprobs, rows[start:], draws[1].token_ids, draws[1].logprobs, strict=True
        ):
            assert len(top) == 3 and dict(top).get(token, value) == value <= top[0][1]
            assert [one for _, one in top] == sorted((one for _, one in top), reverse=True)
            assert dict(top) == pytest.approx({other: row.get(other, one) for other, one in top}, abs=1e-3)
        (everything,) = await engine.top_logprobs(whole[:2], 1, 10**6, usages.append)
        assert sum(map(math.exp, everything.values())) == pytest.approx(1, abs=1e-3)
        assert close_to(total([before, *usages]), engine.counters())

    asyncio.run(go())


def test_streaming_hands_over_every_token_once_and_in_order(engine) -> None:
    seen: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def go() -> None:
        def on_tokens(ids) -> None:
            loops.append(asyncio.get_running_loop())
            seen.extend(ids)

        prompt = ask(engine, "stream")
        sampling = Sampling(max_tokens=20, seed=4)
        completion = await engine.stream(prompt, sampling, 2, lambda _: None, on_tokens)
        assert tuple(seen) == completion.token_ids and set(loops) == {asyncio.get_running_loop()}
        (same,) = await engine.generate(prompt, sampling, range(2, 3), lambda _: None)
        assert same.token_ids == completion.token_ids

    asyncio.run(go())


def test_more_draws_than_rows_wait_their_turn(folder) -> None:
    engine = embedded(str(folder), max_batch=3)
    usages: list[Usage] = []

    async def go() -> None:
        results = await asyncio.gather(
            *(
                engine.generate(ask(engine, str(i)), Sampling(max_tokens=6, seed=i), range(5), usages.append)
                for i in range(3)
            )
        )
        assert [[c.path for c in r] for r in results] == [[(d,) for d in range(5)]] * 3
        assert len(usages) == 15 and close_to(engine.counters(), total(usages))
        await engine.close()

    asyncio.run(go())


def test_little_memory_makes_draws_wait_but_changes_none(folder, invariant) -> None:
    tight = embedded(str(folder), kv_bytes=1, batch_invariant=True)
    sampling = Sampling(temperature=1.0, max_tokens=8, seed=2)

    async def go() -> None:
        prompts = [ask(tight, "m" * (1 + i * 9)) for i in range(3)]
        alone = await asyncio.gather(*(tight.generate(p, sampling, range(3), lambda _: None) for p in prompts))
        free = await asyncio.gather(*(invariant.generate(p, sampling, range(3), lambda _: None) for p in prompts))
        assert [[c.token_ids for c in done] for done in alone] == [[c.token_ids for c in done] for done in free]
        await tight.close()

    asyncio.run(go())


def busiest(engine) -> tuple[list[int], list[int]]:
    """Rows and tokens of keys and values at every look of the scheduler."""
    rows, tokens = [], []
    batch = engine._scheduler._batch
    tick = batch.tick

    def watched() -> None:
        tick()
        rows.append(len(batch.rows))
        tokens.append(batch._body.pool.num_tokens)

    batch.tick = watched
    return rows, tokens


def test_an_engine_that_is_interrupted_while_it_checks_itself_leaves_no_thread(
    folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    schedulers: list[Scheduler] = []
    future = SimpleNamespace(result=interrupted)
    monkeypatch.setattr(Scheduler, "call", lambda self, action: schedulers.append(self) or future)
    with pytest.raises(KeyboardInterrupt):
        embedded(str(folder), dtype="float32", device="cpu", batch_invariant=True)
    assert not schedulers[0]._thread.is_alive()


def test_memory_bounds_what_is_held_and_every_draw_still_comes(folder) -> None:
    one = embedded(str(folder), dtype="float32")  # in bf16 another order of addition ends other draws
    token = one._scheduler.body.dims.kv_bytes(one._scheduler.body.dtype.itemsize)
    engine = embedded(str(folder), kv_bytes=600 * token, dtype="float32")
    rows, tokens = busiest(engine)
    sampling = Sampling(temperature=1.0, max_tokens=60, seed=2)

    async def go() -> None:
        prompts = [replace(ask(engine, "m" * (1 + i * 3)), problem_id=f"p{i}") for i in range(6)]
        tight = await asyncio.gather(*(engine.generate(p, sampling, range(6), lambda _: None) for p in prompts))
        free = await asyncio.gather(*(one.generate(p, sampling, range(6), lambda _: None) for p in prompts))
        assert [[len(c.token_ids) for c in done] for done in tight] == [
            [len(c.token_ids) for c in done] for done in free
        ]
        await asyncio.gather(engine.close(), one.close())

    asyncio.run(go())
    assert max(tokens) <= 600 and 2 <= max(rows) < 36


def test_a_small_request_starts_before_the_next_rows_of_a_wide_search(folder) -> None:
    engine = embedded(str(folder), max_batch=8)
    ended: list[str] = []

    async def ask_for(name: str, draws: int, tokens: int) -> None:
        prompt = replace(ask(engine, name), problem_id=name)
        await engine.generate(
            prompt, Sampling(temperature=1.0, max_tokens=tokens, seed=1), range(draws), lambda _: None
        )
        ended.append(name)

    async def go() -> None:
        wide = asyncio.create_task(ask_for("wide", 64, 20))
        await asyncio.sleep(0.05)
        await ask_for("small", 1, 5)
        await wide
        await engine.close()

    asyncio.run(go())
    assert ended == ["small", "wide"]


def test_when_memory_runs_out_nothing_is_lost_and_work_goes_on_smaller(folder, invariant, monkeypatch) -> None:
    engine = embedded(str(folder), batch_invariant=True)
    rows, _ = busiest(engine)
    body, usages = engine._scheduler.body, []
    logits = body.logits
    failures, first_tokens = [3, 9, 10], [0]
    draw = batch.sample

    def failing(hidden):
        if len(rows) in failures and len(hidden) > 2:
            raise torch.OutOfMemoryError("injected")
        return logits(hidden)

    def failing_once(logits, table):
        first_tokens[0] += 1
        if first_tokens[0] == 1:
            raise torch.OutOfMemoryError("injected at the first tokens of the first draws")
        return draw(logits, table)

    monkeypatch.setattr(batch, "sample", failing_once)

    sampling = Sampling(temperature=1.0, max_tokens=30, seed=3)

    async def go() -> None:
        body.logits = failing
        prompts = [ask(engine, "q" * i) for i in range(1, 4)]
        short = await asyncio.gather(*(engine.generate(p, sampling, range(5), usages.append) for p in prompts))
        free = await asyncio.gather(*(invariant.generate(p, sampling, range(5), lambda _: None) for p in prompts))
        assert [[c.token_ids for c in done] for done in short] == [[c.token_ids for c in done] for done in free]
        assert close_to(engine.counters(), total(usages))
        await engine.close()

    asyncio.run(go())
    assert max(rows) > 4 and max(rows[12:]) <= 8


class Scarce:
    """The engine's `extend`, which raises where `refuses` says so of the ids of its items and the rows that run."""

    def __init__(self, engine, refuses, error: Exception) -> None:
        self._extend, self._refuses, self._error = engine._scheduler.body.extend, refuses, error
        self._rows = lambda: len(engine._scheduler._batch.rows)
        self.sizes: list[int] = []
        engine._scheduler.body.extend = self

    def __call__(self, items):
        ids = [token for _, part in items for token in part]
        self.sizes.append(len(ids))
        if self._refuses(ids, self._rows()):
            raise self._error
        return self._extend(items)


SHORT = [torch.OutOfMemoryError("injected"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]


@pytest.mark.parametrize("error", SHORT, ids=["gpu", "cpu"])
def test_a_prompt_that_memory_is_short_for_is_computed_in_smaller_parts(folder, invariant, error) -> None:
    engine = embedded(str(folder), batch_invariant=True)
    scarce = Scarce(engine, lambda ids, rows: len(ids) > 40, error)
    sampling, usages = Sampling(temperature=1.0, max_tokens=10, seed=3), []

    async def go() -> None:
        prompts = [ask(engine, "q" * i) for i in (5, 190, 200)]
        short = await asyncio.gather(*(engine.generate(p, sampling, range(3), usages.append) for p in prompts))
        free = await asyncio.gather(*(invariant.generate(p, sampling, range(3), lambda _: None) for p in prompts))
        assert [[c.token_ids for c in done] for done in short] == [[c.token_ids for c in done] for done in free]
        assert close_to(engine.counters(), total(usages))
        engine._scheduler.call(lambda: engine._scheduler._batch.forget()).result()
        ids = prompts[2].token_ids
        assert await engine.logprobs(ids, 1, lambda _: None) == await invariant.logprobs(ids, 1, lambda _: None)
        await engine.close()

    asyncio.run(go())
    assert 0 < sum(size > 40 for size in scarce.sizes) < 12


def test_a_prompt_waits_for_running_draws_where_no_part_of_it_fits_beside_them(folder, invariant) -> None:
    engine = embedded(str(folder), batch_invariant=True)
    rows, _ = busiest(engine)
    scarce = Scarce(engine, lambda ids, rows: rows > 1, MemoryError("injected"))

    async def go() -> None:
        first = asyncio.create_task(
            engine.generate(ask(engine, "a"), Sampling(max_tokens=90, seed=1), range(6), lambda _: None)
        )
        while not rows or rows[-1] < 6:
            await asyncio.sleep(0.001)
        prompt, sampling = ask(engine, "another one"), Sampling(temperature=1.0, max_tokens=10, seed=2)
        (second,) = await engine.generate(prompt, sampling, range(1), lambda _: None)
        (alone,) = await invariant.generate(prompt, sampling, range(1), lambda _: None)
        assert second.token_ids == alone.token_ids
        assert len(await first) == 6
        await engine.close()

    asyncio.run(go())
    assert len(scarce.sizes) < 20  # it is not tried at every step


def test_what_memory_is_never_enough_for_fails_alone(folder, invariant) -> None:
    engine = embedded(str(folder), batch_invariant=True)
    sampling = Sampling(temperature=1.0, max_tokens=20, seed=3)
    prompts = [ask(engine, text) for text in ("aaaa", "bbbb#bbbb", "cccc")]
    (mark,) = engine.encode("#")
    Scarce(engine, lambda ids, rows: mark in ids, MemoryError("injected"))

    async def go() -> None:
        calls = (engine.generate(p, sampling, range(2), lambda _: None) for p in prompts)
        one, lost, two = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(lost, EngineError) and "single sequence" in str(lost)
        for prompt, done in ((prompts[0], one), (prompts[2], two)):
            free = await invariant.generate(prompt, sampling, range(2), lambda _: None)
            assert [c.token_ids for c in done] == [c.token_ids for c in free]
        with pytest.raises(EngineError, match="log-probabilities of"):
            await engine.logprobs(prompts[1].token_ids, 1, lambda _: None)
        await engine.close()

    asyncio.run(go())


def test_what_a_search_has_left_is_forgotten_at_once(folder) -> None:
    engine = embedded(str(folder))
    pool = engine._scheduler.body.pool

    async def go() -> None:
        prompt = replace(ask(engine, "branches"), problem_id="p")
        draws = await engine.generate(prompt, Sampling(max_tokens=40, seed=1), range(4), lambda _: None)
        before = engine._scheduler.call(lambda: pool.num_tokens).result()
        for draw in draws[1:]:
            engine.prune("p", draw.path)
        after = engine._scheduler.call(lambda: pool.num_tokens).result()
        assert before - after >= 3 * 32
        usages: list[Usage] = []
        await engine.generate(prompt.then(draws[0]), Sampling(max_tokens=2, seed=1), range(1), usages.append)
        assert usages[0].prompt - usages[0].cached == 1
        engine.release("p")
        await engine.close()

    asyncio.run(go())


def test_draws_that_wait_start_from_their_own_prompt_though_its_path_has_gone_on(folder, engine, monkeypatch) -> None:
    narrow, sampling = embedded(str(folder), dtype="float32", max_batch=2), Sampling(max_tokens=6, seed=4)
    rows, draw, tick, calls = narrow._scheduler._batch, batch.sample, narrow._scheduler._batch.tick, [0]

    def held() -> None:
        """A row, or a place for one: so nothing is appended to a prompt that draws wait for."""
        assert all(job.segment is not None and job.segment.num_children for job in rows._open if job.waiting)

    def watched() -> None:
        held()
        tick()
        held()

    def failing(logits, table):
        calls[0] += threading.current_thread() is narrow._scheduler._thread
        if calls[0] == 12:
            raise MemoryError("injected")
        return draw(logits, table)

    monkeypatch.setattr(batch, "sample", failing)
    monkeypatch.setattr(rows, "tick", watched)

    async def tokens(one: Engine) -> list[tuple[int, ...]]:
        prompt = replace(ask(one, "on"), problem_id="p")
        (step,) = await one.generate(prompt, sampling, range(1), lambda _: None)
        prompt = prompt.then(step)

        async def path() -> list[tuple[int, ...]]:
            here, steps = prompt, list[tuple[int, ...]]()
            for _ in range(4):
                (step,) = await one.generate(here, sampling, range(1), lambda _: None)
                here = here.then(step)
                steps.append(step.token_ids)
            return steps

        steps, draws = await asyncio.gather(path(), one.generate(prompt, sampling, range(1, 9), lambda _: None))
        return steps + [draw.token_ids for draw in draws]

    async def go() -> None:
        assert await tokens(narrow) == await tokens(engine)
        await narrow.close()

    asyncio.run(go())


def test_a_prompt_computed_in_parts_goes_on_behind_its_own_tokens_whatever_was_appended_to_them(folder) -> None:
    body, _ = load_body(folder, device="cpu", dtype="float32", head=True)
    tree = PrefixTree(body.pool)
    start = tuple(range(10, 30))
    jobs = [Job((*start, *rest), Tenants(tree).tenant("p")) for rest in ((40, 41, 42), (50,))]
    with torch.inference_mode():
        assert advance(jobs[:1], body, tree, len(start)) == []
        assert advance(jobs[1:], body, tree) == jobs[1:]
        ((_, lead),) = body.extend([(jobs[1].segment, (50,))])
        assert tree.absorb(jobs[1].ids, lead) is jobs[0].segment
        assert advance(jobs[:1], body, tree) == jobs[:1]
        ((hidden, _),) = body.extend([(None, jobs[0].ids)])
        assert jobs[0].logits is not None
        assert torch.allclose(jobs[0].logits, body.logits(hidden[-1:])[0], atol=1e-4)


def test_cancelled_draws_stop_and_every_token_is_on_the_ledger(folder) -> None:
    engine = embedded(str(folder), max_batch=8)
    usages: list[Usage] = []
    rng = random.Random(0)

    async def go() -> None:
        sampling = Sampling(temperature=1.0, max_tokens=300, seed=1)
        tasks = [
            asyncio.create_task(engine.generate(ask(engine, f"q{i}"), sampling, range(3), usages.append))
            for i in range(8)
        ]
        for task in tasks:
            await asyncio.sleep(rng.random() * 0.1)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = sum(isinstance(r, asyncio.CancelledError) for r in results)
        assert cancelled and len(usages) == 24
        assert sum(u.overrun for u in usages) > 0 and all(not (u.generated and u.overrun) for u in usages)
        before = engine.counters()
        assert close_to(before, total(usages))
        await asyncio.sleep(0.1)
        assert engine.counters() == before
        await engine.generate(ask(engine, "still alive"), replace(sampling, max_tokens=3), range(1), usages.append)
        await engine.close()

    asyncio.run(go())


WHOLE = Sampling(temperature=1.0, top_p=0.95, max_tokens=40, seed=5, logprobs=True)


async def whole(engine, prompt: Prompt) -> list[tuple]:
    done = await engine.generate(prompt, WHOLE, range(3), lambda _: None)
    return [(c.token_ids, c.logprobs) for c in done]


@pytest.fixture(scope="module")
def one_by_one(invariant) -> list[tuple[Prompt, list[tuple]]]:
    """Prompts, and what is drawn for each alone."""
    prompts = [ask(invariant, f"{i} " * (1 + i % 9 * 5)) for i in range(8)]

    async def go() -> list[tuple[Prompt, list[tuple]]]:
        return [(prompt, await whole(invariant, prompt)) for prompt in prompts]

    return asyncio.run(go())


@pytest.mark.long
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False), st.sampled_from([1, 7, 64]))
def test_no_schedule_and_no_resume_point_changes_a_draw(invariant, one_by_one, rng, concurrency) -> None:
    async def pieces(engine, prompt: Prompt) -> list[tuple]:
        out = []
        for d in range(3):
            ids, values = (), ()
            while len(ids) < 40:
                part = replace(WHOLE, max_tokens=rng.randint(1, 40 - len(ids)))
                longer = replace(prompt, token_ids=prompt.token_ids + ids)
                (c,) = await engine.generate(longer, part, range(d, d + 1), lambda _: None)
                ids, values = ids + c.token_ids, values + c.logprobs
                if c.stop_reason == "eos":
                    break
            out.append((ids, values))
        return out

    async def go() -> None:
        order = list(one_by_one)
        rng.shuffle(order)
        limit = asyncio.Semaphore(concurrency)

        async def one(prompt: Prompt, expected: list[tuple]) -> None:
            await asyncio.sleep(rng.random() * 0.02)
            async with limit:
                assert await rng.choice([whole, pieces])(invariant, prompt) == expected

        await asyncio.gather(*(one(*each) for each in order))

    asyncio.run(go())


def test_new_weights_take_effect_at_once_and_everywhere(folder, tmp_path) -> None:
    from safetensors.torch import load_file

    other = tiny_model.build(tmp_path / "other", initializer_range=0.3, tie_word_embeddings=True)
    state = load_file(other / "model.safetensors")
    tied = embedded(str(tiny_model.build(tmp_path / "tied", tie_word_embeddings=True)))
    fresh = embedded(str(other))
    prompt = ask(fresh, "swap me")
    sampling = Sampling(max_tokens=20, seed=3)

    async def go() -> None:
        before = await tied.generate(prompt, sampling, range(2), lambda _: None)
        await tied.load_weights(state)
        after = await tied.generate(prompt, sampling, range(2), lambda _: None)
        expected = await fresh.generate(prompt, sampling, range(2), lambda _: None)
        assert [c.token_ids for c in after] == [c.token_ids for c in expected] != [c.token_ids for c in before]
        task = asyncio.create_task(tied.generate(prompt, replace(sampling, max_tokens=400), range(2), lambda _: None))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="only while"):
            await tied.load_weights(state)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await tied.close()
        await fresh.close()

    asyncio.run(go())


def test_the_engine_serves_several_event_loops(engine) -> None:
    found: dict[int, tuple[int, ...]] = {}

    def work(i: int) -> None:
        (c,) = asyncio.run(
            engine.generate(ask(engine, "loop"), Sampling(max_tokens=9, seed=1), range(1), lambda _: None)
        )
        found[i] = c.token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found.values())) == 1


def test_a_failure_in_the_worker_reaches_the_waiting_and_the_engine_goes_on(folder, monkeypatch) -> None:
    engine = embedded(str(folder))
    usages: list[Usage] = []
    prompt = ask(engine, "boom")
    sampling = Sampling(max_tokens=5, seed=1)

    async def go() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(engine._scheduler.body, "logits", lambda hidden: 1 / 0)
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await engine.generate(prompt, sampling, range(2), usages.append)
        assert len(usages) == 2
        assert len(await engine.generate(prompt, sampling, range(2), usages.append)) == 2
        assert close_to(engine.counters(), total(usages))
        await engine.close()

    asyncio.run(go())


def test_closing_fails_what_waits_and_may_happen_twice(folder) -> None:
    engine = embedded(str(folder))

    async def go() -> None:
        prompt = ask(engine, "x")
        task = asyncio.create_task(engine.generate(prompt, Sampling(max_tokens=400, seed=1), range(2), lambda _: None))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await task
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(prompt, Sampling(max_tokens=4, seed=1), range(1), lambda _: None)

    asyncio.run(go())


def test_a_callback_that_raises_fails_only_its_own_request(engine) -> None:
    def broken(usage: Usage) -> None:
        raise LookupError("mine")

    async def go() -> None:
        prompt, sampling = ask(engine, "x"), Sampling(max_tokens=4, seed=1)
        results = await asyncio.gather(
            engine.generate(prompt, sampling, range(1), broken),
            engine.generate(prompt, sampling, range(1), lambda _: None),
            return_exceptions=True,
        )
        assert isinstance(results[0], LookupError) and len(results[1]) == 1

    asyncio.run(go())


def test_requests_that_cannot_be_honoured_are_refused_before_they_start(engine) -> None:
    prompt = ask(engine, "x")

    async def ask_for(prompt: Prompt, **kwargs) -> None:
        await engine.generate(prompt, Sampling(**{"seed": 1, **kwargs}), range(1), lambda _: None)

    with pytest.raises(PromptTooLong, match=r"512 requested tokens exceed the context of 512"):
        asyncio.run(ask_for(prompt, max_tokens=512))
    with pytest.raises(ConfigError, match=r"sampling\.seed"):
        asyncio.run(ask_for(prompt, seed=None, max_tokens=3))
    with pytest.raises(Unsupported, match="token ids"):
        asyncio.run(ask_for(Prompt("x", None), max_tokens=3))


def test_no_more_stop_rules_are_kept_than_a_few(engine) -> None:
    prompt = ask(engine, "x")

    async def go() -> None:
        for number in range(MAX_RULES + 5):
            sampling = Sampling(temperature=0, max_tokens=1, stop=(f"{number} ",))
            await engine.generate(prompt, sampling, range(1), lambda _: None)

    asyncio.run(go())
    assert len(engine._rules) == MAX_RULES and ((f"{MAX_RULES} ",), ()) in engine._rules


@pytest.mark.parametrize("foreign", [tiny_model.VOCAB, -1])
def test_an_id_that_the_model_has_not_fails_its_own_request_alone(engine, foreign: int) -> None:
    async def go() -> list[Any]:
        sampling = Sampling(temperature=0, max_tokens=20)
        prompts = [Prompt("", (1, foreign), rendered_len=2), ask(engine, "x")]
        draws = (engine.generate(prompt, sampling, range(1), lambda _: None) for prompt in prompts)
        return await asyncio.gather(*draws, engine.logprobs((1, foreign), 1, print), return_exceptions=True)

    refused, drawn, unscored = asyncio.run(go())
    for error in (refused, unscored):
        assert isinstance(error, Unsupported) and f"must lie in 0..{tiny_model.VOCAB - 1}, got {foreign}" in str(error)
    assert len(drawn[0].token_ids) > 0


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_model_that_gives_no_numbers_is_refused(family: str, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    path = tiny_model.build(tmp_path, family) / "model.safetensors"
    tensors = load_file(path)
    name = min(name for name in tensors if "mlp" in name and name.endswith("weight"))
    tensors[name][3, 3] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    before = threading.active_count()
    with pytest.raises(ConfigError, match=r"logits are NaN in float32: its weights are damaged"):
        embedded(str(tmp_path), dtype="float32")
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_that_it_has_no_engine(engine) -> None:
    """Only the thread that forks lives on in the child, so it would wait for ever."""
    child = os.fork()
    if not child:
        try:
            engine._scheduler.call(lambda: None)
        except EngineError as exc:
            os._exit(int("fork" not in str(exc)))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_wrong_with_a_model_is_named(folder, tmp_path) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor a hub id"):
        embedded("no-such-folder")
    (tmp_path / "newest").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"newest' is a link to .*gone, where no folder is; name the folder itself"):
        embedded(str(tmp_path / "newest"))
    (tmp_path / "newest").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        embedded(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json does not exist.*holds an adapter: merge it into its model"):
        embedded(str(tmp_path))
    with pytest.raises(ConfigError, match="dtype"):
        embedded(str(folder), dtype="int3")
    with pytest.raises(ConfigError, match="threads"):
        embedded(str(folder), threads=0)
    bare = tiny_model.build(tmp_path / "bare")
    tiny_model.write_tokenizer(bare, template=None)
    engine = embedded(str(bare))
    with pytest.raises(ConfigError, match="no chat template"):
        ask(engine, "x")
    asyncio.run(engine.close())


def test_what_transformers_cannot_load_is_told_in_a_line(folder, tmp_path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError, match=r"model\.safetensors is a Git LFS pointer, not the weights: run `git lfs"):
        embedded(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"transformers cannot load a gpt2 model here: .*header"):
        embedded(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(ConfigError, match=r"cannot load a clip model here: Unrecognized.* \.\.\.$") as caught:
        embedded(str(tmp_path))
    assert len(str(caught.value)) < 500
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": {"rope_type": "linear"}}))
    with pytest.raises(ConfigError, match=r"cannot load a qwen3 model here.*'factor'"):
        embedded(str(tmp_path))


def test_another_architecture_without_some_of_its_weights_is_refused_by_their_names(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model.build(tmp_path, "gemma2", head_dim=16, query_pre_attn_scalar=16)
    (path,) = tmp_path.glob("*.safetensors")
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"hold no tensor model\.layers\.1\.mlp\.down_proj\.weight"):
        embedded(str(tmp_path), dtype="float32")


@pytest.mark.parametrize("family", ["mistral", "gemma2", "qwen3_moe", "deepseek_v3"])
def test_another_architecture_runs_through_transformers_with_the_same_results(family: str, tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    changes = {
        "head_dim": 16,
        "sliding_window": 24,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 0.05,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        **dict.fromkeys(("num_key_value_heads", "n_routed_experts"), 4),
        **dict.fromkeys(("n_group", "topk_group"), 1),
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim"), 16),
        **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    }
    latent = (
        "num_key_value_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "v_head_dim",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
    )
    allowed = {
        "mistral": ("head_dim", "sliding_window"),
        "gemma2": ("head_dim", "sliding_window", "query_pre_attn_scalar", "attn_logit_softcapping"),
        "deepseek_v3": (*latent, "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"),
    }
    keep = allowed.get(family, ("head_dim", "num_experts", "num_experts_per_tok"))
    tiny_model.build(tmp_path, family, **{name: changes[name] for name in keep})
    engine = embedded(str(tmp_path), dtype="float32")
    # Eager: torch's own attention knows no cap.
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    usages: list[Usage] = []

    async def go() -> None:
        sampling = Sampling(temperature=0, max_tokens=25, logprobs=True)
        prompts = [ask(engine, "short"), ask(engine, "one that is longer " * 3)]
        results = await asyncio.gather(*(engine.generate(p, sampling, range(2), usages.append) for p in prompts))
        for prompt, done in zip(prompts, results, strict=True):
            ids = torch.tensor([prompt.token_ids])
            with torch.inference_mode():
                expected = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=25, do_sample=False, pad_token_id=0
                )
            assert done[0].token_ids == done[1].token_ids == tuple(expected[0, ids.shape[1] :].tolist())
        child = prompts[1].then(results[1][0])
        first, second = await engine.generate(
            child, replace(sampling, temperature=1.0, seed=2), range(2), usages.append
        )
        whole = (*child.token_ids, *second.token_ids)
        scored = await engine.logprobs(whole, len(child.token_ids), usages.append)
        assert scored == pytest.approx(second.logprobs, abs=1e-3)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([whole])).logits[0].log_softmax(-1)
        picked = logits[:-1].gather(1, torch.tensor(whole[1:])[:, None])[-len(second.token_ids) :, 0]
        assert scored == pytest.approx(picked.tolist(), abs=1e-4)
        assert close_to(engine.counters(), total(usages))
        await engine.close()

    asyncio.run(go())


def test_a_prompt_of_another_architecture_takes_the_logits_of_its_last_token_alone(tmp_path) -> None:
    tiny_model.build(tmp_path, "phi")
    module = load_module(tmp_path, read_config(tmp_path), torch.device("cpu"), torch.float32)
    body = fallback_body(module, tmp_path, "phi", 64, None)
    ids = list(range(40))
    with torch.inference_mode():
        ((whole, _),), ((last, segment),) = body.extend([(None, ids)]), body.prefill([(None, ids)])
    assert (whole.shape, last.shape, segment.end) == ((40, tiny_model.VOCAB), (1, tiny_model.VOCAB), 40)
    assert torch.allclose(last, whole[-1:], atol=1e-5)


def test_a_model_that_also_reads_images_answers_texts(tmp_path) -> None:
    from transformers import AutoModelForImageTextToText

    vision = {"model_type": "pixtral", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tiny_model.build_seeing(tmp_path, "mistral3", "mistral", vision | {"image_size": 28, "intermediate_size": 16})
    engine = embedded(str(tmp_path), dtype="float32", device="cpu")
    prompt = ask(engine, "What is it?")
    assert greedy_draws(engine, prompt) == {greedy_of_transformers(tmp_path, prompt, AutoModelForImageTextToText)}
    asyncio.run(engine.close())


def test_a_model_that_takes_padding_for_places_is_refused(tmp_path) -> None:
    """Rows of unlike length are padded on the left; Bart counts its places from there."""
    tiny_model.build(tmp_path, "bart", d_model=64, decoder_ffn_dim=64, decoder_layers=2, decoder_attention_heads=4)
    with pytest.raises(ConfigError, match=r"a bart model attends to later tokens, or counts padding as positions"):
        embedded(str(tmp_path), dtype="float32")


def test_a_model_that_looks_ahead_is_refused_even_where_that_changes_little(tmp_path) -> None:
    tiny_model.build(tmp_path, "bert", initializer_range=0.05)
    with pytest.raises(ConfigError, match=r"a bert model attends to later tokens"):
        embedded(str(tmp_path), dtype="float32")


def test_a_model_whose_own_code_refuses_rows_of_unlike_length_is_refused_with_its_error(tmp_path) -> None:
    tiny_model.build(tmp_path, "xlm")
    with pytest.raises(ConfigError, match=r"texts of different lengths together.*\(The expanded size.*vllm") as caught:
        embedded(str(tmp_path), dtype="float32")
    assert isinstance(caught.value.__cause__, RuntimeError)


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 128,
}


def test_a_model_whose_angles_hang_on_the_length_is_read_as_far_as_they_stay(tmp_path) -> None:
    """Beyond 128 tokens every key has another angle: of its own text, of a kept prefix, of others in its batch."""
    tiny_model.build(tmp_path, "phi3", rope_parameters=LONG_ROPE, original_max_position_embeddings=128, pad_token_id=0)
    with pytest.warns(RuntimeWarning, match=r"reads at most 128 tokens; for up to 512 use --engine vllm"):
        engine = embedded(str(tmp_path), dtype="float32")
    assert engine.capabilities.max_context == 128
    prompt = ask(engine, "What is it?")
    assert greedy_draws(engine, prompt) == {greedy_of_transformers(tmp_path, prompt)}
    with pytest.raises(PromptTooLong, match="context of 128"):
        asyncio.run(engine.generate(ask(engine, "x" * 90), Sampling(seed=1, max_tokens=40), range(1), lambda _: None))
    asyncio.run(engine.close())
    asyncio.run(embedded(str(tmp_path), dtype="float32", max_context=100).close())  # asks for no more: no warning


@pytest.mark.parametrize("family", ["phi", "gemma3_text", "mistral"])
def test_auto_runs_another_architecture_on_a_cpu_and_promises_no_equal_bits(family: str, tmp_path) -> None:
    sliding = {} if family == "phi" else {"head_dim": 16, "sliding_window": 24}
    tiny_model.build(tmp_path, family, **sliding)
    engine = embedded(str(tmp_path), device="cpu", dtype="float32", batch_invariant="auto")
    assert not engine.capabilities.schedule_invariant

    async def go() -> None:
        prompt = ask(engine, "short")
        (one,) = await engine.generate(prompt, Sampling(temperature=0, max_tokens=4), range(1), lambda usage: None)
        assert 0 < len(one.token_ids) <= 4
        await engine.close()

    asyncio.run(go())


def test_batch_invariance_is_refused_for_another_architecture(tmp_path) -> None:
    tiny_model.build(tmp_path, "mistral", head_dim=16, sliding_window=256)
    with pytest.raises(ConfigError, match="batch_invariant"):
        embedded(str(tmp_path), batch_invariant=True)
    asyncio.run(embedded(str(tmp_path), batch_invariant=True, max_context=256).close())


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    for file in nano.path("teacher").iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=r"holds no tokenizer \(tokenizer\.json\)"):
        embedded(str(tmp_path))


def test_a_prompt_that_fills_the_context_is_not_told_to_ask_for_less():
    with pytest.raises(PromptTooLong, match=r"context of 8: shorten the prompt$"):
        check_room(13, 1, 8)
    with pytest.raises(PromptTooLong, match=r"lower sampling\.max_tokens to 3, or shorten"):
        check_room(5, 9, 8)


def test_weights_of_a_closed_engine_go_with_its_last_reference(folder) -> None:
    async def lived() -> weakref.ref[Any]:
        engine = embedded(str(folder))
        await engine.generate(ask(engine, "x"), Sampling(seed=1, max_tokens=4), range(2), lambda _: None)
        weights = weakref.ref(engine._scheduler.body)
        await engine.close()
        return weights

    gc.disable()  # cycles would keep them until some later collection
    try:
        asyncio.run(lived())  # the first in a process leaves cycles of imports
        gc.collect()
        weights = asyncio.run(lived())
    finally:
        gc.enable()
    assert weights() is None


def test_the_collector_skips_what_an_engine_found_only_while_it_lives(folder) -> None:
    engine = embedded(str(folder))
    assert gc.get_freeze_count() > 100_000
    asyncio.run(engine.close())
    assert gc.get_freeze_count() == 0
