"""The vLLM engine against real vLLM: `make test-vllm`. One engine per model serves most tests, in this process.

What other engines promise bit by bit (any schedule, the same draw) holds here in distribution, and is tested so.
SmolLM2 is looked for in the folder TTC_SMOLLM2.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.loops import finished
from tests.ttc import conformance as suite
from ttc import nano
from ttc.core import (
    Capabilities,
    Completion,
    ExtraCompletion,
    ExtraSampling,
    LogprobEngine,
    Message,
    Prompt,
    Sampling,
    StreamingEngine,
    Usage,
    WeightSync,
)
from ttc.engines.embedded.engine import embedded
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import VllmOptions
from ttc.engines.vllm.requests import fields_of
from ttc.errors import ConfigError, EngineError, PromptTooLong, Unsupported
from ttc.session.solve import solve
from ttc.session.thinking import Thinking, controlled, split

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

STRATEGIES = {name: case for name, case in suite.cases("embedded").items() if "reward model" not in name}


@pytest.fixture(scope="module")
def teacher() -> Iterator[Any]:
    """The packaged teacher on vLLM, in this process."""
    engine = vllm()
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Any]:
    """A real language model on vLLM."""
    folder = os.environ.get("TTC_SMOLLM2")
    if folder is None:
        pytest.skip("set TTC_SMOLLM2 to the folder of SmolLM2-135M-Instruct (make test-vllm does)")
    engine = vllm(folder, VllmOptions(max_context=2048))
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(params=["teacher", "smollm2"])
def engine(request: pytest.FixtureRequest) -> Any:
    """Both models."""
    return request.getfixturevalue(request.param)


def ask(engine: Any, draws: range, usages: list[Usage] | None = None, ids: tuple[int, ...] = (), **kwargs: Any) -> Any:
    """A coroutine that draws from one fixed problem, after `ids` more tokens."""
    prompt = engine.render(suite.problems(1)[0].messages, None).extend(ids, engine.decode(ids))
    sampling = Sampling(**{"seed": 3, "max_tokens": 24, **kwargs})
    return engine.generate(prompt, sampling, draws, (usages if usages is not None else []).append)


def draw(engine: Any, draws: range, usages: list[Usage] | None = None, **kwargs: Any) -> list[Completion]:
    """Draw in a loop of its own."""
    return asyncio.run(ask(engine, draws, usages, **kwargs))


async def settled(engine: Any) -> None:
    """Give vLLM time to write down its last step: it counts after it has handed over."""
    for _ in range(200):
        counted, reported = engine.counters(), engine.reported()
        if counted.generated + counted.overrun == reported.generated and counted.prompt == reported.prompt:
            return
        await asyncio.sleep(0.01)


def assert_ledger_is_vllms(engine: Any) -> None:
    """Our totals against vLLM's own counts."""
    asyncio.run(settled(engine))
    counted, reported = engine.counters(), engine.reported()
    assert counted.generated + counted.overrun == reported.generated
    assert (counted.prompt, counted.cached) == (reported.prompt, reported.cached)


# -- what a draw is ----------------------------------------------------------------------------------------------------


def test_it_is_every_kind_of_engine(engine: Any) -> None:
    assert isinstance(engine, StreamingEngine) and isinstance(engine, LogprobEngine) and isinstance(engine, WeightSync)
    assert isinstance(engine.capabilities, Capabilities) and not engine.capabilities.schedule_invariant
    assert engine.capabilities.shape is not None


def test_paths_are_those_of_the_draws_and_text_is_what_the_ids_decode_to(engine: Any) -> None:
    completions = draw(engine, range(2, 6), max_tokens=60)
    assert [c.path for c in completions] == [(i,) for i in range(2, 6)]
    for completion in completions:
        kept = completion.token_ids[: len(completion.token_ids) - completion.num_eos]
        assert engine.decode(kept) == completion.text
        assert (completion.finish_reason == "length") == (completion.stop_reason is None)
        if completion.num_eos:
            assert completion.token_ids[-1] in engine.capabilities.eos_ids


