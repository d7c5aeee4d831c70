"""`POST /v1/responses` on the wire: what is read, what is refused, the order of events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serve.operator.config import ServeLimits
from serve.operator.keys import key_from_secret
from tests.serve.named_events import events
from tests.serve.running import Running, running, scripted, served
from tests.serve.slow import SlowEngine
from ttc.core import Path, Prompt
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import simulated
from ttc.scorers.simulated import simulated as simulated_scorer

PATH = "/v1/responses"
THOUGHT = {"hi": ["<think>let me see</think>hello there"], "long": ["<think>" + "x" * 50 + "</think>y"]}


def asked(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": content, **fields}


def message(text: Any = "hi", role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(served(scripted(THOUGHT)), limits=ServeLimits(max_total_tokens=100_000)) as found:
        yield found


@pytest.mark.parametrize(
    "content",
    [
        "hi",
        [message()],
        [message([{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}], type="message")],
        [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text"}]}, message()],
    ],
)
def test_input_is_a_text_or_messages_and_reasoning_is_not_read_again(server: Running, content: Any) -> None:
    reply = server.ask(asked(content, seed=1), PATH).json()
    thought, said = reply["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert said["content"][0] == {"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == len("let me see")
    assert reply["ttc"]["thinking"]["used"] == len("let me see")


BAD = [
    (asked(""), "input"),
    (asked([]), "input"),
    (asked([{"type": "reasoning", "summary": []}]), "input"),
    (asked([{"type": "function_call_output", "output": "x"}]), "input[0].call_id"),
    (asked([{"type": "computer_call"}]), "input[0].type"),
    (asked([{"role": "user"}]), "input[0].content"),
    (asked([{"content": "x"}]), "input[0].role"),
    (asked([message([{"type": "input_file", "file_id": "f"}])]), "input[0].content[0].type"),
    (asked([message([{"type": "input_text"}])]), "input[0].content[0].text"),
    (asked([message(role="tool")]), "input[0].role"),
    (asked([message(other=1)]), "input[0].other"),
    (asked(tools=[{"type": "function", "name": "f"}]), "tools"),
    (asked(tool_choice="required"), "tool_choice"),
    (asked(conversation="c"), "conversation"),
    (asked(prompt={"id": "p"}), "prompt"),
    (asked(previous_response_id="resp_1"), "previous_response_id"),
    (asked([{"type": "item_reference", "id": "msg_1"}, message()]), "input[0].id"),
    (asked(text={"format": {"type": "json_schema", "name": "x", "schema": {}}}), "text.format"),
    (asked(max_output_tokens=0), "max_output_tokens"),
    (asked(reasoning={"effort": "huge"}), "reasoning.effort"),
    (asked(reasoning={"effort": "none"}, thinking_budget=5), "thinking_budget"),
    (asked(metadata={"a": 1}), "metadata"),
    (asked(stream_options={"include_obfuscation": False}), "stream_options"),
    (asked(max_tokens=5), "max_tokens"),
    (asked(n=2), "n"),
    (asked(ttc={"strategy": "majority", "m": 2}), "ttc.m"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=[param for _, param in BAD])
def test_what_cannot_be_honoured_is_refused_by_name(server: Running, body: dict[str, Any], param: str) -> None:
    response = server.ask(body, PATH)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["message"]


def test_the_limit_of_chats_is_told_its_name_here(server: Running) -> None:
    error = server.ask(asked(max_tokens=5), PATH).json()["error"]
    assert error["param"] == "max_tokens" and error["message"].endswith("(use max_output_tokens)")


def test_an_input_that_is_too_long_is_called_input() -> None:
    with running(served(scripted(max_context=200))) as server:
        told = server.ask(asked("x" * 500), PATH).json()["error"]
    assert (told["code"], told["param"]) == ("context_length_exceeded", "input")
    assert told["message"].startswith("input has ")


def test_fields_without_effect_are_accepted(server: Running) -> None:
    idle = {"store": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "truncation": "disabled"}
    more = {"text": {"format": {"type": "text"}}, "service_tier": "auto", "user": "u", "previous_response_id": None}
    assert server.ask(asked(**idle, **more), PATH).status_code == 200


def test_the_events_come_in_the_official_order(server: Running) -> None:
    found = events(server, PATH, asked())
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    kinds = [event["type"].removeprefix("response.") for event in found]
    shown = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert shown == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event["output_index"] for event in found if "output_index" in event] == sorted(
        event["output_index"] for event in found if "output_index" in event
    )


@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "auto"}}, {"include_reasoning": False}])
def test_a_stream_ends_with_the_response_that_is_given_whole(server: Running, fields: dict[str, Any]) -> None:
    body = asked(seed=4, **fields)
    whole, last = server.ask(body, PATH).json(), events(server, PATH, body)[-1]["response"]
    for reply in (whole, last):
        for key in ("id", "created_at", "completed_at"):
            reply.pop(key)
        for item in reply["output"]:
            item.pop("id")
        for usage in (reply["ttc"]["usage"], reply["usage"]):
            usage.pop("cached", None), usage.pop("input_tokens_details", None), usage.pop("flops", None)
    assert whole == last


def test_hidden_thought_is_nowhere(server: Running) -> None:
    text = server.ask(asked(reasoning={"exclude": True}, stream=True), PATH).text
    assert "reasoning_text" not in text and "let me" not in text


def test_a_reply_that_is_cut_is_incomplete_in_both_forms(server: Running) -> None:
    body = asked("long", max_output_tokens=20, thinking_budget=-1)
    whole, found = server.ask(body, PATH).json(), events(server, PATH, body)
    assert found[-1]["type"] == "response.incomplete"
    for reply in (whole, found[-1]["response"]):
        assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert reply["output"][-1]["status"] == "incomplete"
        assert reply["usage"]["output_tokens"] == 20


def test_progress_of_a_search_has_events_of_its_own() -> None:
    model = served(simulated(jitter=2), scorers={"sim": simulated_scorer()})
    with running(model, limits=ServeLimits(progress_interval_s=0.001)) as server:
        found = events(server, PATH, asked("q", ttc={"strategy": "tree", "n": 8, "progress": "full"}))
    told = [event["ttc"] for event in found if event["type"] == "ttc.progress"]
    assert told[-1]["tokens"] == found[-1]["response"]["ttc"]["usage"]["generated"]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


def test_a_failure_in_a_stream_is_a_failed_response() -> None:
    limits = ServeLimits(request_timeout_s=0.3, heartbeat_s=0.05)
    with running(served(SlowEngine(30)), limits=limits) as server:
        response = server.ask(asked(stream=True), PATH)
        assert response.status_code == 200 and ": keep-alive" in response.text
        last = events(server, PATH, asked())[-1]
    assert last["type"] == "response.failed"
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "deadline_exceeded")


def tells_turns(prompt: Prompt, path: Path, key: int) -> str:
    return " | ".join(f"{message.role} {message.content}" for message in prompt.messages)


def text_of_reply(reply: Any) -> str:
    return str(reply["output"][-1]["content"][0]["text"])


@contextlib.contextmanager
def for_two(**limits: Any) -> Iterator[Callable[..., Any]]:
    """A server of two keys; yields what asks it, by default with the key of alice."""
    keys = [key_from_secret(name, f"a-secret-of-{name}") for name in ("alice", "bob")]
    with running(served(ScriptedEngine(tells_turns)), keys=keys, limits=ServeLimits(**limits)) as server:
        yield lambda body, key="alice": server.ask(body, PATH, authorization=f"Bearer a-secret-of-{key}").json()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_continued_with_all_that_came_before_but_its_instructions(stream: bool) -> None:
    with running(served(ScriptedEngine(tells_turns))) as server:
        body = asked("one", instructions="be kind")
        reply = events(server, PATH, body)[-1]["response"] if stream else server.ask(body, PATH).json()
        second = server.ask(asked("two", previous_response_id=reply["id"]), PATH).json()
        third = server.ask(asked("three", previous_response_id=second["id"]), PATH).json()
    said = text_of_reply(reply)
    assert reply["store"] and second["previous_response_id"] == reply["id"]
    assert text_of_reply(second) == f"user one | assistant {said} | user two"
    assert text_of_reply(third) == f"{text_of_reply(second)} | assistant {text_of_reply(second)} | user three"


def test_what_is_stored_belongs_to_its_key_and_can_be_left_out() -> None:
    with for_two() as ask:
        reply, kept_out = ask(asked("one")), ask(asked("one", store=False))
        reference = {"type": "item_reference", "id": reply["output"][-1]["id"]}
        for key, body, code in (
            ("bob", asked("two", previous_response_id=reply["id"]), "previous_response_not_found"),
            ("bob", asked([reference, message("two")]), "item_not_found"),
            ("alice", asked("two", previous_response_id=kept_out["id"]), "previous_response_not_found"),
        ):
            error = ask(body, key)["error"]
            assert error["code"] == code and "send the whole conversation as input" in error["message"]
        assert "output" in ask(asked([reference, message("two")]))
    assert not kept_out["store"]


def test_the_oldest_response_is_forgotten_for_newer_ones_and_items_with_the_last_that_holds_them() -> None:
    with for_two(stored_bytes=15_000) as ask:
        first = ask(asked("x" * 50))
        second = ask(asked("y" * 50, previous_response_id=first["id"]))
        reference = {"type": "item_reference", "id": first["output"][-1]["id"]}
        assert ask(asked("z", previous_response_id=first["id"], store=False))["output"]
        while "error" not in ask(asked("z", previous_response_id=first["id"], store=False)):
            ask(asked("other", store=True))
        assert "output" in ask(asked("z", previous_response_id=second["id"], store=False))
        assert "output" in ask(asked([reference, message("z")], store=False)), "the second response holds it, too"
        for _ in range(9):
            ask(asked("other"))
        assert ask(asked([reference, message("z")]))["error"]["code"] == "item_not_found"


def test_a_server_that_stores_nothing_says_so_and_answers_who_did_not_ask_for_it() -> None:
    with for_two(stored_bytes=0) as ask:
        assert ask(asked("one"))["store"] is False
        for body, field in ((asked(store=True), "store"), (asked(previous_response_id="r"), "previous_response_id")):
            error = ask(body)["error"]
            assert error["param"] == field and "limits.stored_bytes" in error["message"]
