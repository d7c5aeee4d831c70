"""The official `anthropic` SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")
MODEL = "nano-teacher"
ASKED: Any = {"model": MODEL, "max_tokens": 300, "messages": [{"role": "user", "content": "12+30*2"}]}


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as found:
        yield found


def test_a_message_has_a_thought_an_answer_and_its_usage(client: Any) -> None:
    reply = client.messages.create(**ASKED, thinking={"type": "enabled", "budget_tokens": 200})
    thought, answer = reply.content
    assert thought.type == "thinking" and thought.thinking and thought.signature
    assert answer.type == "text" and answer.text
    assert (reply.stop_reason, reply.role, reply.type) == ("end_turn", "assistant", "message")
    assert 0 < reply.usage.output_tokens_details.thinking_tokens < reply.usage.output_tokens
    assert reply.usage.input_tokens > 0
    assert reply._request_id is None or reply._request_id


def test_the_budget_of_thinking_holds(client: Any) -> None:
    reply = client.messages.create(**ASKED, thinking={"type": "enabled", "budget_tokens": 5})
    assert reply.usage.output_tokens_details.thinking_tokens == 5 == reply.ttc["thinking"]["used"]


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [({"type": "disabled"}, False), ({"type": "adaptive"}, True), ({"type": "adaptive", "display": "omitted"}, True)],
)
def test_the_switch_of_thinking(client: Any, thinking: Any, thinks: bool) -> None:
    reply = client.messages.create(**ASKED, thinking=thinking)
    assert bool(reply.usage.output_tokens_details.thinking_tokens) == thinks
    shown = thinks and "display" not in thinking
    assert [block.type for block in reply.content] == (["thinking", "text"] if shown else ["text"])


def test_what_came_out_goes_back_in(client: Any) -> None:
    first = client.messages.create(**ASKED)
    turns = [*ASKED["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": "1+1"}]
    reply = client.messages.create(model=MODEL, max_tokens=300, messages=turns, system="Be brief.")
    assert reply.content[-1].text


def test_a_stream_adds_up_to_the_whole_message(client: Any) -> None:
    search = {"ttc": {"seed": 1}}
    whole = client.messages.create(**ASKED, extra_body=search)
    with client.messages.stream(**ASKED, extra_body=search) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    ours, theirs = (reply.usage.input_tokens + reply.usage.cache_read_input_tokens for reply in (final, whole))
    assert ours == theirs
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert {"thinking", "signature", "text"} <= set(kinds)


def test_progress_and_the_result_of_a_search_are_in_the_stream(client: Any) -> None:
    search = {"ttc": {"strategy": "tree", "n": 8, "progress": "full", "seed": 1}}
    events = list(client.messages.create(**ASKED, extra_body=search, stream=True))
    told = [event.ttc for event in events if event.type == "ttc.progress"]
    assert told and told[-1]["nodes"]
    (result,) = [event.ttc for event in events if event.type == "message_delta"]
    assert result["strategy"] == "tree"
    with client.messages.stream(**ASKED, extra_body=search) as stream:
        assert stream.get_final_text()


def test_a_stop_sequence_is_named(client: Any) -> None:
    whole = client.messages.create(**ASKED, extra_body={"ttc": {"seed": 1}}).content[-1].text
    stop = whole.strip()[2:4]
    reply = client.messages.create(**ASKED, stop_sequences=[stop], extra_body={"ttc": {"seed": 1}})
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)
    assert stop not in reply.content[-1].text


def test_a_message_cut_by_its_tokens_says_so(client: Any) -> None:
    asked = {**ASKED, "max_tokens": 8}
    assert client.messages.create(**asked, thinking={"type": "disabled"}).stop_reason in ("max_tokens", "end_turn")
    assert client.messages.create(**asked, extra_body={"thinking_budget": -1}).stop_reason == "max_tokens"


def test_errors_become_the_sdks_own(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ASKED, extra_body={"top_p": 7})  # no parameter of newer clients
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert refused.value.body["error"]["message"].startswith("top_p")
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**ASKED, "model": "other"})
    assert missing.value.body["error"]["type"] == "not_found_error"
