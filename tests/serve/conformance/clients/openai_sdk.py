"""openai: chats, tools, `parse` and streaming helpers, Chat and Responses; raw completions and a budget."""

from __future__ import annotations

import json
import os
from typing import Any

import openai
from pydantic import BaseModel

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
MESSAGES_ONLY = os.environ.get("TTC_SERVE_PLACE") == "messages"
ASKED: Any = {"model": MODEL, "messages": [{"role": "user", "content": "3+4"}]}
RESULT = "12 degrees"


class Weather(BaseModel):
    """Tell the weather of a city."""

    city: str
    days: int


def chats(client: openai.OpenAI) -> None:
    reply: Any = client.chat.completions.create(**ASKED)
    assert "7" in reply.choices[0].message.content and reply.choices[0].message.reasoning
    assert reply.usage.completion_tokens > reply.usage.completion_tokens_details.reasoning_tokens > 0
    with client.chat.completions.stream(**ASKED, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == reply.choices[0].message.content
    assert final.usage is not None and final.usage.completion_tokens == reply.usage.completion_tokens
    typed = client.chat.completions.parse(**ASKED, response_format=Weather).choices[0].message.parsed
    assert isinstance(typed, Weather), typed
    try:
        client.chat.completions.create(**ASKED, extra_body={"thinking_budgit": 4})
    except openai.BadRequestError as error:
        assert (error.code, error.param) == ("unknown_parameter", "thinking_budgit")
    else:
        raise AssertionError("a field that nobody knows was taken")


def tools(client: openai.OpenAI) -> None:
    asked: Any = {**ASKED, "tools": [openai.pydantic_function_tool(Weather)]}
    for choice in ("auto", "required", {"type": "function", "function": {"name": "Weather"}}):
        message = client.chat.completions.parse(**asked, tool_choice=choice).choices[0].message
        (call,) = message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, Weather), call
    with client.chat.completions.stream(**asked) as stream:
        events: list[Any] = list(stream)
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert (done.name, json.loads(done.arguments)["city"]) == ("Weather", "Paris"), done
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    turns: Any = [*ASKED["messages"], message.model_dump(exclude_none=True), result]
    assert client.chat.completions.create(**{**asked, "messages": turns}).choices[0].message.content


def responses(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "3+4"}
    reply = client.responses.create(**asked)
    assert (reply.status, [item.type for item in reply.output]) == ("completed", ["reasoning", "message"])
    with client.responses.stream(**asked) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert deltas == stream.get_final_response().output_text == reply.output_text
    typed = client.responses.parse(**asked, text_format=Weather)
    assert isinstance(typed.output_parsed, Weather), typed
    asked["tools"] = [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}]
    called = client.responses.parse(**asked, tool_choice="required")
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert Weather.model_validate(call.parsed_arguments).city == "Paris", call
    with client.responses.stream(**asked, tool_choice="required") as stream:
        (done,) = [event for event in stream if event.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments)["city"] == "Paris", done
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    said = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in called.output]
    items = [{"role": "user", "content": "3+4"}, *said, result]
    assert client.responses.create(**{**asked, "input": items}).output_text


def on_ids(client: openai.OpenAI) -> None:
    """What a server of messages behind refuses by name."""
    held: Any = client.chat.completions.create(**ASKED, extra_body={"thinking_budget": 4})
    assert held.usage.completion_tokens_details.reasoning_tokens == 4
    typed: Any = client.chat.completions.parse(**ASKED, response_format=Weather, extra_body={"thinking_budget": 4})
    assert isinstance(typed.choices[0].message.parsed, Weather)
    assert typed.usage.completion_tokens_details.reasoning_tokens == 4
    assert client.completions.create(model=MODEL, prompt="3+4", max_tokens=9).choices[0].text


def main() -> None:
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
        assert MODEL in [model.id for model in client.models.list()]
        for part in (chats, tools, responses, *(() if MESSAGES_ONLY else (on_ids,))):
            part(client)


main()
