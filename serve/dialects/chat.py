"""`POST /v1/chat/completions`: OpenAI's chat completions, with thinking and search as further fields.

Thought goes out as both `reasoning` and `reasoning_content`, since clients read one or the other; `content` is never
null. What happened is in the top-level `ttc` object: of the reply, or of the chunk that ends the last choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.dialects._chunks import USAGE, ChunkStream, body_of
from serve.requests.errors import invalid
from serve.requests.fields import SHARED, max_tokens_of, sampling_of, text_of
from serve.requests.request import ServeRequest
from serve.requests.schema import Schema, described, nullable, without_nulls
from serve.requests.search import read_search
from serve.requests.thinking import read_thinking
from serve.running.events import Finish, Outcome, Started, TokenLogprob
from ttc.core import Message

__all__ = ["RESULT", "Stream", "parse", "reply", "schema"]

ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLES = {"developer": "system"}
FORWARDED = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
"""What only a server behind can do (see `serve.running.forward`)."""

_CONTENT: Schema = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "text"],
                "properties": {
                    "type": {"type": "string", "enum": ["text"], "x-reason": "this server reads text only"},
                    "text": {"type": "string"},
                },
            },
        },
        {"type": "null"},
    ]
}
_TOOL_CALLS: Schema = nullable(
    {
        "type": "array",
        "maxItems": 128,
        "items": {
            "type": "object",
            "required": ["id", "type", "function"],
            "properties": {
                "id": {"type": "string"},
                "type": {"type": "string", "enum": ["function"]},
                "function": {
                    "type": "object",
                    "required": ["name", "arguments"],
                    "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
                },
            },
        },
    }
)
_MESSAGE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["role"],
    "properties": {
        "role": {"type": "string", "enum": list(ROLES)},
        "content": _CONTENT,
        "name": described(nullable({"type": "string"}), "No effect."),
        "reasoning": described(nullable({"type": "string"}), "No effect: thought of earlier turns is not read again."),
        "reasoning_content": described(nullable({"type": "string"}), "No effect, like reasoning."),
        "refusal": nullable({"type": "string"}),
        "tool_calls": _TOOL_CALLS,
        "tool_call_id": nullable({"type": "string"}),
    },
}
_TOKENS: Schema = nullable({"type": "integer", "minimum": 1, "maximum": 1 << 31})


RESULT: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "ttc"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "usage": USAGE,
        "ttc": {"type": "object", "required": ["type", "strategy", "thinking", "usage", "seed", "stop_cause"]},
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "message", "logprobs", "finish_reason"],
                "properties": {
                    "index": {"type": "integer"},
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                    "message": {
                        "type": "object",
                        "required": ["role", "content", "refusal"],
                        "properties": {"role": {"const": "assistant"}, "content": {"type": "string"}},
                    },
                },
            },
        },
    },
}
"""What a reply is sure to have, by OpenAI's own schema and ours."""


