"""Upstream servers: tools and JSON schemas pass through, plain chats stream, votes are held on equal tool calls."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from serve.operator.config import PresetSpec, ServeLimits
from serve.requests.thinking import ThinkingPolicy
from serve.running.catalogue import ServedModel, open_forward
from serve.running.upstreams import Upstreams
from tests.serve.running import Running, chat, running, scripted, served, spec
from tests.serve.slow import until
from tests.serve.streams import chunks_of, same, streamed, whole
from tests.serve.upstream import Upstream, upstream
from tests.ttc.conformance import embedded as embedded_
from tests.ttc.openai_server import Behaviour, OpenAIServer
from tests.ttc.openai_setup import CHAT, TEACHER, talker, teacher_server
from ttc.core import Capabilities, Message, Usage
from ttc.engines.embedded.engine import embedded
from ttc.engines.openai.client import Client
from ttc.engines.openai.factory import openai
from ttc.engines.openai.refusals import Access
from ttc.engines.openai.wire import Features
from ttc.engines.scripted import ScriptedEngine, replies

TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALLS = ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a": 5, "b": 5}', '{"a": 1, "b": 2}']


def script(number: int, body: dict[str, Any]) -> dict[str, Any]:
    if "response_format" in body:
        return {"content": ['{"x": 1}', '{"x": 2}', '{ "x":2 }'][number % 3]}
    if any(message["role"] == "tool" for message in body["messages"]):
        return {"reasoning": "so", "content": "it is 3"}
    return {"reasoning": "hm", "tool_calls": [("add", CALLS[number % len(CALLS)])]}


@pytest.fixture
def behind() -> Iterator[tuple[Running, Upstream]]:
    with upstream(script) as found:
        model: ServedModel = served(scripted())
        features = Features("theirs", usage=True, limit_field="max_completion_tokens")
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, features)
        with running(dataclasses.replace(model, forward=door)) as server:
            yield server, found


def test_a_tool_call_goes_through_and_its_result_comes_back(behind: tuple[Running, Upstream]) -> None:
    server, found = behind
    reply = server.ask(chat("add", tools=TOOLS, tool_choice="auto", temperature=0, stop=["x"], max_tokens=40)).json()
    choice = reply["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (call["id"], call["function"]) == ("call0", {"name": "add", "arguments": CALLS[0]})
    assert choice["message"]["reasoning"] == "hm"
    assert reply["usage"]["total_tokens"] == 16 and reply["ttc"]["usage"]["generated"] == 5
    asked = found.asked[0]
    assert (asked["model"], asked["tools"], asked["tool_choice"]) == ("theirs", TOOLS, "auto")
    assert (asked["temperature"], asked["stop"], asked["max_completion_tokens"]) == (0, ["x"], 40)
    turns = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call0", "content": "3"},
    ]
    after = server.ask({"model": "m", "messages": turns, "tools": TOOLS}).json()
    assert after["choices"][0]["message"]["content"] == "it is 3"
    assert found.asked[1]["messages"][1]["tool_calls"] == [call]


def test_a_reply_that_its_client_leaves_is_on_the_ledger_as_far_as_it_came() -> None:
    with upstream(lambda number, body: {"content": "x" * 1000}, pause_s=0.002) as found:
        features = Features("theirs", usage=True, limit_field="max_completion_tokens")
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, features)
        post = {"method": "POST", "url": "/v1/chat/completions", "json": chat("add", tools=TOOLS, stream=True)}
        with running(dataclasses.replace(served(scripted()), forward=door)) as server:
            with server.client() as client, client.stream(**post) as response:
                for _, _ in zip(range(100), response.iter_lines(), strict=False):
                    pass
            assert until(lambda: server.service.idle)
            told = server.service.metrics.text().splitlines()
    (overrun,) = (float(line.split()[-1]) for line in told if line.startswith("ttc_overrun_tokens_total"))
    assert 40 <= overrun < 1000


def test_tokens_of_a_long_text_are_counted_beside_the_event_loop() -> None:
    threads: list[set[int]] = [set(), set()]

    def count(messages: Sequence[Message], said: str) -> Usage:
        threads[len(found.asked) - 1].add(threading.get_ident())
        return Usage(generated=len(said))

    with upstream(script) as found:
        features = Features("theirs", usage=True)
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, features, count=count)
        with running(dataclasses.replace(served(WithoutIds(replies({}))), forward=door)) as server:
            for text in ("add", "add " * 10_000):
                assert server.ask(chat(text, tools=TOOLS)).json()["usage"]["total_tokens"] == 16
    (loop,), beside = threads
    assert beside and loop not in beside


def test_what_nobody_reads_of_a_conversation_is_not_sent_behind(behind: tuple[Running, Upstream]) -> None:
    server, found = behind
    mark = {"cache_control": {"type": "ephemeral"}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "add", **mark}], **mark},
        {
            "role": "assistant",
            "content": "a",
            "annotations": [],
            "thinking_blocks": [{"thinking": "x"}],
            "reasoning": "r",
        },
        {"role": "user", "content": "add"},
    ]
    assert server.ask({"model": "m", "messages": turns, "tools": TOOLS}).status_code == 200
    assert found.asked[0]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "add"}]},
        {"role": "assistant", "content": "a", "reasoning": "r"},
        {"role": "user", "content": "add"},
    ]


def test_the_operators_most_tokens_hold_for_what_is_passed_on() -> None:
    with upstream(script) as found:
        features = Features("theirs", usage=True, limit_field="max_completion_tokens")
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, features)
        model = dataclasses.replace(served(scripted()), forward=door)
        with running(model, limits=ServeLimits(max_tokens=50)) as server:
            refused = server.ask(chat("add", tools=TOOLS, max_tokens=51)).json()["error"]
            assert server.ask(chat("add", tools=TOOLS)).status_code == 200
    assert refused["param"] == "max_tokens" and "limit of 50" in refused["message"]
    assert [asked["max_completion_tokens"] for asked in found.asked] == [50]


def test_penalties_go_to_the_upstream_server_and_what_it_may_not_know_is_refused(
    behind: tuple[Running, Upstream],
) -> None:
    server, found = behind
    assert server.ask(chat("add", tools=TOOLS, presence_penalty=0.5, repetition_penalty=1.1)).status_code == 200
    assert (found.asked[0]["presence_penalty"], found.asked[0]["repetition_penalty"]) == (0.5, 1.1)
    assert "frequency_penalty" not in found.asked[0]
    refused = server.ask(chat("add", tools=TOOLS, cache_salt="mine"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, {"ttc": {"strategy": "majority", "n": 2}}])
def test_biases_and_the_length_of_answers_go_to_the_upstream_server(fields: dict[str, Any]) -> None:
    with upstream(lambda number, body: {"content": "7"}) as found:
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, Features("theirs", usage=True))
        with running(dataclasses.replace(served(WithoutIds(replies({}))), forward=door)) as server:
            reply = server.ask(chat("add", verbosity="low", logit_bias={"5": -100, "6": 0}, **fields))
            other = {"model": "m", "input": "add", "text": {"verbosity": "high"}}
            assert server.ask(other, "/v1/responses").status_code == 200
            refused = server.ask(chat("add", verbosity="low", ttc={"strategy": "adaptive", "n": 2}))
    assert reply.status_code == 200, reply.text
    assert all((body["verbosity"], body["logit_bias"]) == ("low", {"5": -100}) for body in found.asked[:-1])
    assert found.asked[-1]["verbosity"] == "high" and "logit_bias" not in found.asked[-1]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "verbosity")


def test_of_allowed_tools_the_upstream_server_is_shown_no_others(behind: tuple[Running, Upstream]) -> None:
    server, found = behind
    tools = [*TOOLS, {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}}]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert server.ask(chat("add", tools=tools, tool_choice=choice)).status_code == 200
    assert (found.asked[-1]["tools"], found.asked[-1]["tool_choice"]) == (TOOLS, "required")


def test_a_streamed_tool_call_is_whole_in_a_chunk_before_the_last(behind: tuple[Running, Upstream]) -> None:
    server, _ = behind
    chunks = chunks_of(server.ask(chat("add", tools=TOOLS, stream=True)).text)
    before, last = (chunk["choices"][0] for chunk in chunks[-2:])
    assert (before["finish_reason"], last["finish_reason"], last["delta"]) == (None, "tool_calls", {})
    assert json.loads(before["delta"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}
    assert "".join(c["choices"][0]["delta"].get("reasoning", "") for c in chunks) == "hm"


def test_majority_votes_on_equal_tool_calls(behind: tuple[Running, Upstream]) -> None:
    server, found = behind
    reply = server.ask(chat("add", tools=TOOLS, ttc={"strategy": "majority", "n": 4})).json()
    call = reply["choices"][0]["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert sorted(candidate["votes"] for candidate in reply["ttc"]["candidates"]) == [1, 3, 3, 3]
    assert len(found.asked) == 4 and len({asked["seed"] for asked in found.asked}) == 4
    assert reply["ttc"]["usage"]["generated"] == reply["usage"]["completion_tokens"] == 20
    assert reply["usage"]["prompt_tokens"] == 44, "the upstream server read the prompt four times"
    assert reply["usage"]["completion_tokens_details"]["rejected_tokens"] == 15
    assert reply["ttc"]["returned"]["completion_tokens"] == 5


def test_majority_votes_on_equal_json(behind: tuple[Running, Upstream]) -> None:
    server, _ = behind
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    reply = server.ask(chat("give", response_format=schema, ttc={"strategy": "majority", "n": 3})).json()
    assert json.loads(reply["choices"][0]["message"]["content"]) == {"x": 2}


def serving(script_: Any) -> Any:
    """Ours in front of a server that answers by `script_`."""

    @contextlib.contextmanager
    def place() -> Iterator[Running]:
        with upstream(script_) as found:
            door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, Features("theirs", usage=True))
            with running(dataclasses.replace(served(scripted()), forward=door)) as server:
                yield server

    return place()


VOTES = [
    (["72\n", "7", "72"], [2, 1, 2]),
    (["7.50", "8", "7.5"], [2, 1, 2]),
    (['{"x":2}', '{"x":1}', '{ "x": 2 }'], [2, 1, 2]),
    (['{"x":[1,2]}', '{"x":[2,1]}', '{"x": [1, 2]}'], [2, 1, 2]),
]


@pytest.mark.parametrize(("contents", "votes"), VOTES)
def test_equal_answers_and_equal_json_vote_together_however_they_are_spelled(
    contents: list[str], votes: list[int]
) -> None:
    with serving(lambda number, body: {"content": contents[number]}) as server:
        reply = server.ask(chat("add", tools=TOOLS, ttc={"strategy": "majority", "n": 3})).json()
    assert sorted(candidate["votes"] for candidate in reply["ttc"]["candidates"]) == sorted(votes)


@pytest.mark.parametrize("reply", [{"content": "<think>hmmm</think>7"}, {"reasoning": "hmmm", "content": "7"}])
@pytest.mark.parametrize("stream", [False, True])
def test_thought_that_the_upstream_server_does_not_count_apart_is_counted(reply: dict[str, str], stream: bool) -> None:
    with serving(lambda number, body: reply) as server:
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = server.ask(chat("q", tools=TOOLS, **options))
    last = chunks_of(answer.text)[-1] if stream else answer.json()
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


WIRED = {
    "/v1/chat/completions": chat("add", tools=TOOLS),
    "/v1/messages": chat("add", tools=[{"name": "add", "input_schema": {"type": "object"}}], max_tokens=50),
    "/v1/responses": {"model": "m", "input": "add", "tools": [{"type": "function", **TOOLS[0]["function"]}]},
}


@pytest.mark.parametrize("path", sorted(WIRED))
def test_a_call_without_arguments_has_none_in_every_dialect_and_ends_its_reply(path: str) -> None:
    with serving(lambda number, body: {"tool_calls": [("add", "")], "finish": "stop"}) as server:
        reply = server.ask(WIRED[path], path).json()
    told = json.dumps(reply).replace("\\", "")
    assert '"{}"' in told or '"input": {}' in told
    assert reply.get("stop_reason") == "tool_use" or reply.get("status") == "completed" or "tool_calls" in told
    if "choices" in reply:
        assert reply["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("path", sorted(WIRED))
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_upstream_server_cut_is_text_and_behind_whole_ones_it_is_told(path: str, stream: bool) -> None:
    cut = '{"a": 1, "b'
    for calls in ([("add", cut)], [("add", '{"a": 7}'), ("add", cut)]):
        with serving(lambda number, body, calls=calls: {"tool_calls": calls, "finish": "length"}) as server:
            response = server.ask({**WIRED[path], "stream": stream}, path)
        told = response.text.replace("\\", "")
        assert response.status_code == 200 and "shutting" not in told and cut in told
        assert ("cut_call" in told) == (len(calls) == 2) == ('"a": 7' in told or '"a":7' in told)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_budget": 5}, "thinking_budget"),
        ({"ttc": {"strategy": "adaptive"}}, "ttc.strategy"),
        ({"logprobs": True}, "logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
    ],
)
def test_what_cannot_go_with_tools_is_refused(
    behind: tuple[Running, Upstream], fields: dict[str, Any], param: str
) -> None:
    server, found = behind
    response = server.ask(chat("add", tools=TOOLS, **fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not found.asked


def test_an_upstream_that_takes_ids_gives_budgets_exact_to_the_token() -> None:
    with teacher_server() as behind_, running(served(openai(base_url=behind_.url, tokenizer=TEACHER))) as server:
        free = whole(server, chat("12+30*2", seed=1, thinking_budget=-1))
        cut = whole(server, chat("12+30*2", seed=1, thinking_budget=4))
        vote = whole(server, chat("12+30*2", seed=1, ttc={"strategy": "majority", "n": 3}))
    assert free["choices"][0]["content"]
    assert (cut["ttc"]["thinking"]["used"], cut["ttc"]["thinking"]["forced_end"]) == (4, True)
    assert len(vote["ttc"]["candidates"]) == 3


def test_an_upstream_that_takes_ids_and_holds_grammars_has_tools_under_a_budget() -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 2}
    with teacher_server() as behind_, running(served(openai(base_url=behind_.url, tokenizer=TEACHER))) as server:
        body = chat("12+30*2", thinking_budget=4, max_tokens=200, **fields)
        reply = server.ask(body).json()
        (call,) = reply["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "add" and isinstance(json.loads(call["function"]["arguments"]), dict)
        assert reply["ttc"]["thinking"]["used"] <= 4
        same(whole(server, body), streamed(server, body))
        vote = server.ask(chat("12", **fields, reasoning_effort="none", ttc={"strategy": "majority", "n": 3})).json()
        assert vote["choices"][0]["message"]["tool_calls"]


@pytest.mark.parametrize(("told", "options"), [(2048, {}), (None, {}), (None, {"max_context": 512})])
def test_a_context_that_nobody_tells_is_not_made_up(told: int | None, options: dict[str, Any]) -> None:
    with OpenAIServer(embedded_, Behaviour(max_model_len=told)) as behind_:
        engine = openai(base_url=behind_.url, **options)
        door = open_forward(spec(engine_params={"base_url": behind_.url}), engine)
        model = dataclasses.replace(served(engine, engine_params=options), forward=door)
        with running(model) as server, server.client() as client:
            row = client.get("/v1/models/m").json()
    assert row.get("max_model_len") == (told or options.get("max_context"))


def test_an_upstream_that_takes_ids_and_holds_no_grammar_is_asked_for_tools_in_messages() -> None:
    behaviour = Behaviour(max_model_len=2048, grammars=False)
    with OpenAIServer(embedded_, behaviour) as behind_:
        engine = openai(base_url=behind_.url, tokenizer=TEACHER)
        door = open_forward(spec(engine_params={"base_url": behind_.url}), engine)
        with running(dataclasses.replace(served(engine), forward=door)) as server:
            reply = server.ask(chat("12+30*2", tools=TOOLS, tool_choice="auto", max_tokens=8))
            refused = server.ask(chat("12+30*2", tools=TOOLS, thinking_budget=4))
    assert reply.status_code == 200
    assert behind_.requests[-1]["tools"] == TOOLS and behind_.requests[-1]["messages"]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking_budget")


def test_an_upstream_that_takes_ids_as_vllm_does_is_asked_with_penalties_and_biases() -> None:
    asked: Any = {"presence_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"7": -100}}
    with OpenAIServer(embedded_, Behaviour(max_model_len=2048)) as behind_:
        engine = openai(base_url=behind_.url, tokenizer=TEACHER)
        door = open_forward(spec(engine_params={"base_url": behind_.url}), engine)
        with running(dataclasses.replace(served(engine), forward=door)) as server:
            for search in ({}, {"strategy": "majority", "n": 2}):
                assert server.ask(chat("12+30*2", thinking_budget=0, ttc=search, **asked)).status_code == 200
                assert behind_.requests[-1] | asked == behind_.requests[-1]
            assert server.ask(chat("12+30*2", max_tokens=8)).status_code == 200
            assert not {"presence_penalty", "logit_bias"} & behind_.requests[-1].keys()
            refused = server.ask(chat("12+30*2", logit_bias={"70000000": 1}))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")


def test_an_upstream_server_that_answers_in_place_of_a_model_is_asked_with_its_tools() -> None:
    slow = served(embedded_(), "slow", fallback="m", fallback_after_s=1e-4)
    with upstream(script) as found:
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, Features("theirs", usage=True))
        behind_ = dataclasses.replace(served(WithoutIds(replies({}))), forward=door)
        with running(slow, behind_) as server:
            reply = server.ask(
                {**chat("1+2", tools=TOOLS, tool_choice="required", max_tokens=50), "model": "slow"}
            ).json()
    assert reply["ttc"]["fallback"] == {"from": "slow", "reason": "timeout"}
    assert found.asked[-1]["tools"] == TOOLS and found.asked[-1]["tool_choice"] == "required"
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"


def test_an_upstream_of_messages_only_streams_chats_and_runs_whole_answer_strategies() -> None:
    with OpenAIServer(talker, CHAT) as behind_:
        engine = openai(base_url=behind_.url)
        spec_ = spec(engine_params={"base_url": behind_.url})
        with running(dataclasses.replace(served(engine), forward=open_forward(spec_, engine))) as server:
            chunks = chunks_of(server.ask(chat("q", stream=True)).text)
            texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
            assert len([text for text in texts if text]) > 2, "streamed, not sent at the end"
            vote = whole(server, chat("q", ttc={"strategy": "majority", "n": 3}))
            assert vote["ttc"]["final"] in ("0", "1", "2")
            stopped = whole(server, chat("q", stop=["never"], ttc={"strategy": "majority", "n": 3}))
            assert stopped["choices"][0]["content"] and behind_.generations()[-1]["stop"] == ["never"]
            refused = server.ask(chat("q", thinking_budget=5))
            assert refused.json()["error"]["param"] == "thinking_budget"
            before = len(behind_.requests)
            refused = server.ask(chat("q", logprobs=True))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")
            refused = server.ask(chat("q", return_token_ids=True))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "return_token_ids")
            assert len(behind_.requests) == before


def test_an_upstream_server_without_usage_is_counted_by_the_tokenizer() -> None:
    with OpenAIServer(embedded_, dataclasses.replace(CHAT, usage=False)) as behind_:
        engine = openai(base_url=behind_.url, tokenizer=TEACHER)
        door = open_forward(spec(engine_params={"base_url": behind_.url}), engine)
        with running(dataclasses.replace(served(engine), forward=door)) as server:
            usage = server.ask(chat("12+30*2", max_tokens=20)).json()["usage"]
    assert usage["prompt_tokens"] > 5 and 10 <= usage["completion_tokens"] <= 20


class WithoutIds(ScriptedEngine):
    """An engine that is known by its messages only."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, token_ids=False, logprobs=False)