def test_a_stop_string_ends_the_draw_after_the_token_that_completes_it(engine: Any) -> None:
    (free,) = draw(engine, range(1), max_tokens=60, temperature=0.0)
    stop = free.text[5:8]
    (stopped,) = draw(engine, range(1), max_tokens=60, temperature=0.0, stop=(stop,))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert stop in stopped.text and stop not in engine.decode(stopped.token_ids[:-1])


def test_a_stop_token_ends_the_draw_and_stays_in_it(engine: Any) -> None:
    (free,) = draw(engine, range(1), max_tokens=30, temperature=0.0)
    token = free.token_ids[3]
    (stopped,) = draw(engine, range(1), max_tokens=30, temperature=0.0, stop_token_ids=(token,))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)


def test_a_stop_id_wins_over_a_stop_string_that_the_same_token_completes(teacher: Any) -> None:
    (free,) = draw(teacher, range(1), max_tokens=20, temperature=0.0)
    token = free.token_ids[3]
    stops = {"stop": (teacher.decode([token]),), "stop_token_ids": (token,)}
    (stopped,) = draw(teacher, range(1), max_tokens=20, temperature=0.0, **stops)
    assert stopped.stop_reason == token


def test_an_end_of_sequence_is_called_eos_and_dropped_from_the_text(teacher: Any) -> None:
    (completion,) = draw(teacher, range(1), max_tokens=400, temperature=0.0)
    assert completion.finished and completion.token_ids[-1] == teacher.capabilities.eos_ids[0]
    assert not completion.text.endswith(teacher.decode(teacher.capabilities.eos_ids))


def test_greedy_draws_agree_with_the_embedded_engine(teacher: Any) -> None:
    async def go() -> list[Completion]:
        other = embedded()
        try:
            return await ask(other, range(1), temperature=0.0, max_tokens=40)
        finally:
            await other.close()

    (ours,) = draw(teacher, range(1), temperature=0.0, max_tokens=40)
    assert ours.token_ids == asyncio.run(go())[0].token_ids


def test_encode_and_decode_are_inverse_on_plain_text(engine: Any) -> None:
    for text in ("12+30*2=72", "Wait, \n\nno", "ünï \\boxed{3}"):
        assert engine.decode(engine.encode(text)) == text


# -- randomness --------------------------------------------------------------------------------------------------------


def test_seeds_are_hashed_by_run_path_and_position_and_by_nothing_else(teacher: Any) -> None:
    def seed(run: int, path: tuple[int, ...], position: int, **kwargs: Any) -> int:
        fields = fields_of(Sampling(seed=run, **kwargs), path, range(position), teacher.capabilities)
        return int(fields["seed"])

    found = {
        (run, path, position): seed(run, path, position)
        for run in (0, 1, 2)
        for path in ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0))
        for position in (10, 26)
    }
    assert len(set(found.values())) == len(found)
    assert not {value + 1 for value in found.values()} & set(found.values())
    assert seed(1, (2,), 10, max_tokens=5) == seed(1, (2,), 10, max_tokens=50, temperature=0.3)


def test_sampled_tokens_follow_the_models_own_distribution(teacher: Any) -> None:
    """The first token of many draws against probabilities that the embedded engine computes."""
    number, temperature = 2000, 2.0

    async def exact() -> dict[int, float]:
        other = embedded(dtype="float32")
        try:
            prompt = other.render(suite.problems(1)[0].messages, None)
            ids = prompt.token_ids or ()
            size = 351
            rows = [await other.logprobs((*ids, token), len(ids), lambda usage: None) for token in range(size)]
        finally:
            await other.close()
        weights = [math.exp(row[0] / temperature) for row in rows]
        return {token: weight / sum(weights) for token, weight in enumerate(weights)}

    draws = draw(teacher, range(number), temperature=temperature, max_tokens=1)
    seen = Counter(completion.token_ids[0] for completion in draws)
    probabilities = asyncio.run(exact())
    assert len([p for p in probabilities.values() if p > 0.01]) >= 3
    for token, probability in probabilities.items():
        spread = math.sqrt(number * probability * (1 - probability))
        assert abs(seen[token] - number * probability) < 5 * spread + 3, (token, seen[token], number * probability)


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_tightest_cuts_leave_the_greedy_draw_alone(teacher: Any, cut: dict[str, float]) -> None:
    (greedy,) = draw(teacher, range(1), temperature=0.0, max_tokens=8)
    drawn = draw(teacher, range(3), temperature=2.0, max_tokens=8, **cut)
    assert {one.token_ids for one in drawn} == {greedy.token_ids}


