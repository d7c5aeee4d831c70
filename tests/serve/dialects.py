"""One request in the words of each dialect, and its reply, whole or streamed, in words of our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.serve.named_events import events_of
from tests.serve.streams import chunks_of


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked; `call` is auto, required or the name of the one function."""

    text: str
    budget: int | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    call: str = "auto"
    schema: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()
    begun: str = ""
    choices: int = 1
    votes: int = 0
    hidden: bool = False
    max_tokens: int = 900

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation."""
        return [{"role": "user", "content": self.text}, *([_assistant(self.begun)] if self.begun else [])]

    @property
    def shared(self) -> dict[str, Any]:
        """What every dialect calls the same."""
        body: dict[str, Any] = {"model": "m"}
        body |= {} if self.budget is None else {"thinking_budget": self.budget}
        body |= {"include_reasoning": False} if self.hidden else {}
        search = {"seed": 5, **({"strategy": "majority", "n": self.votes} if self.votes else {})}
        return body | {"ttc": search, "temperature": 1}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True, slots=True)
class Told:
    """What came back; counts are those of the whole request, `parts` one text and its calls for each choice."""

    thoughts: tuple[str, ...]
    parts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    prompt: int
    completion: int
    reasoning: int
    ttc: Mapping[str, Any]


def chat_body(wish: Wish) -> dict[str, Any]:
    """As OpenAI's chat has it."""
    named = {"type": "function", "function": {"name": wish.call}}
    body = wish.shared | {"messages": wish.turns, "max_tokens": wish.max_tokens, "n": wish.choices}
    body |= {"stop": list(wish.stop)} if wish.stop else {}
    if wish.tools:
        choice = wish.call if wish.call in ("auto", "required") else named
        body |= {"tools": [{"type": "function", "function": dict(tool)} for tool in wish.tools], "tool_choice": choice}
    if wish.schema is not None:
        held = {"name": "answer", "schema": wish.schema, "strict": True}
        body |= {"response_format": {"type": "json_schema", "json_schema": held}}
    return body


def responses_body(wish: Wish) -> dict[str, Any]:
    """As OpenAI's Responses has it."""
    body = wish.shared | {"input": wish.turns, "max_output_tokens": wish.max_tokens}
    body |= {"stop": list(wish.stop)} if wish.stop else {}
    if wish.tools:
        choice = wish.call if wish.call in ("auto", "required") else {"type": "function", "name": wish.call}
        body |= {"tools": [{"type": "function", **tool} for tool in wish.tools], "tool_choice": choice}
    if wish.schema is not None:
        held = {"type": "json_schema", "name": "answer", "schema": wish.schema, "strict": True}
        body |= {"text": {"format": held}}
    return body


def messages_body(wish: Wish) -> dict[str, Any]:
    """As Anthropic's Messages has it."""
    body = wish.shared | {"messages": wish.turns, "max_tokens": wish.max_tokens}
    body |= {"stop_sequences": list(wish.stop)} if wish.stop else {}
    if wish.tools:
        choice = {"auto": {"type": "auto"}, "required": {"type": "any"}}.get(wish.call, {"type": "tool"})
        choice |= {"name": wish.call} if choice["type"] == "tool" else {}
        names = {"name": "name", "description": "description", "input_schema": "parameters"}
        tools = [{ours: tool[own] for ours, own in names.items()} for tool in wish.tools]
        body |= {"tools": tools, "tool_choice": choice}
    if wish.schema is not None:
        body |= {"output_config": {"format": {"type": "json_schema", "schema": wish.schema}}}
    return body


def _counts(usage: Mapping[str, Any], prompt: str, completion: str, details: str) -> dict[str, int]:
    return {"prompt": usage[prompt], "completion": usage[completion], "reasoning": usage[details]["reasoning_tokens"]}


def chat_reply(reply: Mapping[str, Any]) -> Told:
    """A whole chat completion."""
    messages = [choice["message"] for choice in reply["choices"]]
    return Told(
        tuple(message.get("reasoning") or "" for message in messages),
        tuple((message["content"], _calls(message.get("tool_calls") or ())) for message in messages),
        **_counts(reply["usage"], "prompt_tokens", "completion_tokens", "completion_tokens_details"),
        ttc=reply["ttc"],
    )


def _calls(calls: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls)


def chat_stream(text: str) -> Told:
    """A streamed one."""
    messages: dict[int, dict[str, Any]] = {}
    last: dict[str, Any] = {}
    for chunk in chunks_of(text):
        last |= {name: chunk[name] for name in ("ttc", "usage") if chunk.get(name)}
        for part in chunk["choices"]:
            message = messages.setdefault(part["index"], {"content": "", "reasoning": "", "tool_calls": []})
            for name in ("content", "reasoning"):
                message[name] += part["delta"].get(name) or ""
            message["tool_calls"] += part["delta"].get("tool_calls") or []
    return chat_reply({**last, "choices": [{"message": messages[index]} for index in sorted(messages)]})


def responses_reply(reply: Mapping[str, Any]) -> Told:
    """A whole response."""
    items = reply["output"]
    said = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    thought = "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"])
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return Told(
        (thought,),
        ((said, tuple(calls)),),
        **_counts(reply["usage"], "input_tokens", "output_tokens", "output_tokens_details"),
        ttc=reply["ttc"],
    )


def responses_stream(text: str) -> Told:
    """A streamed one: its last event, whose texts must be those of the deltas."""
    told = events_of(text)
    whole = responses_reply(told[-1]["response"])
    deltas = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert deltas == whole.parts[0][0]
    return whole


def messages_reply(reply: Mapping[str, Any]) -> Told:
    """A whole message."""
    blocks, usage = reply["content"], reply["usage"]
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return Told(
        ("".join(block["thinking"] for block in blocks if block["type"] == "thinking"),),
        (("".join(block["text"] for block in blocks if block["type"] == "text"), tuple(calls)),),
        prompt=usage["input_tokens"] + usage["cache_read_input_tokens"],
        completion=usage["output_tokens"],
        reasoning=usage["output_tokens_details"]["thinking_tokens"],
        ttc=reply["ttc"],
    )


def messages_stream(text: str) -> Told:
    """A streamed one, put together."""
    blocks: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for event in events_of(text):
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        if event["type"] == "content_block_delta":
            for own, name in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                if own in event["delta"]:
                    blocks[-1][name] += event["delta"][own]
        if event["type"] == "message_delta":
            last = event
    content = [block | ({"input": json.loads(block["json"])} if block["json"] else {}) for block in blocks]
    return messages_reply({"content": content, "usage": last["usage"], "ttc": last["ttc"]})


@dataclass(frozen=True, slots=True)
class Wire:
    """How one dialect is spoken."""

    path: str
    body: Callable[[Wish], dict[str, Any]]
    reply: Callable[[Mapping[str, Any]], Told]
    stream: Callable[[str], Told]
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a stream is asked with."""

    def asked(self, wish: Wish, streamed: bool) -> dict[str, Any]:
        """The body of a request."""
        return self.body(wish) | ({"stream": True, **self.options} if streamed else {})


USAGE = {"stream_options": {"include_usage": True}}
WIRES = {
    "chat": Wire("/v1/chat/completions", chat_body, chat_reply, chat_stream, USAGE),
    "responses": Wire("/v1/responses", responses_body, responses_reply, responses_stream),
    "messages": Wire("/v1/messages", messages_body, messages_reply, messages_stream),
}
