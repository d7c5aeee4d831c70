"""`POST /v1/messages` on the wire: what is read, what is refused, the order of events, the form of every error."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from serve.operator.config import ServeLimits
from serve.operator.keys import KeyLimits, key_from_secret
from tests.serve.named_events import events, events_of
from tests.serve.running import Running, running, scripted, served
from tests.serve.slow import SlowEngine
from tests.serve.thinker import think
from ttc.engines.scripted import ScriptedEngine

PATH = "/v1/messages"
SECRET = "alice-secret-1"
TABLE = {"hi": ["<think>let me see</think>hello there"], "long": ["<think>" + "x" * 50 + "</think>y"]}


def asked(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": content}], **fields}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(served(scripted(TABLE))) as found:
        yield found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i", "cache_control": {"type": "e"}}]},
        {"system": [{"type": "text", "text": "Be brief."}], "metadata": {"user_id": "u"}, "service_tier": "auto"},
    ],
)
def test_contents_are_texts_or_text_blocks(server: Running, fields: dict[str, Any]) -> None:
    reply = server.ask(asked(**fields), PATH).json()
    thought, said = reply["content"]
    assert (thought["thinking"], said["text"]) == ("let me see", "hello there")
    assert reply["usage"]["output_tokens_details"]["thinking_tokens"] == len("let me see")


def test_stop_sequences_are_as_many_as_agents_send(server: Running) -> None:
    reply = server.ask(asked(stop_sequences=[*"0123456789", "there"]), PATH).json()
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "there")


def test_a_seed_is_read_as_in_every_other_dialect(server: Running) -> None:
    assert server.ask(asked(seed=3), PATH).json()["ttc"]["seed"] == 3
    refusal = server.ask(asked(seed=3, ttc={"seed": 4}), PATH).json()["error"]
    assert refusal["message"] == "seed = 3 and ttc.seed = 4 contradict each other: send one"


def test_an_agent_may_ask_for_earlier_thought_to_be_cleared_and_for_no_other_edit(server: Running) -> None:
    edit = {"type": "clear_thinking_20251015", "keep": "all"}
    assert server.ask(asked(context_management={"edits": [edit]}), PATH).status_code == 200
    refusal = server.ask(asked(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}), PATH).json()
    assert refusal["error"]["param"] == "context_management.edits[0].type"


def test_thought_of_earlier_turns_is_accepted_and_not_read(server: Running) -> None:
    earlier = [{"type": "thinking", "thinking": "old", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [*earlier, {"type": "text", "text": "a"}]},
    ]
    plain = [turns[0], {"role": "assistant", "content": "a"}]
    last = {"role": "user", "content": "hi"}
    counts = [
        server.ask(asked(messages=[*before, last]), PATH).json()["ttc"]["usage"]["prompt"] for before in (turns, plain)
    ]
    assert counts[0] == counts[1]


ENABLED = {"type": "enabled", "budget_tokens": 5}
RESULT = {"type": "tool_result", "tool_use_id": "t"}
BAD = [
    ({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "max_tokens"),
    (asked([{"type": "image", "source": {}}]), "messages[0].content[0].type"),
    (asked([{"type": "text", "text": "x", "source": {}}]), "messages[0].content[0].source"),
    (asked([{"type": "text"}]), "messages[0].content[0].text"),
    (asked([RESULT | {"content": [{"type": "image", "source": {}}]}]), "messages[0].content[0].content[0].type"),
    (asked([RESULT | {"content": [{"type": "text"}]}]), "messages[0].content[0].content[0].text"),
    (asked([RESULT | {"content": 5}]), "messages[0].content[0].content"),
    (asked(tools=[{"name": "f", "input_schema": {}}]), "tools"),
    (asked(thinking={"type": "enabled"}), "thinking.budget_tokens"),
    (asked(thinking={"type": "enabled", "budget_tokens": 100}), "thinking.budget_tokens"),
    (asked(thinking={"type": "adaptive", "budget_tokens": 10}), "thinking.budget_tokens"),
    (asked(thinking={"type": "disabled", "budget_tokens": 10}), "thinking.budget_tokens"),
    (asked(thinking=ENABLED, thinking_budget=6), "thinking.budget_tokens"),
    (asked(output_config={"effort": "low"}, reasoning_effort="high"), "output_config.effort"),
    (asked(output_config={"effort": "low"}, thinking={"type": "disabled"}), "output_config.effort"),
    (asked(output_config={"format": {"type": "json_schema"}}), "output_config.format.schema"),
    (asked(output_config={"format": {"type": "json_schema", "schema": {}, "name": "x"}}), "output_config.format.name"),
    (asked(stop_sequences=[""]), "stop_sequences[0]"),
    (asked(betting=1), "betting"),
    (asked(ttc={"strategy": "nothing"}), "ttc.strategy"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_what_cannot_be_honoured_is_refused_by_name(server: Running, body: dict[str, Any], param: str) -> None:
    response = server.ask(body, PATH)
    assert response.status_code == 400, response.text
    told = response.json()
    assert (told["type"], told["error"]["type"], told["error"]["param"]) == ("error", "invalid_request_error", param)


def test_the_refusal_of_a_thread_tells_anthropics_tool_runner_to_go_on_without_one(server: Running) -> None:
    error = server.ask(asked(thread={"type": "create"}), PATH).json()["error"]
    assert error["param"] == "thread" and "send the whole conversation" in error["message"]
    assert error["details"]["error_code"] == "thread_unsupported_request"
    assert "details" not in server.ask(asked(betting=1), PATH).json()["error"]
    assert server.ask(asked(thread=None), PATH).status_code == 200


def test_effort_goes_by_its_own_name_and_a_budget_holds(server: Running) -> None:
    by_effort = server.ask(asked(output_config={"effort": "low"}), PATH).json()["ttc"]["thinking"]
    assert (by_effort["effort"], by_effort["budget"]) == ("low", 75)
    assert server.ask(asked(thinking=ENABLED), PATH).json()["ttc"]["thinking"]["used"] == 5


def test_the_events_come_in_anthropics_order_and_add_up(server: Running) -> None:
    found = events(server, PATH, asked())
    kinds = [event["type"] for event in found]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    blocks: list[dict[str, Any]] = []
    for event in found[1:-2]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        if event["type"] == "content_block_delta":
            key = event["delta"]["type"].removesuffix("_delta")
            blocks[-1][key] += event["delta"][key]
    whole = server.ask(asked(), PATH).json()
    assert blocks == whole["content"]
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_why_it_ended_is_said(server: Running) -> None:
    cut, stopped = asked("long", max_tokens=20, thinking_budget=-1), asked(stop_sequences=["there"])
    for body, reason, stop in ((cut, "max_tokens", None), (stopped, "stop_sequence", "there")):
        whole, found = server.ask(body, PATH).json(), events(server, PATH, body)
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, stop)
        assert found[-2]["delta"] == {"stop_reason": reason, "stop_sequence": stop}


def test_omitted_thought_is_nowhere(server: Running) -> None:
    for stream in (False, True):
        text = server.ask(asked(thinking={"type": "adaptive", "display": "omitted"}, stream=stream), PATH).text
        assert "let me" not in text and '"thinking":"' not in text


def test_silence_is_filled_by_pings_and_a_failure_is_an_error_event() -> None:
    limits = ServeLimits(request_timeout_s=0.3, heartbeat_s=0.05)
    with running(served(SlowEngine(30)), limits=limits) as server:
        found = events_of(server.ask(asked(stream=True), PATH).text)
    assert [event["type"] for event in found[:2]] == ["message_start", "ping"]
    assert (found[-1]["type"], found[-1]["error"]["type"]) == ("error", "timeout_error")


def test_every_error_is_anthropics_own_whoever_finds_it() -> None:
    keys = [key_from_secret("alice", SECRET, KeyLimits(requests_per_minute=1))]
    with running(served(scripted(TABLE)), keys=keys, limits=ServeLimits(max_body_bytes=300)) as server:
        key = {"x-api-key": SECRET}
        answers = {
            401: server.ask(asked(), PATH),
            413: server.ask(asked("x" * 300), PATH, **key),
            404: server.ask(asked(model="other"), PATH, **key),
            200: server.ask(asked(), PATH, **key),
            429: server.ask(asked(), PATH, **key),
        }
        with server.client() as client:
            answers[405] = client.get(PATH, headers=key)
        server.service.draining = True
        answers[529] = server.ask(asked(), PATH, **key)
        server.service.draining = False
    assert {status: answer.status_code for status, answer in answers.items()} == {status: status for status in answers}
    kinds = {status: answer.json()["error"]["type"] for status, answer in answers.items() if status != 200}
    assert kinds == {
        401: "authentication_error",
        413: "request_too_large",
        404: "not_found_error",
        429: "rate_limit_error",
        405: "invalid_request_error",
        529: "overloaded_error",
    }
    assert answers[429].headers["retry-after"]


COUNTED: dict[str, dict[str, Any]] = {
    "a turn": {},
    "a system prompt": {"system": "Be short."},
    "thought": {"thinking": {"type": "enabled", "budget_tokens": 4}},
    "no thought": {"thinking": {"type": "disabled"}},
    "a conversation": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ]
    },
    "a begun answer": {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]},
}


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    with running(served(ScriptedEngine(think))) as found:
        yield found


@pytest.mark.parametrize("name", COUNTED)
def test_a_count_is_what_the_message_then_costs(thinker: Running, name: str) -> None:
    prompt = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **COUNTED[name]}
    counted = thinker.ask(prompt, "/v1/messages/count_tokens")
    assert counted.status_code == 200
    usage = thinker.ask({**prompt, "max_tokens": 50}, PATH).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


@pytest.mark.parametrize(
    ("name", "value"), [("max_tokens", 50), ("stop_sequences", ["x"]), ("metadata", {}), ("service_tier", "auto")]
)
def test_a_count_refuses_what_only_sampling_takes_and_names_no_other_field(
    server: Running, name: str, value: Any
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], name: value}
    reply = server.ask(body, "/v1/messages/count_tokens")
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", name)
    assert "a count samples nothing" in error["message"] and "did you mean" not in error["message"]


def test_a_count_refuses_as_messages_do_and_has_no_longest_prompt(server: Running) -> None:
    path = "/v1/messages/count_tokens"
    missing = server.ask({"model": "m"}, path)
    assert (missing.status_code, missing.json()["type"]) == (400, "error")
    assert missing.json()["error"]["param"] == "messages"
    other = server.ask({"model": "x", "messages": [{"role": "user", "content": "hi"}]}, path)
    assert (other.status_code, other.json()["error"]["type"]) == (404, "not_found_error")
    with running(served(ScriptedEngine(think, thinking=True, max_context=64))) as small:
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 500}]}
        assert small.ask(body, path).json()["input_tokens"] > 500


def test_anthropics_clients_find_the_id_of_a_request_and_read_the_list_of_models() -> None:
    with running(served(scripted())) as server, server.client() as client:
        ids = {"x-request-id": "abc-1"}
        replies_ = [
            client.post("/v1/messages", json=asked(), headers=ids),
            client.post("/v1/messages", json=asked(max_tokens=0), headers=ids),
        ]
        assert [(one.status_code, one.headers["request-id"]) for one in replies_] == [(200, "abc-1"), (400, "abc-1")]
        listed = client.get("/v1/models").json()
        row = client.get("/v1/models/m").json()
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "m", "m")
    assert (row["type"], row["display_name"]) == ("model", "m") and row in listed["data"]
    assert datetime.fromisoformat(row["created_at"]).timestamp() == row["created"]