def test_continued_draws_are_as_diverse_as_fresh_ones(teacher: Any) -> None:
    """A draw resumed in pieces must not repeat the random numbers of its start."""
    first = draw(teacher, range(40), temperature=2.0, max_tokens=1)
    again = draw(teacher, range(40), temperature=2.0, max_tokens=1, ids=first[0].token_ids)
    other = draw(teacher, range(40), temperature=2.0, max_tokens=1, seed=4)
    assert [c.token_ids for c in first] != [c.token_ids for c in other]
    assert [c.token_ids for c in again] != [c.token_ids for c in first]


def test_a_seed_is_demanded_and_temperatures_vllm_would_change_are_refused(teacher: Any) -> None:
    with pytest.raises(ConfigError, match="seed"):
        draw(teacher, range(1), seed=None)
    for temperature in (0.001, 3.0):
        with pytest.raises(ConfigError, match="temperature"):
            draw(teacher, range(1), temperature=temperature)


# -- log-probabilities -------------------------------------------------------------------------------------------------


def test_logprobs_are_those_of_the_model_and_of_the_embedded_engine(teacher: Any) -> None:
    async def go() -> None:
        usages: list[Usage] = []
        (sampled,) = await ask(teacher, range(1), logprobs=True, temperature=1.7, top_p=0.9, max_tokens=20)
        prompt = teacher.render(suite.problems(1)[0].messages, None).token_ids
        given = await teacher.logprobs(prompt + sampled.token_ids, len(prompt), usages.append)
        rows = await teacher.top_logprobs(prompt + sampled.token_ids, len(prompt), 2, lambda usage: None)
        assert all(len(row) in (2, 3) for row in rows)
        own = [row[token] for row, token in zip(rows, sampled.token_ids, strict=True)]
        assert own == pytest.approx(given, abs=1e-3)
        other = embedded()
        try:
            wanted = await other.logprobs(prompt + sampled.token_ids, len(prompt), lambda usage: None)
        finally:
            await other.close()
        assert len(sampled.logprobs) == len(given) == len(sampled.token_ids)
        assert given == pytest.approx(sampled.logprobs, abs=0.15)
        assert given == pytest.approx(wanted, abs=0.15)
        length = len(prompt) + len(given)
        assert (usages[0].prompt, usages[0].cached, usages[0].scored, usages[0].overrun) == (length, 0, length, 1)

    asyncio.run(go())
    assert_ledger_is_vllms(teacher)


def test_logprobs_of_nothing_or_of_the_first_token_are_refused(teacher: Any) -> None:
    for start in (0, 4):
        with pytest.raises(ConfigError, match="start"):
            asyncio.run(teacher.logprobs((1, 2, 3), start, lambda usage: None))


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_every_draw_reports_its_usage_once_and_the_sum_is_the_engines_own(engine: Any) -> None:
    before, usages = engine.counters(), []
    completions = draw(engine, range(4), usages)
    completions += draw(engine, range(2), usages, max_tokens=3)
    assert len(usages) == 6
    assert before + sum(usages, Usage()) == engine.counters()
    assert [c.usage.generated for c in completions] == [len(c.token_ids) for c in completions]
    assert all(u.cached <= u.prompt and u.flops > 0 for u in usages)
    assert_ledger_is_vllms(engine)


