"""The openai engine against `vllm serve` on loopback, with the packaged teacher: `make test-vllm`.

What a deterministic server promises bit by bit holds here in distribution.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from tests.loops import finished
from tests.serve.running import chat, running, served
from tests.ttc import conformance as suite
from tests.ttc import test_conformance as shared
from tests.ttc.openai_setup import ALIKE, TEACHER, ask
from tests.ttc.vllm_server import counted, vllm_server
from ttc.core import Engine, LogprobEngine, Sampling, StreamingEngine, TopLogprobEngine, Usage, extras_of
from ttc.engines.openai.engine import RemoteEngine
from ttc.engines.openai.factory import openai
from ttc.session.door import run
from ttc.strategies.majority import majority
from ttc.strategies.tools import tools

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

CASES = suite.STRATEGIES | suite.THINKING_STRATEGIES
# The packaged teacher has never read a system message: told of its tools in one, it babbles, on every engine.
CASES |= {"tools": suite.Case(lambda: partial(tools, n=3, instruct=False))}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a vLLM server."""
    with vllm_server(TEACHER, tmp_path_factory.mktemp("vllm"), "--max-model-len", "2048") as address:
        yield f"{address}/v1"


def by_ids(url: str) -> RemoteEngine:
    engine = openai(base_url=url, tokenizer=TEACHER)
    assert isinstance(engine, RemoteEngine)
    return engine


def test_the_probe_finds_ids_log_probabilities_and_the_context(url: str) -> None:
    engine = by_ids(url)
    assert engine.features.ids and engine.features.logprobs and engine.features.usage and engine.features.extras
    assert engine.capabilities.token_ids and engine.capabilities.max_context == 2048


def test_functions_are_held_by_a_servers_grammars_after_a_thought_within_its_budget(url: str) -> None:
    engine = by_ids(url)
    assert engine.features.grammars and "grammar" in extras_of(engine.capabilities)
    parameters = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    offer = [{"type": "function", "function": {"name": "heat", "parameters": parameters}}]
    fields = {"tools": offer, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200, "seed": 3}
    with running(served(engine)) as server:
        for budget in (0, 5):
            reply = server.ask(chat("Is 7 warm?", thinking_budget=budget, **fields)).json()
            (call,) = reply["choices"][0]["message"]["tool_calls"]
            assert call["function"]["name"] == "heat" and json.loads(call["function"]["arguments"])["a"] in (1, 2)
            assert reply["ttc"]["thinking"]["used"] <= budget


@pytest.mark.parametrize(
    "body",
    [*ALIKE, shared.test_a_cancelled_draw_is_aborted_and_its_tokens_are_overrun],
    ids=lambda body: body.__name__,
)
def test_conformance_against_vllm(url: str, monkeypatch: pytest.MonkeyPatch, body) -> None:
    monkeypatch.setitem(suite.ENGINES, "openai", lambda jitter: by_ids(url))
    body("openai")


@pytest.mark.parametrize("name", list(CASES))
def test_the_ledger_of_every_strategy_equals_vllms_own_counters_to_the_token(url: str, name: str) -> None:
    engine, before = by_ids(url), counted(url)

    answers = finished(suite.solve_in_order(engine, CASES[name], suite.problems(4), 4), engine)
    total, ours, compared = (
        sum((a.usage for a in answers.values()), Usage()),
        engine.counters(),
        engine.reconciliation(),
    )
    assert total.generated + total.overrun == ours.generated + ours.overrun and total.prompt == ours.prompt
    assert compared.agreed == ours.calls == ours.attempts and compared.differed == compared.unreported == 0
    theirs = counted(url)
    assert theirs["generation_tokens"] - before["generation_tokens"] == ours.generated + ours.overrun
    assert theirs["prompt_tokens"] - before["prompt_tokens"] == ours.prompt
    assert sum(answer.final is not None for answer in answers.values()) >= 3


@pytest.mark.parametrize("name", ["majority", "tree", "confidence"])
def test_draws_without_seeds_share_requests_and_every_token_is_counted(url: str, name: str) -> None:
    engine = openai(base_url=url, tokenizer=TEACHER, seeded=False)
    assert isinstance(engine, RemoteEngine)
    before = counted(url)

    answers = finished(suite.solve_in_order(engine, CASES[name], suite.problems(4), 4), engine)
    ours, compared, theirs = engine.counters(), engine.reconciliation(), counted(url)
    assert compared.differed == compared.unreported == 0 and compared.agreed <= ours.calls == ours.attempts
    assert compared.agreed < ours.calls or name == "confidence"
    assert theirs["generation_tokens"] - before["generation_tokens"] == ours.generated + ours.overrun
    assert sum(answer.final is not None for answer in answers.values()) >= 3


