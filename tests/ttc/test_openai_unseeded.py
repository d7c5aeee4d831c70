"""Draws without seeds over the wire: one request for all of a prompt's, whole, counted to the token."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from tests.ttc import conformance as suite
from tests.ttc.openai_server import Behaviour, Fault, OpenAIServer
from tests.ttc.openai_setup import TEACHER, ask, by_ids, once, teacher_server
from ttc import run
from ttc.cli.cli import main
from ttc.core import Prompt, Sampling, Usage
from ttc.engines.openai.engine import MOST_TOGETHER
from ttc.errors import EngineError
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree


@pytest.fixture(scope="module")
def server():
    with teacher_server() as running:
        yield running


def asked_of(server: OpenAIServer, before: int) -> list[dict]:
    return [body for body in server.requests[before:] if body.get("max_tokens") == 24]


def test_all_draws_of_a_prompt_are_one_request_without_seed_stream_or_logprobs(server: OpenAIServer) -> None:
    before = len(server.requests)
    draws = once(by_ids(server, seeded=False), range(6))
    (body,) = asked_of(server, before)
    assert body["n"] == 6 and body["stream"] is False
    assert not {"seed", "logprobs", "stream_options"} & set(body)
    assert [draw.path[-1] for draw in draws] == list(range(6))
    assert len({draw.token_ids for draw in draws}) > 1


def test_more_draws_than_one_request_may_hold_are_several(server: OpenAIServer) -> None:
    before = len(server.requests)
    draws = once(by_ids(server, seeded=False), range(MOST_TOGETHER + 3))
    assert sorted(body["n"] for body in asked_of(server, before)) == [3, MOST_TOGETHER]
    assert [draw.path[-1] for draw in draws] == list(range(MOST_TOGETHER + 3))


def test_the_prompt_is_charged_once_and_every_token_of_every_choice(server: OpenAIServer) -> None:
    async def go() -> None:
        engine, usages = by_ids(server, seeded=False), list[Usage]()
        before = server.counters()
        prompt = engine.render(ask().messages, None)
        draws = await engine.generate(prompt, Sampling(max_tokens=24, seed=1), range(5), usages.append)
        total, compared = sum(usages, Usage()), engine.reconciliation()
        await engine.close()
        assert total.prompt == len(prompt.token_ids or ()) and total.calls == total.attempts == 5
        assert total.generated == sum(len(draw.token_ids) for draw in draws)
        assert server.counters().generated - before.generated == total.generated + total.overrun
        assert (compared.agreed, compared.differed, compared.unreported) == (1, 0, 0)
        assert sum((draw.usage for draw in draws), Usage()) == total == engine.counters()

    asyncio.run(go())


def test_a_server_that_ignores_n_is_asked_again_for_what_it_left_out() -> None:
    with OpenAIServer(suite.embedded, Behaviour(max_model_len=2048, most_choices=2)) as server:
        before = len(server.requests)
        draws = once(by_ids(server, seeded=False), range(5))
        assert [body["n"] for body in asked_of(server, before)] == [5, 3, 1]
        assert [draw.path[-1] for draw in draws] == list(range(5))


def test_a_failure_that_passes_is_retried_and_counted_on_one_draw(server: OpenAIServer) -> None:
    engine = by_ids(server, seeded=False)
    server.faults.append(Fault(status=503))
    usages: list[Usage] = []
    once(engine, range(4), usages)
    assert sum(usages, Usage()).attempts == 5 and sum(usages, Usage()).calls == 4
    ((reason, count),) = engine.failures.items()
    assert "503" in reason and count == 1


@pytest.mark.long
def test_a_slow_answer_is_waited_for_as_long_as_its_server_answers_other_questions() -> None:
    with OpenAIServer(suite.embedded, Behaviour(max_model_len=2048)) as server:
        engine = by_ids(server, seeded=False, idle_s=1.0)
        server.behaviour.pause_s = 3.0
        assert len(once(engine, range(2))) == 2


@pytest.mark.long
def test_an_answer_that_never_comes_is_given_up_though_its_server_is_well() -> None:
    with OpenAIServer(suite.embedded, Behaviour(max_model_len=2048)) as server:
        engine = by_ids(server, seeded=False, idle_s=0.5, attempts=1)
        server.faults.append(Fault(kind="hang"))
        with pytest.raises(EngineError, match="answers, but not this request"):
            once(engine, range(2))


def test_cancelling_closes_the_connection_and_ends_the_draws_in_the_server() -> None:
    with OpenAIServer(suite.embedded, Behaviour(max_model_len=2048)) as server:

        async def go() -> None:
            engine = by_ids(server, seeded=False)
            server.behaviour.pause_s = 30.0
            prompt: Prompt = engine.render(ask().messages, None)
            work = engine.generate(prompt, Sampling(max_tokens=24, seed=1), range(3), lambda usage: None)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, 1.0)
            assert engine.counters().attempts == 1
            await engine.close()

        asyncio.run(go())
        deadline = time.monotonic() + 10
        while server.live and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.live == 0


@pytest.mark.parametrize("strategy", [partial(majority, n=4), partial(tree, n=4, scorer=suite.exact_prm())])
def test_strategies_run_without_seeds_and_their_ledger_is_the_servers(server: OpenAIServer, strategy) -> None:
    engine = by_ids(server, seeded=False)
    before = server.counters()
    answer = run(ask("12+30*2"), engine=engine, strategy=strategy, seed=3)
    spent = server.counters().generated - before.generated
    assert answer.usage.generated + answer.usage.overrun == spent


@pytest.mark.parametrize(("seed", "stated"), [((), True), (("--seed", "1"), False)])
def test_a_command_without_a_seed_says_that_it_is_not_reproducible(server: OpenAIServer, seed, stated, capsys) -> None:
    server.faults.clear()
    arguments = ["solve", "12+30*2", "--engine", "openai", "--set", f"engine.base_url={server.url}"]
    arguments += ["--set", f"engine.tokenizer={TEACHER}", "--strategy", "majority", "--n", "3", *seed]
    before = len(server.requests)
    main(arguments)
    assert ("not reproducible on this server" in capsys.readouterr().err) is stated
    assert any("seed" in body for body in server.requests[before:] if body.get("max_tokens", 0) > 10) is not stated


@pytest.mark.parametrize(("strategy", "asked"), [("majority", False), ("confidence", True)])
def test_log_probabilities_are_asked_for_where_a_strategy_reads_them(server: OpenAIServer, strategy, asked) -> None:
    server.faults.clear()
    arguments = ["solve", "12+30*2", "--engine", "openai", "--set", f"engine.base_url={server.url}"]
    before = len(server.requests)
    main([*arguments, "--set", f"engine.tokenizer={TEACHER}", "--strategy", strategy, "--n", "9"])
    drawn = [body for body in server.requests[before:] if "n" in body or body.get("max_tokens", 0) > 10]
    assert drawn and all(("logprobs" in body) is asked for body in drawn)