def test_a_longer_prompt_is_found_in_the_prefix_cache(engine: Any) -> None:
    longer, usages = engine.encode("12 and 7 and " * 20), []
    draw(engine, range(1), ids=longer, max_tokens=1)
    draw(engine, range(1), usages, ids=longer + engine.encode("so it is"), max_tokens=1)
    assert usages[0].cached >= len(longer) - 32 and usages[0].cached % 32 == 0


@pytest.mark.parametrize("case", list(STRATEGIES))
def test_the_ledger_of_every_strategy_equals_vllms_own_counters(teacher: Any, case: str) -> None:
    check_ledger(teacher, STRATEGIES[case])


NEEDS_THINKING = {
    "budget_forcing": "has no end-of-thinking marker",
    "no_think_then_think": "is asked the same with thinking and without",
}
"""Strategies that a model without thinking refuses, and why."""


@pytest.mark.parametrize("case", [name for name in suite.STRATEGIES if name not in NEEDS_THINKING])
def test_the_ledger_of_every_strategy_equals_vllms_own_counters_on_a_real_model(smollm2: Any, case: str) -> None:
    check_ledger(smollm2, suite.STRATEGIES[case], problems=2, max_tokens=34)  # a draw fills a block of its own


@pytest.mark.parametrize("case", NEEDS_THINKING)
def test_a_strategy_of_thoughts_is_refused_where_the_model_has_none(smollm2: Any, case: str) -> None:
    before = smollm2.reported()
    with pytest.raises(ConfigError, match=NEEDS_THINKING[case]):
        check_ledger(smollm2, suite.STRATEGIES[case])
    assert smollm2.reported() == before


def check_ledger(engine: Any, case: suite.Case, problems: int = 3, max_tokens: int = 48) -> None:
    """Solve so many problems side by side; what the answers say they cost is what vLLM counted."""
    asyncio.run(settled(engine))
    before = engine.reported()
    answers = asyncio.run(suite.solve_in_order(engine, case, suite.problems(problems), problems, max_tokens))
    total = sum((answer.usage for answer in answers.values()), Usage())
    asyncio.run(settled(engine))
    after = engine.reported()
    assert total.generated + total.overrun == after.generated - before.generated
    assert (total.prompt, total.cached) == (after.prompt - before.prompt, after.cached - before.cached)
    generated = sum(e.data["num_tokens"] for a in answers.values() for e in suite.events_of(a, "generate"))
    assert total.generated == generated and 0 <= total.thinking <= total.generated


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.4])
def test_cancelled_draws_are_aborted_and_on_the_ledger(engine: Any, moment: float) -> None:
    async def go() -> list[Usage]:
        usages: list[Usage] = []
        task = asyncio.create_task(ask(engine, range(400), usages, max_tokens=800, temperature=2.0))
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return usages

    before = engine.counters()
    usages = asyncio.run(go())
    total = sum(usages, Usage())
    assert before + total == engine.counters()
    assert total.attempts == 400
    assert total.overrun > 0 or moment < 0.4  # the first step may take longer than that on a busy machine
    assert_ledger_is_vllms(engine)


@pytest.mark.parametrize("case", ["majority", "tree", "tree dvts", "majority under a cap"])
def test_a_strategy_cancelled_midway_leaves_nothing_running_and_nothing_uncounted(teacher: Any, case: str) -> None:
    class Watched:
        def __init__(self) -> None:
            self.usages: list[Usage] = []
            self.first_end = asyncio.Event()

        def __getattr__(self, name: str) -> Any:
            return getattr(teacher, name)

        async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: Any) -> list[Completion]:
            def both(usage: Usage) -> None:
                self.usages.append(usage)
                on_usage(usage)
                self.first_end.set()

            return await teacher.generate(prompt, sampling, draws, both)

    async def go(engine: Any) -> None:
        task = asyncio.create_task(suite.solve_in_order(engine, STRATEGIES[case], suite.problems(24), 24, 400))
        await engine.first_end.wait()  # and not a time: a fast machine ends a capped vote within any
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before, watched = teacher.counters(), Watched()
    asyncio.run(go(watched))  # which waits until every task has ended
    spent = sum(watched.usages, Usage())
    assert before + spent == teacher.counters() and spent.calls > 0
    assert teacher._live == 0
    assert_ledger_is_vllms(teacher)