def schema(ttc: Schema) -> dict[str, Any]:
    """The schema of a request; `ttc` is that of the search object."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "messages"],
        "properties": {
            "messages": {"type": "array", "minItems": 1, "maxItems": 4096, "items": _MESSAGE},
            **SHARED,
            "max_tokens": _TOKENS,
            "max_completion_tokens": described(_TOKENS, "Most tokens of a choice, thought included."),
            "logprobs": nullable({"type": "boolean"}),
            "top_logprobs": described(
                nullable({"type": "integer", "minimum": 0, "maximum": 20}),
                "Of each token of the answer, with logprobs; refused by models whose engine does not tell.",
            ),
            "modalities": nullable({"type": "array", "items": {"type": "string", "enum": ["text"]}}),
            "audio": {"type": "null", "x-reason": "this server writes text only"},
            "prediction": {"type": "null", "x-reason": "predicted outputs are not supported"},
            "web_search_options": {"type": "null", "x-reason": "this server does not search the web"},
            "functions": {"type": "null", "x-reason": "use tools"},
            "function_call": {"type": "null", "x-reason": "use tool_choice"},
            "tools": nullable({"type": "array", "maxItems": 128, "items": {"type": "object"}}),
            "tool_choice": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
            "parallel_tool_calls": nullable({"type": "boolean"}),
            "response_format": nullable(
                {
                    "type": "object",
                    "required": ["type"],
                    "properties": {
                        "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
                        "json_schema": nullable({"type": "object"}),
                    },
                }
            ),
            "ttc": nullable(ttc),
        },
    }


def parse(body: Mapping[str, Any]) -> ServeRequest:
    """Translate a checked body.

    Raises:
        ApiError: fields that contradict each other.
    """
    max_tokens, name = max_tokens_of(body, ("max_completion_tokens", "max_tokens"))
    seed = body.get("seed")
    return ServeRequest(
        model=body["model"],
        messages=tuple(
            Message(_ROLES.get(message["role"], message["role"]), text_of(message.get("content")))
            for message in body["messages"]
        ),
        num_choices=body.get("n") or 1,
        stream=bool(body.get("stream")),
        sampling=sampling_of(body, max_tokens, name),
        thinking=read_thinking(body),
        search=read_search(body.get("ttc"), None if seed is None else abs(seed)),
        logprobs=_logprobs(body),
        top_logprobs=body.get("top_logprobs") or 0,
        return_token_ids=bool(body.get("return_token_ids")),
        forward=_forward(body),
    )


def _logprobs(body: Mapping[str, Any]) -> bool:
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise invalid("top_logprobs", "top_logprobs needs logprobs = true")
    return bool(body.get("logprobs"))


def _forward(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a server behind must see, with the messages as they came; empty when there is none."""
    given = {name: body[name] for name in FORWARDED if body.get(name) not in (None, [])}
    if (given.get("response_format") or {}).get("type") == "text":
        del given["response_format"]
    if "tools" not in given:
        given = {name: value for name, value in given.items() if name == "response_format"}
    turns = [message for message in body["messages"] if message.get("tool_calls") or message["role"] == "tool"]
    if not given and not turns:
        return {}
    return {**given, "messages": [without_nulls(message) for message in body["messages"]]}


def reply(request: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """The body of a reply that is not streamed; nothing of the checked `request` is repeated in it."""
    head = _head(outcome.started, "chat.completion")
    return body_of(outcome, head, [_choice(finish) for finish in outcome.choices])


def _head(started: Started, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{started.id}", "object": kind, "created": started.created, "model": started.model}


def _choice(finish: Finish) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": finish.answer, "refusal": None}
    if finish.thinking:
        message |= {"reasoning": finish.thinking, "reasoning_content": finish.thinking}
    if finish.tool_calls:
        message["tool_calls"] = list(finish.tool_calls)
    choice = {
        "index": finish.index,
        "message": message,
        "logprobs": _logprob_object(finish),
        "finish_reason": finish.reason,
    }
    if finish.token_ids is not None:
        choice["token_ids"] = finish.token_ids
    return choice


def _logprob_object(finish: Finish) -> dict[str, Any] | None:
    if finish.logprobs is None:
        return None
    content = [{**_token(item), "top_logprobs": [_token(other) for other in item.top]} for item in finish.logprobs]
    return {"content": content, "refusal": None}


def _token(item: TokenLogprob) -> dict[str, Any]:
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode())}


class Stream(ChunkStream):
    """Chunks of a chat; tool calls come whole, in the chunk that ends their choice."""

    def head(self, started: Started) -> Mapping[str, Any]:
        """See `ChunkStream`."""
        return _head(started, "chat.completion.chunk")

    def first(self, index: int) -> dict[str, Any]:
        """See `ChunkStream`."""
        return _delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """See `ChunkStream`."""
        thought = {"reasoning": thinking, "reasoning_content": thinking} if thinking else {}
        return _delta(index, {**thought, **({"content": answer} if answer else {})})

    def end(self, finish: Finish) -> dict[str, Any]:
        """See `ChunkStream`."""
        calls = [{"index": i, **call} for i, call in enumerate(finish.tool_calls)]
        choice = _delta(finish.index, {"tool_calls": calls} if calls else {})
        choice |= {"finish_reason": finish.reason, "logprobs": _logprob_object(finish)}
        return choice if finish.token_ids is None else {**choice, "token_ids": finish.token_ids}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