def test_a_server_that_takes_messages_only_is_asked_for_all_that_was_asked() -> None:
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "response_format": {"type": "json_object"},
        "max_tokens": 30,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "presence_penalty": 0.5,
    }
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "add", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    engine = WithoutIds(replies({}))
    with upstream(script) as behind_it:
        features = Features("theirs", usage=True, limit_field="max_tokens")
        door = Upstreams({behind_it.url: Client(behind_it.url, Access("", 5, 30))}, features)
        with running(dataclasses.replace(served(engine), forward=door)) as server:
            for strategy in ("direct", "majority"):
                body = {"model": "m", "messages": turns, **fields, "ttc": {"strategy": strategy}}
                assert server.ask(body).status_code == 200
            alone = server.ask({"model": "m", "messages": turns[:1], "tool_choice": "required"})
            assert (alone.status_code, alone.json()["error"]["param"]) == (400, "tool_choice")
    for asked in behind_it.asked:
        assert {name: asked.get(name) for name in fields} == fields
        assert [{k: v for k, v in turn.items() if v is not None} for turn in asked["messages"]] == [
            {k: v for k, v in turn.items() if v is not None} for turn in turns
        ]


@pytest.fixture(scope="module")
def nano() -> Iterator[Running]:
    with running(served(embedded())) as server:
        yield server