# -- streams, limits, failures -----------------------------------------------------------------------------------------


def test_a_stream_gives_the_tokens_of_its_completion(teacher: Any) -> None:
    async def go() -> None:
        seen: list[int] = []
        prompt = teacher.render(suite.problems(1)[0].messages, None)
        sampling = Sampling(seed=3, max_tokens=30, logprobs=True, temperature=1.5)
        done = await teacher.stream(prompt, sampling, 2, lambda usage: None, seen.extend)
        assert tuple(seen) == done.token_ids and len(done.logprobs) == len(seen) > 1 and done.path == (2,)

    asyncio.run(go())
    assert_ledger_is_vllms(teacher)


def test_an_error_of_the_callers_own_display_ends_the_draw_and_is_raised(teacher: Any) -> None:
    async def go() -> list[Usage]:
        usages: list[Usage] = []

        def show(ids: tuple[int, ...]) -> None:
            raise ZeroDivisionError

        prompt = teacher.render(suite.problems(1)[0].messages, None)
        with pytest.raises(ZeroDivisionError):
            await teacher.stream(prompt, Sampling(seed=3, max_tokens=1000, temperature=2.0), 0, usages.append, show)
        return usages

    (usage,) = asyncio.run(go())
    assert 0 < usage.overrun + usage.generated < 1000
    assert_ledger_is_vllms(teacher)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine: Any) -> None:
    limit = engine.capabilities.max_context
    with pytest.raises(PromptTooLong, match=str(limit)):
        draw(engine, range(1), ids=engine.encode("1") * limit)
    (completion,) = draw(engine, range(1), max_tokens=64, ids=engine.encode("1") * (limit - 200))
    assert completion.token_ids


def test_a_prompt_without_ids_and_ids_outside_the_vocabulary_are_refused(teacher: Any) -> None:
    async def go(prompt: Prompt) -> None:
        await teacher.generate(prompt, Sampling(seed=1), range(1), lambda usage: None)

    with pytest.raises(Unsupported, match="token ids"):
        asyncio.run(go(Prompt(text="x", token_ids=None)))
    with pytest.raises(EngineError, match="vocabulary"):
        asyncio.run(go(Prompt(text="x", token_ids=(10**6,))))
    assert draw(teacher, range(1))
    assert_ledger_is_vllms(teacher)


def test_many_seeded_prompts_at_once_do_not_end_the_engine(teacher: Any) -> None:
    """More queued prompt tokens than one step takes: vLLM would prefill in chunks and fail on a seeded request."""

    async def go() -> None:
        prompts = [teacher.encode(f"{i} " + "1+" * 900) for i in range(16)]
        sampling = Sampling(seed=1, max_tokens=4)
        await asyncio.gather(
            *(teacher.generate(Prompt("", ids), sampling, range(2), lambda usage: None) for ids in prompts)
        )

    asyncio.run(go())
    assert_ledger_is_vllms(teacher)


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = vllm(None, VllmOptions(max_context=256))

    async def go() -> None:
        running = asyncio.create_task(ask(engine, range(2), max_tokens=200, temperature=2.0))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await running
        with pytest.raises(EngineError, match="closed"):
            await ask(engine, range(1))
        await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"quantization": "no_such_method"}, "quantization"),
        ({"dtype": "float12"}, "dtype"),
        ({"max_context": 1 << 20}, "max_model_len|max_position_embeddings"),
        ({"kv_cache_bytes": 1 << 12}, "KV cache|memory|blocks"),
        pytest.param(
            {"distributed_executor_backend": "ray"},
            "pip install ray",
            marks=pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed: nothing is missing"),
        ),
    ],
)
def test_what_vllm_refuses_becomes_one_line_that_names_it(options: dict[str, Any], cause: str) -> None:
    with pytest.raises((ConfigError, EngineError), match=cause) as caught:
        vllm(None, VllmOptions(**options))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_starting_vllm_leaves_the_process_as_it_was(teacher: Any) -> None:
    import torch

    assert torch.set_num_threads.__module__ != "vllm.v1.worker.cpu_worker"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
    assert "tcmalloc" not in os.environ.get("LD_PRELOAD", "")


