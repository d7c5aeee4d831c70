"""`POST /v1/responses`: the text part of OpenAI's Responses, without state: what a request holds is all there is.

`input` is a text or a list of messages; `instructions` is the system message before them. What came out of an earlier
reply can be sent back as it is: messages are read, reasoning items are not read again. The reply is made in
`serve.dialects.responses_reply`.

Left out, and refused by name: stored responses and conversations, tools, images and files, background runs, JSON
formats, templates of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.requests.errors import ApiError, invalid
from serve.requests.fields import IGNORED, SHARED, max_tokens_of, sampling_of, stream_options, text_of
from serve.requests.request import ServeRequest
from serve.requests.schema import Schema, described, nullable, read
from serve.requests.search import read_search
from serve.requests.thinking import FIELDS as THINKING
from serve.requests.thinking import read_thinking
from ttc.core import Message

__all__ = ["parse", "schema"]

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
STATELESS = "this server keeps nothing between requests: send the whole conversation as input"
MAX_METADATA = 16
_TAKEN = ("model", "temperature", "top_p", "top_k", "seed", "stop", "stream", "frequency_penalty", "presence_penalty")
_STATUS: Schema = nullable({"type": "string", "enum": ["in_progress", "completed", "incomplete"]})
_TEXT_PART: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "additionalProperties": False,
    "properties": {
        "type": {
            "type": "string",
            "enum": ["input_text", "output_text", "text"],
            "x-reason": "this server reads text only",
        },
        "text": {"type": "string"},
        "annotations": nullable({"type": "array"}),
        "logprobs": nullable({"type": "array"}),
    },
}
_ITEM: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "type": {
            "type": "string",
            "enum": ["message", "reasoning"],
            "x-reason": "of the kinds of items only messages are read, and reasoning is accepted",
        },
        "role": {"type": "string", "enum": list(ROLES)},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
        "id": nullable({"type": "string"}),
        "status": _STATUS,
        "phase": described(nullable({"type": "string"}), "No effect."),
        "summary": described({"type": "array"}, "Of a reasoning item; not read again."),
        "encrypted_content": described(nullable({"type": "string"}), "Of a reasoning item; not read again."),
    },
}


def _absent(reason: str) -> dict[str, Any]:
    return {"type": "null", "x-reason": reason}


def schema(ttc: Schema) -> dict[str, Any]:
    """The schema of a request; `ttc` is that of the search object."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "input"],
        "properties": {
            "input": {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "minItems": 1, "maxItems": 4096, "items": _ITEM},
                ]
            },
            "instructions": nullable({"type": "string"}),
            **{name: SHARED[name] for name in _TAKEN},
            "max_output_tokens": described(
                nullable({"type": "integer", "minimum": 1, "maximum": 1 << 31}), "Most tokens, thought included."
            ),
            "stream_options": nullable(
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"include_obfuscation": nullable({"type": "boolean"})},
                }
            ),
            **THINKING,
            **IGNORED,
            "text": nullable(
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "format": nullable(
                            {
                                "type": "object",
                                "required": ["type"],
                                "properties": {
                                    "type": {
                                        "type": "string",
                                        "enum": ["text"],
                                        "x-reason": "formats go with /v1/chat/completions only",
                                    }
                                },
                            }
                        ),
                        "verbosity": IGNORED["verbosity"],
                    },
                }
            ),
            "store": nullable({"type": "boolean", "enum": [False], "x-reason": STATELESS}),
            "background": nullable({"type": "boolean", "enum": [False], "x-reason": STATELESS}),
            "previous_response_id": _absent(STATELESS),
            "conversation": _absent(STATELESS),
            "context_management": _absent(STATELESS),
            "prompt": _absent("templates of prompts are not kept here"),
            "moderation": _absent("there is no moderation here"),
            "image": _absent("images are not made here"),
            "include": nullable({"type": "array", "maxItems": 0, "x-reason": "nothing further can be included"}),
            "tools": nullable({"type": "array", "maxItems": 0, "x-reason": "tools go with /v1/chat/completions only"}),
            "tool_choice": nullable({"type": "string", "enum": ["auto", "none"], "x-reason": "there are no tools"}),
            "parallel_tool_calls": nullable({"type": "boolean"}),
            "max_tool_calls": nullable({"type": "integer"}),
            "top_logprobs": nullable(
                {"type": "integer", "minimum": 0, "maximum": 0, "x-reason": "log-probabilities go with chat only"}
            ),
            "truncation": nullable(
                {"type": "string", "enum": ["disabled"], "x-reason": "nothing is cut off a conversation"}
            ),
            "ttc": nullable(ttc),
        },
    }


def parse(body: Mapping[str, Any]) -> ServeRequest:
    """Translate a checked body.

    Raises:
        ApiError: an item that cannot be read, or fields that contradict each other.
    """
    stream_options(body)
    _check_metadata(body.get("metadata") or {})
    seed = body.get("seed")
    max_tokens, name = max_tokens_of(body, ("max_output_tokens",))
    return ServeRequest(
        model=body["model"],
        messages=_messages(body),
        stream=bool(body.get("stream")),
        sampling=sampling_of(body, max_tokens, name),
        thinking=read_thinking(body),
        search=read_search(body.get("ttc"), None if seed is None else abs(seed)),
    )


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    given, instructions = body["input"], body.get("instructions")
    head = [Message("system", instructions)] if instructions else []
    if isinstance(given, str):
        return (*head, Message("user", given))
    messages = [_message(item, f"input[{i}]") for i, item in enumerate(given) if item.get("type") != "reasoning"]
    if not messages:
        raise invalid("input", "input holds no message")
    return (*head, *messages)


def _message(item: Mapping[str, Any], where: str) -> Message:
    for key in ("role", "content"):
        if item.get(key) is None:
            raise invalid(f"{where}.{key}", f"{where}.{key} is required", "missing_required_parameter")
    content = item["content"]
    if isinstance(content, list):
        _check_parts(content, f"{where}.content")
    return Message(ROLES[item["role"]], text_of(content))


def _check_parts(parts: list[Any], where: str) -> None:
    """Content of reasoning items looks different, so the parts of messages are checked here."""
    read(parts, {"type": "array", "items": _TEXT_PART}, where)


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"metadata must have at most {MAX_METADATA} keys, got {len(metadata)}")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ApiError(400, "invalid_type", f"metadata.{key[:64]} must be a string", param="metadata")