@contextlib.contextmanager
def messages_only(**options: Any) -> Iterator[tuple[Running, Upstream]]:
    """A server in front of one that takes messages only, and says one word after another."""
    with upstream(lambda number, body: {"content": "7", "finish": "length"}) as found:
        features = Features("theirs", usage=True, limit_field="max_tokens")
        door = Upstreams({found.url: Client(found.url, Access("", 5, 30))}, features)
        model = dataclasses.replace(served(WithoutIds(replies({"q": ["7"]}))), forward=door)
        presets = [PresetSpec("m:refine", "m", "refine")]
        with running(model, presets=presets, auto={"high": "m:refine"}, **options) as server:
            yield server, found


VOTE = {"strategy": "majority", "n": 4}


def test_a_level_of_effort_and_penalties_reach_a_server_that_takes_messages_only_or_are_refused() -> None:
    with messages_only() as (server, found):
        for search in ({"strategy": "direct"}, VOTE):
            body = chat("q", reasoning_effort="high", presence_penalty=0.5, ttc=search)
            assert server.ask(body).status_code == 200
        assert [(asked["reasoning_effort"], asked["presence_penalty"]) for asked in found.asked] == [("high", 0.5)] * 5
        refused = server.ask(chat("q", reasoning_effort="high", ttc={"strategy": "adaptive"}))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reasoning_effort")
        picked = server.ask({**chat("q", reasoning_effort="high"), "model": "auto"}).json()
        assert (picked["ttc"]["routed"]["to"], picked["ttc"]["strategy"]) == ("m:refine", "refine")