# -- thinking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 5, 14])
def test_the_toolkits_own_cap_is_exact_on_vllm(teacher: Any, cap: int) -> None:
    async def go() -> list[Completion]:
        prompt = teacher.render(suite.problems(1)[0].messages, True)
        sampling, thinking = Sampling(seed=5, max_tokens=200), Thinking(max_tokens=cap)
        return await asyncio.gather(
            *(controlled(teacher, prompt, sampling, i, thinking, lambda usage: None) for i in range(6))
        )

    for completion in asyncio.run(go()):
        parts = split(completion.token_ids, True, teacher.capabilities)
        injected = sum(end - start for start, end in completion.injected)
        kept = len(parts.thinking) - max(injected - 1, 0)  # the hand-over's marker is not inside
        assert kept <= cap or not injected
        assert not parts.inside


def test_vllms_own_cap_is_proven_exact_where_it_forces_the_bare_marker(teacher: Any) -> None:
    report = asyncio.run(teacher.self_test())
    assert report.num_tests >= 6 and report.exact, report.failures
    assert "thinking_cap" in teacher.capabilities.extras
    assert_ledger_is_vllms(teacher)


@pytest.mark.parametrize("cap", [1, 5, 14, 300])
def test_vllms_own_cap_cuts_the_same_thought_at_the_same_token(teacher: Any, cap: int) -> None:
    assert asyncio.run(teacher.self_test()).exact
    prompt = teacher.render(suite.problems(1)[0].messages, True)
    thinking, held = Thinking(max_tokens=cap, handover="</think>"), []
    sampling = Sampling(temperature=0, seed=5, max_tokens=400, logprobs=True)
    plain = replace(teacher.capabilities, extras=frozenset())

    async def go() -> tuple[Completion, Completion]:
        def run() -> Any:
            return controlled(teacher, prompt, sampling, 0, thinking, lambda usage: None, None, held.append)

        native, teacher._capabilities = await run(), plain
        return native, await run()

    with_extras = teacher._capabilities
    try:
        native, counted = asyncio.run(go())
    finally:
        teacher._capabilities = with_extras
    assert held == ["native", "ids"]
    assert native.token_ids == counted.token_ids
    assert native.injected == counted.injected
    for start, end in native.injected:
        assert native.logprobs[start:end] == (None,) * (end - start)


def test_penalties_and_the_likeliest_tokens_are_vllms(smollm2: Any) -> None:
    prompt = smollm2.render(suite.problems(1)[0].messages, None)
    plain = {"temperature": 0.0, "seed": 3, "max_tokens": 40, "logprobs": True}

    async def go(**extras: Any) -> Any:
        sampling = ExtraSampling(**plain, **extras)
        (completion,) = await smollm2.generate(prompt, sampling, range(1), lambda usage: None)
        return completion

    free, told = asyncio.run(go()), asyncio.run(go(top_logprobs=3))
    assert told.token_ids == free.token_ids and not isinstance(free, ExtraCompletion)
    assert told.logprobs == pytest.approx(free.logprobs, abs=1e-3)
    for token, logprob, top in zip(told.token_ids, told.logprobs, told.top_logprobs, strict=True):
        assert len(top) == 3 and top[0] == (token, logprob), "greedy takes the likeliest"
        assert sorted((value for _, value in top), reverse=True) == [value for _, value in top]
    penalised = asyncio.run(go(repetition_penalty=1.8))
    assert penalised.token_ids != free.token_ids
    assert len(set(penalised.token_ids)) > len(set(free.token_ids))
    assert asyncio.run(go(presence_penalty=2.0)).token_ids != free.token_ids
    biased = asyncio.run(go(logit_bias=((free.token_ids[0], -100.0),)))
    assert free.token_ids[0] not in biased.token_ids


