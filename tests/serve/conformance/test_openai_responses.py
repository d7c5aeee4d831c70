"""The official `openai` SDK on `client.responses`, 2.x and 3.x."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

MODEL, QUESTION = "nano-teacher", "12+30*2"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_response_has_a_thought_a_message_and_its_usage(client: openai.OpenAI) -> None:
    reply = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=300, extra_body={"seed": 1})
    assert reply.status == "completed" and reply.output_text
    reasoning, message = reply.output
    assert reasoning.type == "reasoning" and reasoning.content and not reasoning.summary
    assert message.type == "message" and message.status == "completed"
    usage = reply.usage
    assert usage is not None and 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_what_came_out_goes_back_in(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.", metadata={"k": "v"})
    assert (first.instructions, first.metadata) == ("Be brief.", {"k": "v"})
    turns: Any = [
        {"role": "user", "content": QUESTION},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": [{"type": "input_text", "text": "1+1"}]},
    ]
    assert client.responses.create(model=MODEL, input=turns).output_text


@pytest.mark.parametrize("summary", [None, "auto"])
def test_a_stream_adds_up_to_the_whole_response(client: openai.OpenAI, summary: Any) -> None:
    asked: Any = {"model": MODEL, "input": QUESTION, "extra_body": {"seed": 3}, "max_output_tokens": 300}
    if summary is not None:
        asked["reasoning"] = {"summary": summary}
    whole = client.responses.create(**asked)
    texts, thoughts, numbers, kinds = "", "", [], []
    for event in client.responses.create(**asked, stream=True):
        numbers.append(event.sequence_number)
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            texts += event.delta
        if event.type in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            thoughts += event.delta  # type: ignore[union-attr]
    assert numbers == list(range(len(numbers)))
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    item: Any = whole.output[0]
    assert thoughts == (item.content if summary is None else item.summary)[0].text
    assert texts == whole.output_text
    assert ("response.reasoning_summary_text.done" in kinds) == (summary is not None)


def test_the_stream_helper_puts_the_response_together(client: openai.OpenAI) -> None:
    search = {"ttc": {"strategy": "tree", "n": 8, "progress": "full", "seed": 1}}
    with client.responses.stream(model=MODEL, input=QUESTION, extra_body=search) as stream:
        events: list[Any] = list(stream)
        final: Any = stream.get_final_response()
    told = [event.ttc for event in events if event.type == "ttc.progress"]
    assert told and told[-1]["nodes"]
    assert final.ttc["strategy"] == "tree" and final.ttc["final"] in final.output_text


@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_effort_is_a_parameter(client: openai.OpenAI, effort: Any) -> None:
    reply: Any = client.responses.create(model=MODEL, input=QUESTION, reasoning={"effort": effort})
    assert (reply.usage.output_tokens_details.reasoning_tokens == 0) == (effort == "none")
    assert [item.type for item in reply.output] == (["message"] if effort == "none" else ["reasoning", "message"])
    assert reply.reasoning.effort == effort


def test_a_budget_holds_and_a_reply_cut_by_its_tokens_is_incomplete(client: openai.OpenAI) -> None:
    held: Any = client.responses.create(model=MODEL, input=QUESTION, extra_body={"thinking_budget": 5})
    assert held.ttc["thinking"]["used"] == 5 == held.usage.output_tokens_details.reasoning_tokens
    cut = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4, extra_body={"thinking_budget": -1})
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"


def test_what_is_not_supported_is_refused_by_name(client: openai.OpenAI) -> None:
    refused: list[tuple[str, Any]] = [
        ("previous_response_id", "resp_1"),
        ("background", True),
        ("tools", [{"type": "web_search"}]),
        ("include", ["message.output_text.logprobs"]),
        ("truncation", "auto"),
    ]
    for name, value in refused:
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model=MODEL, input=QUESTION, **{name: value})
        assert str(error.value.param).partition("[")[0] == name
    picture: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=MODEL, input=picture)
    assert error.value.param == "input[0].content[0].type"