@pytest.mark.parametrize(
    ("total", "fields", "draws", "each"),
    [
        (40, {}, 1, 40),
        (40, {"n": 2}, 2, 20),
        (40, {"max_tokens": 30, "n": 2}, 2, 20),
        (40, {"max_tokens": 6}, 1, 6),
        (40, {"ttc": VOTE, "tools": TOOLS}, 4, 10),
        (43, {"ttc": VOTE, "stop": ["x"]}, 4, 10),
    ],
)
def test_a_budget_in_tokens_holds_for_what_is_passed_on(
    total: int, fields: dict[str, Any], draws: int, each: int
) -> None:
    with messages_only() as (server, found):
        body = chat("q", **{**fields, "ttc": {**fields.get("ttc", {}), "max_total_tokens": total}})
        reply = server.ask(body).json()
    assert [asked["max_tokens"] for asked in found.asked] == [each] * draws
    asked = fields.get("max_tokens", each)
    assert reply["ttc"].get("adjusted", {}) == ({} if asked == each else {"max_tokens": {"asked": asked, "used": each}})
    assert reply["ttc"]["stop_cause"] == ("done" if each == 6 else "budget")


def test_budgets_that_cannot_be_held_where_chats_are_passed_on_are_refused() -> None:
    with messages_only() as (server, found):
        counted = server.ask(chat("q", tools=TOOLS, thinking_budget=5)).json()["error"]
        assert counted["param"] == "thinking_budget" and "takes no token ids" in counted["message"]
        refused = server.ask(chat("q", tools=TOOLS, ttc={**VOTE, "max_total_tokens": 3}))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ttc.max_total_tokens")
    assert not found.asked