def test_draws_with_different_salts_share_no_cached_prefix(smollm2: Any) -> None:
    prompt = smollm2.render([Message("user", "What is a prefix cache? " * 12)], None)

    def cached(salt: str) -> int:
        sampling = ExtraSampling(temperature=0, max_tokens=2, cache_salt=salt)
        (completion,) = asyncio.run(smollm2.generate(prompt, sampling, range(1), lambda usage: None))
        return int(completion.usage.cached)

    assert [cached("a"), cached("a") > 0, cached("b")] == [0, True, 0]


def test_a_model_without_markers_has_no_cap_to_test(smollm2: Any) -> None:
    with pytest.raises(Unsupported, match="marker"):
        asyncio.run(smollm2.self_test())


# -- weights and adapters ----------------------------------------------------------------------------------------------


def load(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def changed(state: dict[str, Any], scale: float = 0.2) -> dict[str, Any]:
    """Other weights of the same shapes; the tied embedding changes most."""
    import torch

    generator = torch.Generator().manual_seed(5)
    noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}
    spread = {name: scale * tensor.float().std().nan_to_num() for name, tensor in state.items()}
    return {n: (tensor.float() + spread[n] * noise[n]).to(tensor.dtype) for n, tensor in state.items()}


def write_model(folder: Path, state: dict[str, Any]) -> Path:
    """A copy of the teacher with other weights."""
    from safetensors.torch import save_file

    folder.mkdir()
    for file in nano.path("teacher").iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file(state, str(folder / "model.safetensors"))
    return folder


async def text_logprobs(engine: Any) -> tuple[float, ...]:
    """Log-probabilities of a fixed text."""
    ids = engine.encode("12+30*2=72\n\n72-7=65\n\nThe answer is 65.")
    return tuple(await engine.logprobs(ids, 1, lambda usage: None))


def test_weights_replaced_in_place_are_those_of_a_fresh_start(teacher: Any, tmp_path: Path) -> None:
    original = load(nano.path("teacher"))
    other = changed(original)

    async def go() -> None:
        before = await text_logprobs(teacher)
        await ask(teacher, range(2))
        await teacher.load_weights(other)
        swapped, usages = await text_logprobs(teacher), []
        await ask(teacher, range(1), usages, ids=teacher.encode("1+1=2, " * 9))
        assert usages[0].cached == 0
        fresh = vllm(str(write_model(tmp_path / "fresh", other)), VllmOptions(max_context=256))
        try:
            wanted = await text_logprobs(fresh)
        finally:
            await fresh.close()
        await teacher.load_weights(original)
        assert swapped == pytest.approx(wanted, abs=1e-4)
        assert max(abs(a - b) for a, b in zip(before, swapped, strict=True)) > 0.5
        assert await text_logprobs(teacher) == pytest.approx(before, abs=1e-4)

    asyncio.run(go())
    assert_ledger_is_vllms(teacher)


def test_incomplete_weights_and_a_busy_engine_are_refused(teacher: Any) -> None:
    state = load(nano.path("teacher"))
    missing = dict(list(state.items())[1:])

    async def go() -> None:
        with pytest.raises(ConfigError, match="lack 1 tensors"):
            await teacher.load_weights(missing)
        running = asyncio.create_task(ask(teacher, range(1), max_tokens=300, temperature=2.0))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="running"):
            await teacher.load_weights(state)
        await running

    asyncio.run(go())


