"""anthropic: messages with their thought, tools, their results and the tool runner, a schema; streamed and not."""

from __future__ import annotations

import json
import os
from typing import Any

import anthropic

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
MESSAGES_ONLY = os.environ.get("TTC_SERVE_PLACE") == "messages"
ASKED: Any = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "3+4"}]}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}]


def plain(client: anthropic.Anthropic) -> None:
    reply: Any = client.messages.create(**ASKED)
    assert [block.type for block in reply.content] == ["thinking", "text"] and "7" in reply.content[1].text
    with client.messages.stream(**ASKED) as stream:
        kinds = {event.type for event in stream}
        final: Any = stream.get_final_message()
    assert {"message_start", "thinking", "text", "message_stop"} <= kinds, kinds
    assert final.content[1].text == reply.content[1].text
    assert final.usage.output_tokens == reply.usage.output_tokens > 0
    typed: Any = client.messages.create(**ASKED, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert json.loads(typed.content[-1].text)["city"] == "Paris", typed


def tools(client: anthropic.Anthropic) -> None:
    asked: Any = {**ASKED, "tools": TOOLS}
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}):
        reply: Any = client.messages.create(**asked, tool_choice=choice)
        assert (reply.stop_reason, reply.content[-1].type) == ("tool_use", "tool_use"), reply
        with client.messages.stream(**asked, tool_choice=choice) as stream:
            (block,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
        assert (block.name, block.input) == ("weather", reply.content[-1].input), block
    result = {"type": "tool_result", "tool_use_id": reply.content[-1].id, "content": "12 degrees"}
    turns = [*ASKED["messages"], {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    last: Any = client.messages.create(**{**asked, "messages": turns})
    assert last.stop_reason == "end_turn" and last.content[-1].text, last


def runner(client: anthropic.Anthropic) -> None:
    """The library's own loop, which asks for a thread that the server would keep, and goes on without one."""

    @anthropic.beta_tool
    def weather(city: str, days: int) -> str:
        """Tell the weather."""
        return "12 degrees"

    runs: Any = client.beta.messages.tool_runner(**ASKED, tools=[weather])
    last = runs.until_done()
    assert last.stop_reason == "end_turn" and last.content[-1].text, last


def on_ids(client: anthropic.Anthropic) -> None:
    """What a server of messages behind refuses by name."""
    asked: Any = {**ASKED, "tools": TOOLS, "tool_choice": {"type": "any"}}
    held: Any = client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 4})
    assert (held.ttc["thinking"]["used"], held.content[-1].type) == (4, "tool_use"), held
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"], tools=TOOLS).input_tokens
    assert counted > client.messages.count_tokens(model=MODEL, messages=ASKED["messages"]).input_tokens > 0


def main() -> None:
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0) as client:
        for part in (plain, tools, runner, *(() if MESSAGES_ONLY else (on_ids,))):
            part(client)


main()