def test_a_thinking_cap_is_exact_on_vllm(url: str) -> None:
    case = suite.THINKING_STRATEGIES["majority under a cap"]
    engine = by_ids(url)

    lengths = [
        event.data["num_thinking"]
        for answer in finished(suite.solve_in_order(engine, case, suite.problems(6), 6), engine).values()
        for event in suite.events_of(answer, "generate")
    ]
    assert max(lengths) == case.thinking.max_tokens and len(lengths) == 24


def test_cancelled_requests_end_in_vllm_and_ours_count_no_more_than_it_decoded(url: str) -> None:
    engine, before = by_ids(url), counted(url)
    assert isinstance(engine, StreamingEngine)
    prompt = engine.render(ask("12+30*2-7*8+9*11").messages, None)
    usages: list[Usage] = []
    seen: list[int] = []

    async def go() -> None:
        begun = asyncio.Event()

        def on_tokens(ids: tuple[int, ...]) -> None:
            seen.extend(ids)
            if len(seen) >= 8:
                begun.set()

        sampling = Sampling(seed=1, max_tokens=1500, temperature=2.0)
        draws = [engine.stream(prompt, sampling, draw, usages.append, on_tokens) for draw in range(8)]
        tasks = [asyncio.create_task(draw) for draw in draws]
        await begun.wait()
        for task in tasks:
            task.cancel()
        assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
        await engine.close()

    asyncio.run(go())
    time.sleep(1.0)
    decoded = counted(url)["generation_tokens"] - before["generation_tokens"]
    assert len(usages) == 8 and len(seen) == sum(usage.overrun for usage in usages) <= decoded
    time.sleep(1.0)
    assert counted(url)["generation_tokens"] - before["generation_tokens"] == decoded


def first_tokens(engine: Engine, draws: int) -> Counter[int]:
    async def go():
        prompt = engine.render(ask("Compute 7*8-3+12.").messages, None)
        return await engine.generate(
            prompt, Sampling(seed=3, max_tokens=1, temperature=2.0), range(draws), lambda usage: None
        )

    return Counter(completion.token_ids[0] for completion in finished(go(), engine))


def test_draws_have_the_distribution_of_the_embedded_engine(url: str) -> None:
    """Total variation between two samples of 600 first tokens; of equal distributions over ten tokens about 0.05."""
    remote, local = first_tokens(by_ids(url), 600), first_tokens(suite.embedded(), 600)
    distance = sum(abs(remote[token] - local[token]) for token in remote | local) / 1200
    assert len(local) > 3 and distance < 0.12


def test_greedy_tokens_and_log_probabilities_are_those_of_the_embedded_engine(url: str) -> None:
    async def go(engine: Engine):
        try:
            sampling = Sampling(temperature=0.0, max_tokens=24, logprobs=True)
            prompts = [engine.render(problem.messages, None) for problem in suite.problems(8)]
            return [(await engine.generate(p, sampling, range(1), lambda usage: None))[0] for p in prompts]
        finally:
            await engine.close()

    pairs = list(zip(asyncio.run(go(by_ids(url))), asyncio.run(go(suite.embedded())), strict=True))
    equal = [(a, b) for a, b in pairs if a.token_ids == b.token_ids]
    assert len(equal) >= 6
    for remote, local in equal:
        assert remote.logprobs == pytest.approx(local.logprobs, abs=0.15)


def test_given_ids_are_scored_as_by_the_embedded_engine(url: str) -> None:
    async def go(engine: Engine):
        assert isinstance(engine, LogprobEngine)
        try:
            return await engine.logprobs(engine.encode("12+30*2\n30*2=60\n\n12+60=72"), 1, lambda usage: None)
        finally:
            await engine.close()

    assert asyncio.run(go(by_ids(url))) == pytest.approx(asyncio.run(go(suite.embedded())), abs=0.2)


def test_the_likeliest_tokens_of_given_ids_are_those_of_the_embedded_engine(url: str) -> None:
    async def go(engine: Engine):
        assert isinstance(engine, TopLogprobEngine)
        try:
            return await engine.top_logprobs(engine.encode("12+30*2\n30*2=60\n\n12+60=72"), 1, 3, lambda usage: None)
        finally:
            await engine.close()

    for far, near in zip(asyncio.run(go(by_ids(url))), asyncio.run(go(suite.embedded())), strict=True):
        assert len(far) in (3, 4) and max(far.values()) == pytest.approx(max(near.values()), abs=0.2)
        # As shares: in bf16 the log-probability of a token that nobody would draw is off by more.
        assert all(
            math.exp(near[token]) == pytest.approx(math.exp(far[token]), abs=0.05) for token in far if token in near
        )


def test_whole_answers_work_through_messages(url: str) -> None:
    engine = openai(base_url=url, tokenizer="none")
    answer = run(ask("12+30*2"), engine=engine, strategy=partial(majority, n=8), seed=1)
    assert answer.final == "72" and answer.thinking and "<|im_end|>" not in answer.text
    assert answer.usage == engine.counters() and answer.usage.generated > 8