def test_a_lora_adapter_computes_what_its_merged_weights_compute(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    state, rank, alpha = load(nano.path("teacher")), 4, 8
    generator = torch.Generator().manual_seed(3)
    adapter: dict[str, Any] = {}
    for name in [n for n in state if n.endswith(("q_proj.weight", "v_proj.weight", "down_proj.weight"))]:
        rows, columns = state[name].shape
        down = torch.randn(rank, columns, generator=generator) * 0.05
        up = torch.randn(rows, rank, generator=generator) * 0.05
        key = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
        state[name] = (state[name].float() + alpha / rank * up @ down).to(state[name].dtype)
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(adapter, str(folder / "adapter_model.safetensors"))
    modules = ["q_proj", "v_proj", "down_proj"]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))

    async def go() -> tuple[tuple[float, ...], ...]:
        adapted = vllm(None, VllmOptions(lora=str(folder), max_context=256))
        try:
            got = await text_logprobs(adapted)
            with pytest.raises(Unsupported, match="LoRA"):
                await adapted.load_weights(state)
        finally:
            await adapted.close()
        merged, plain = embedded(str(write_model(tmp_path / "merged", state))), embedded()
        try:
            return got, await text_logprobs(merged), await text_logprobs(plain)
        finally:
            await merged.close()
            await plain.close()

    got, wanted, plain = asyncio.run(go())
    assert got == pytest.approx(wanted, abs=0.3)
    distance = sum(abs(a - b) for a, b in zip(got, wanted, strict=True))
    # Both sides round to bf16 where the processor multiplies it (0.24 there); an adapter at half its scale gives 0.5.
    assert distance < 0.35 * sum(abs(a - b) for a, b in zip(plain, wanted, strict=True))


# -- its own processes -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_async_llm_keeps_the_same_promises() -> None:
    """Ledger, cancellation, a second event loop, weights in place and closing, with vLLM in processes of its own."""
    engine: Any = vllm(None, VllmOptions(in_process=False, max_context=1024))
    try:
        check_ledger(engine, STRATEGIES["tree dvts"])
        check_ledger(engine, STRATEGIES["majority under a cap"])
        for moment in (0.0, 0.05, 0.4):
            test_cancelled_draws_are_aborted_and_on_the_ledger(engine, moment)
        test_a_stream_gives_the_tokens_of_its_completion(engine)

        async def swap() -> None:
            original = load(nano.path("teacher"))
            before = await text_logprobs(engine)
            await engine.load_weights(changed(original))
            assert max(abs(a - b) for a, b in zip(before, await text_logprobs(engine), strict=True)) > 0.5
            await engine.load_weights(original)
            assert await text_logprobs(engine) == pytest.approx(before, abs=1e-4)

        asyncio.run(swap())
        assert_ledger_is_vllms(engine)
    finally:
        asyncio.run(engine.close())
    with pytest.raises(EngineError, match="closed"):
        draw(engine, range(1))


@pytest.mark.slow
def test_two_tensor_parallel_workers_compute_what_one_does(teacher: Any) -> None:
    engine: Any = vllm(None, VllmOptions(tensor_parallel_size=2, max_context=512, kv_cache_bytes=64 << 20))
    try:
        alone, together = asyncio.run(text_logprobs(teacher)), asyncio.run(text_logprobs(engine))
        assert together == pytest.approx(alone, abs=0.3)
        assert len(draw(engine, range(3))) == 3
        assert_ledger_is_vllms(engine)
    finally:
        asyncio.run(engine.close())


def test_one_problem_solved_through_the_command_line_names() -> None:
    from ttc.config.registry import ENGINES
    from ttc.config.registry import STRATEGIES as REGISTERED

    engine: Any = ENGINES.create("vllm", {"max_context": "512"}, supply={})

    async def go() -> Any:
        strategy = REGISTERED.load("direct")
        sampling = Sampling(temperature=0.0, max_tokens=200)
        return await solve(suite.problems(1)[0], engine=engine, strategy=strategy, seed=1, sampling=sampling)

    answer = finished(go(), engine)
    assert answer.final is not None and replace(answer.usage, flops=0.0).generated > 0
