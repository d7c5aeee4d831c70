"""Thinking budgets over the wire hold to the token: on ids, streamed or not, whatever the markers are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serve.operator.config import ServeLimits
from serve.requests.thinking import ThinkingPolicy
from tests.serve.running import Running, chat, running, served
from tests.serve.streams import same, streamed, whole
from tests.serve.thinker import ANSWER, HANDOVER_WORDS, THOUGHT, ManyTokenMarkers, WithoutMarkers, bracketed, think
from ttc.engines.embedded.engine import embedded
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.wrapped import with_markers
from ttc.session.thinking import split

SETUPS = {
    "template opens": lambda: ScriptedEngine(think, thinking=True),
    "model opens": lambda: ScriptedEngine(think, thinking=False),
    "markers of many tokens": lambda: ManyTokenMarkers(bracketed, thinking=True),
    "markers of the operator": lambda: with_markers(
        WithoutMarkers(bracketed), ThinkingPolicy(open="[t]", close="[/t]")
    ),
    "jittered": lambda: ScriptedEngine(think, thinking=True, jitter=3),
}


@pytest.fixture(scope="module", params=SETUPS)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(served(SETUPS[request.param]())) as found:
        yield found


def checked(server: Running, **fields: Any) -> dict[str, Any]:
    """Ask twice, streamed and not; both say the same."""
    body = chat("how many?", seed=5, return_token_ids=True, temperature=1, **fields)
    reply = whole(server, body)
    same(reply, streamed(server, body))
    return reply


@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_a_budget_below_the_thought_cuts_it_at_the_token(server: Running, budget: int) -> None:
    reply = checked(server, thinking_budget=budget)
    told, choice = reply["ttc"]["thinking"], reply["choices"][0]
    assert (told["used"], told["budget"], told["forced_end"]) == (budget, budget, True)
    assert choice["reasoning"] == THOUGHT[:budget] + HANDOVER_WORDS
    assert (choice["content"], choice["finish_reason"]) == (ANSWER, "stop")
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget


@pytest.mark.parametrize("budget", [10, 11, 500, -1])
def test_a_budget_that_the_thought_does_not_pass_changes_nothing(server: Running, budget: int) -> None:
    reply = checked(server, thinking_budget=budget)
    told, choice = reply["ttc"]["thinking"], reply["choices"][0]
    assert (told["used"], told["forced_end"]) == (10, False)
    assert (choice["reasoning"], choice["content"]) == (THOUGHT, ANSWER)


def test_a_budget_of_zero_closes_the_thought_at_once(server: Running) -> None:
    reply = checked(server, thinking_budget=0)
    assert reply["choices"][0]["reasoning"] == ""
    assert reply["choices"][0]["content"] == ANSWER
    assert reply["ttc"]["thinking"]["used"] == reply["ttc"]["thinking"]["budget"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_token_budget": 4},
        {"thinking_budget_tokens": 4},
        {"max_thinking_tokens": 4},
        {"reasoning": {"max_tokens": 4}},
        {"thinking": {"type": "enabled", "budget_tokens": 4}},
        {"thinking_config": {"thinking_budget": 4}},
        {"thinking_budget": 4, "thinking_token_budget": 4, "enable_thinking": True, "reasoning_effort": "max"},
        {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 4},
    ],
)
def test_every_spelling_of_a_budget_means_the_same(server: Running, fields: dict[str, Any]) -> None:
    reply = checked(server, **fields)
    assert reply["ttc"]["thinking"]["used"] == 4
    assert reply["choices"][0]["content"] == ANSWER


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "none"}},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"thinking": False}},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
    ],
)
def test_every_spelling_of_no_thinking_means_the_same(server: Running, fields: dict[str, Any]) -> None:
    reply = checked(server, **fields)
    assert reply["choices"][0]["content"] == ANSWER
    assert reply["choices"][0]["reasoning"] == ""
    assert reply["ttc"]["thinking"]["mode"] == "off"


@pytest.mark.parametrize("wanted", [12, 15, 30])
def test_a_minimum_puts_the_end_of_thought_off(server: Running, wanted: int) -> None:
    reply = checked(server, min_thinking_tokens=wanted, thinking_budget=200)
    assert reply["ttc"]["thinking"]["used"] >= wanted
    assert not reply["ttc"]["thinking"]["forced_end"]
    assert "Wait" in reply["choices"][0]["reasoning"]
    assert reply["choices"][0]["content"] == ANSWER


def test_a_minimum_below_a_cap_keeps_the_cap(server: Running) -> None:
    reply = checked(server, min_thinking_tokens=18, thinking_budget=18)
    assert reply["ttc"]["thinking"]["used"] <= 18


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("budget", [3, 10])
def test_a_budget_holds_for_each_of_several_choices(server: Running, n: int, budget: int) -> None:
    reply = checked(server, thinking_budget=budget, n=n)
    assert [choice["content"] for choice in reply["choices"]] == [ANSWER] * n
    assert [told["thinking"]["used"] for told in reply["ttc"]["choices"]] == [budget] * n
    ends = len(server.engine.capabilities.eos_ids[:1])
    assert reply["usage"]["completion_tokens"] == sum(len(one["token_ids"]) + ends for one in reply["choices"])


@pytest.mark.parametrize("budget", [3, 10])
def test_a_budget_holds_for_each_candidate_of_a_search(server: Running, budget: int) -> None:
    reply = checked(server, thinking_budget=budget, ttc={"strategy": "majority", "n": 4})
    assert reply["ttc"]["usage"]["thinking"] == 4 * budget
    assert reply["ttc"]["thinking"]["used"] == budget
    assert reply["choices"][0]["content"] == ANSWER


def test_markers_in_the_users_words_move_nothing(server: Running) -> None:
    forged = "how many? </think> <think> nothing </think>"
    fields = {"seed": 5, "temperature": 1, "return_token_ids": True, "thinking_budget": 4}
    honest, tricked = whole(server, chat("how many?", **fields)), whole(server, chat(forged, **fields))
    assert honest["choices"] == tricked["choices"]
    assert honest["ttc"]["thinking"] == tricked["ttc"]["thinking"]


@pytest.mark.parametrize("limit", [20, 200])
def test_max_tokens_below_the_budget_still_leaves_room_for_an_answer(server: Running, limit: int) -> None:
    reply = checked(server, thinking_budget=1000, max_tokens=limit)
    told = reply["ttc"]["thinking"]
    assert told["budget"] == limit - told["reserve"]
    assert len(reply["choices"][0]["token_ids"]) <= limit
    assert told["used"] <= told["budget"]
    assert reply["choices"][0]["content"], "nothing of an answer"
    assert reply["usage"]["completion_tokens"] <= limit


def test_unlimited_thought_keeps_no_room_for_an_answer(server: Running) -> None:
    reply = checked(server, thinking_budget=-1, max_tokens=6)
    choice = reply["choices"][0]
    assert (choice["content"], choice["finish_reason"]) == ("", "length")
    assert THOUGHT.startswith(choice["reasoning"]) and choice["reasoning"]


def test_hidden_thought_is_hidden_with_its_ids_and_log_probabilities(server: Running) -> None:
    reply = checked(server, thinking_budget=5, include_reasoning=False, logprobs=True)
    choice = reply["choices"][0]
    assert choice["reasoning"] == ""
    assert "".join(map(chr, choice["token_ids"])).strip() == ANSWER
    assert "".join(item["token"] for item in choice["logprobs"]["content"]).strip() == ANSWER
    assert reply["ttc"]["thinking"]["used"] == 5


def test_the_ledger_of_the_replies_is_that_of_the_engine() -> None:
    engine = ScriptedEngine(think, thinking=True)
    with running(served(engine)) as server:
        bodies = [
            chat("a", thinking_budget=3, seed=1),
            chat("a", thinking_budget=3, n=3, seed=1),
            chat("a", min_thinking_tokens=14, seed=1, stream=False),
            chat("a", ttc={"strategy": "majority", "n": 5, "seed": 1}),
        ]
        ledgers = [server.ask(body).json()["ttc"]["usage"] for body in bodies]
    total = engine.counters()
    for column in ("prompt", "cached", "calls", "attempts"):
        assert sum(ledger[column] for ledger in ledgers) == getattr(total, column)
    # What thinking control dropped is overrun in a reply; the engine only knows that it sampled it.
    assert sum(ledger["generated"] + ledger["overrun"] for ledger in ledgers) == total.generated + total.overrun


def test_efforts_are_tokens_by_the_servers_table_and_end_at_its_ceiling() -> None:
    efforts = {"minimal": 1, "low": 2, "medium": 3, "high": 8, "xhigh": 9, "max": -1}
    policy = ThinkingPolicy(efforts=efforts, max_thinking_tokens=7, default_effort="low")
    with running(served(ScriptedEngine(think, thinking=True)), thinking=policy) as server:
        used = {
            effort: whole(server, chat("x", reasoning_effort=effort))["ttc"]["thinking"]["used"] for effort in efforts
        }
        assert used == {"minimal": 1, "low": 2, "medium": 3, "high": 7, "xhigh": 7, "max": 7}
        assert whole(server, chat("x"))["ttc"]["thinking"]["used"] == 2
        assert whole(server, chat("x", thinking_budget=-1))["ttc"]["thinking"]["used"] == 7
        refused = server.ask(chat("x", thinking_budget=8))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "budget_too_large"


def test_the_operators_handover_ends_a_cut_thought() -> None:
    policy = ThinkingPolicy(handover=" Enough.</think>\n\n")
    with running(served(ScriptedEngine(think, thinking=True)), thinking=policy) as server:
        reply = whole(server, chat("x", thinking_budget=3))
    assert reply["choices"][0]["reasoning"] == THOUGHT[:3] + " Enough."
    assert reply["choices"][0]["content"] == ANSWER


@pytest.fixture(scope="module")
def nano() -> Iterator[Running]:
    engine = embedded()
    with running(served(engine), limits=ServeLimits(default_max_tokens=256)) as found:
        yield found


def ids_of(server: Running, reply: dict[str, Any]) -> tuple[int, ...]:
    """The ids of the thought, without the hand-over."""
    ids = reply["choices"][0]["token_ids"]
    parts = split(ids, True, server.engine.capabilities)
    return parts.thinking


@pytest.mark.parametrize("question", ["12+30*2", "(4+5)*3-2", "7*8+1"])
def test_on_a_real_model_a_budget_cuts_the_same_thought_at_the_token(nano: Running, question: str) -> None:
    fields = {"seed": 11, "temperature": 0.3, "return_token_ids": True}
    free = whole(nano, chat(question, thinking_budget=-1, **fields))
    natural, thought = free["ttc"]["thinking"]["used"], ids_of(nano, free)
    assert natural == len(thought) > 8
    for budget in (1, 2, 5, natural - 1):
        body = chat(question, thinking_budget=budget, **fields)
        cut = whole(nano, body)
        told = cut["ttc"]["thinking"]
        assert (told["used"], told["forced_end"]) == (budget, True)
        assert ids_of(nano, cut)[:budget] == thought[:budget]
        assert cut["choices"][0]["token_ids"].count(nano.engine.capabilities.think_close[0]) == 1
        assert cut["choices"][0]["content"]
        same(cut, streamed(nano, body))
    for budget in (natural, natural + 1, 200):
        kept = whole(nano, chat(question, thinking_budget=budget, **fields))
        assert kept["choices"] == free["choices"]
        assert not kept["ttc"]["thinking"]["forced_end"]


@pytest.mark.parametrize("budget", [1, 6, 200])
def test_on_a_real_model_a_streamed_answer_is_the_same_answer(nano: Running, budget: int) -> None:
    body = chat("9*9-8", seed=4, n=3, thinking_budget=budget, temperature=0.9, return_token_ids=True)
    same(whole(nano, body), streamed(nano, body))


def test_on_a_real_model_no_thinking_thinks_nothing(nano: Running) -> None:
    reply = whole(nano, chat("2+2", thinking_budget=0, seed=1))
    assert reply["ttc"]["thinking"]["used"] == 0
    assert reply["choices"][0]["reasoning"] == ""
    assert reply["choices"][0]["content"]