def test_a_call_that_is_no_json_goes_back_to_the_server_that_wrote_it_and_to_no_model_here(nano: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}
    turns = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "not JSON, try again"},
    ]
    body = {"model": "m", "messages": turns, "tools": TOOLS}
    with messages_only() as (server, found):
        assert server.ask(body).status_code == 200
    assert found.asked[0]["messages"][1]["tool_calls"] == [call]
    refused = nano.ask(body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
    assert "(call c1) are no JSON" in refused.json()["error"]["message"]


def test_the_candidates_of_a_vote_that_is_passed_on_are_told_as_those_of_a_model_here(
    behind: tuple[Running, Upstream],
) -> None:
    server, _ = behind
    search = {**VOTE, "return_candidates": True}
    report = server.ask(chat("add", tools=TOOLS, ttc=search)).json()["ttc"]
    one, other = ('{"arguments":{"a":1,"b":2},"name":"add"}', '{"arguments":{"a":5,"b":5},"name":"add"}')
    assert sorted(row["final"] for row in report["candidates"]) == [one, one, one, other] and report["final"] == one
    assert {row["tool_calls"][0]["function"]["name"] for row in report["candidates"]} == {"add"}
    assert {row["thinking"] for row in report["candidates"]} == {"hm"}
    with messages_only() as (other_server, _):
        plain = other_server.ask(chat("q", reasoning_effort="low", ttc=search)).json()["ttc"]
    assert [(row["text"], row["final"]) for row in plain["candidates"]] == [("7", None)] * 4, "cut, so not final"


def test_a_vote_that_is_passed_on_tells_how_it_stands(behind: tuple[Running, Upstream]) -> None:
    server, _ = behind
    reply = streamed(server, chat("x", response_format={"type": "json_object"}, ttc={**VOTE, "progress": "full"}))
    last = reply["progress"][-1]
    assert (last["nodes_total"], last["live"], last["finished"], last["tokens"]) == (4, 0, 4, 20)
    nodes = {tuple(node["path"]): node for message in reply["progress"] for node in message["nodes"]}
    assert sorted(node["state"] for node in nodes.values()) == ["chosen", *["finished"] * 3]
    assert {node["text"] for node in nodes.values()} <= {'{"x": 1}', '{"x": 2}', '{ "x":2 }'}
    (one,) = streamed(server, chat("x", tools=TOOLS, ttc={"progress": "summary"}))["progress"][-1:]
    assert (one["nodes_total"], one["finished"]) == (1, 1) and "nodes" not in one


def test_the_operators_level_of_effort_is_that_of_chats_that_say_nothing_and_are_passed_through() -> None:
    with messages_only(thinking=ThinkingPolicy(default_effort="low")) as (server, found):
        for fields in ({}, {"tools": TOOLS}, {"reasoning_effort": "high"}, {"enable_thinking": True}):
            assert server.ask(chat("q", **fields)).status_code == 200
    assert [asked.get("reasoning_effort") for asked in found.asked] == ["low", "low", "high", "medium"]


def test_who_is_told_no_log_probabilities_at_all_is_not_first_sent_to_ask_for_fewer() -> None:
    with running(served(WithoutIds(replies({"hi": ["hello"]})))) as server:
        refused = server.ask(chat(logprobs=True, top_logprobs=2)).json()["error"]
    assert (refused["param"], refused["message"].endswith("leave it out")) == ("logprobs", True)
