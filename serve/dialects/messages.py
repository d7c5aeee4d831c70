"""`POST /v1/messages`: the text part of Anthropic's Messages, thinking included.

`thinking.budget_tokens` is the budget, held to the token as in every dialect, and may be below Anthropic's least of
1024; `thinking` that is absent or adaptive leaves it to `output_config.effort`, then to the server. The reply is made
in `serve.dialects.messages_reply`.

Left out, and refused by name: tools, images and documents, prefilled answers, containers, JSON formats. A mark for
Anthropic's prompt cache has no effect: prefixes are cached here anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from serve.requests.errors import ApiError, invalid
from serve.requests.fields import SHARED, text_of
from serve.requests.request import SamplingWish, ServeRequest, ThinkingWish
from serve.requests.schema import Schema, described, nullable
from serve.requests.search import read_search
from serve.requests.thinking import EFFORTS, read_thinking
from serve.requests.thinking import FIELDS as THINKING
from ttc.core import Message

__all__ = ["parse", "schema"]

_TEXT: Schema = {"type": "string"}
_CACHE: Schema = described(nullable({"type": "object"}), "No effect.")
_BLOCK: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["type"],
    "properties": {
        "type": {
            "type": "string",
            "enum": ["text", "thinking", "redacted_thinking"],
            "x-reason": "this server reads text only",
        },
        "text": _TEXT,
        "cache_control": _CACHE,
        "citations": described({"type": ["array", "null"], "maxItems": 0}, "None."),
        "thinking": described(_TEXT, "No effect: thought of earlier turns is not read again."),
        "signature": described(_TEXT, "No effect, like thinking."),
        "data": described(_TEXT, "No effect, like thinking."),
    },
}
_BLOCKS: Schema = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _BLOCK}]}
_OWN: Mapping[str, Schema] = MappingProxyType(
    {
        "thinking": nullable(
            {
                "type": "object",
                "required": ["type"],
                "additionalProperties": False,
                "properties": {
                    "type": {"type": "string", "enum": ["enabled", "disabled", "adaptive"]},
                    "budget_tokens": nullable({"type": "integer", "minimum": 1, "maximum": 1 << 31}),
                    "display": described(
                        nullable({"type": "string", "enum": ["summarized", "omitted"]}),
                        "omitted hides the thought; nothing here summarises it.",
                    ),
                },
            }
        ),
        "output_config": nullable(
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "effort": nullable({"type": "string", "enum": list(EFFORTS)}),
                    "format": {"type": "null", "x-reason": "formats go with /v1/chat/completions only"},
                },
            }
        ),
    }
)


def schema(ttc: Schema) -> dict[str, Any]:
    """The schema of a request; `ttc` is that of the search object."""
    message = {
        "type": "object",
        "additionalProperties": False,
        "required": ["role", "content"],
        "properties": {"role": {"type": "string", "enum": ["user", "assistant", "system"]}, "content": _BLOCKS},
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "messages", "max_tokens"],
        "properties": {
            "messages": {"type": "array", "minItems": 1, "maxItems": 4096, "items": message},
            "system": {"anyOf": [*_BLOCKS["anyOf"], {"type": "null"}]},
            "max_tokens": described(
                {"type": "integer", "minimum": 1, "maximum": 1 << 31}, "Most tokens, thought included."
            ),
            "model": SHARED["model"],
            "temperature": SHARED["temperature"],
            "top_p": SHARED["top_p"],
            "top_k": SHARED["top_k"],
            "stop_sequences": nullable(
                {"type": "array", "maxItems": 4, "items": {"type": "string", "minLength": 1, "maxLength": 256}}
            ),
            "stream": nullable({"type": "boolean"}),
            **THINKING,
            **_OWN,
            "metadata": described(nullable({"type": "object"}), "No effect."),
            "service_tier": described(nullable({"type": "string"}), "No effect."),
            "cache_control": _CACHE,
            "tools": nullable({"type": "array", "maxItems": 0, "x-reason": "tools go with /v1/chat/completions only"}),
            "tool_choice": {"type": "null", "x-reason": "there are no tools"},
            "container": {"type": "null", "x-reason": "nothing runs code here"},
            "mcp_servers": nullable({"type": "array", "maxItems": 0, "x-reason": "there are no tools"}),
            "context_management": {"type": "null", "x-reason": "nothing is cut off a conversation"},
            "ttc": nullable(ttc),
        },
    }


def parse(body: Mapping[str, Any]) -> ServeRequest:
    """Translate a checked body.

    Raises:
        ApiError: a message that cannot be continued from, or fields that contradict each other.
    """
    top_k = body.get("top_k")
    return ServeRequest(
        model=body["model"],
        messages=_messages(body),
        stream=bool(body.get("stream")),
        sampling=SamplingWish(
            temperature=body.get("temperature"),
            top_p=body.get("top_p"),
            top_k=top_k if top_k is not None and top_k > 0 else None,
            max_tokens=body["max_tokens"],
            stop=tuple(body.get("stop_sequences") or ()),
        ),
        thinking=_thinking(body),
        search=read_search(body.get("ttc"), None),
    )


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    if body["messages"][-1]["role"] != "user":
        last = f"messages[{len(body['messages']) - 1}].role"
        raise invalid(last, f"{last}: the last message must be the user's; an answer cannot be begun for the model")
    system = _text(body.get("system"), "system")
    turns = [
        Message(message["role"], _text(message["content"], f"messages[{i}].content"))
        for i, message in enumerate(body["messages"])
    ]
    return (*([Message("system", system)] if system else []), *turns)


def _text(content: Any, where: str) -> str:
    """The text of a content; thought of earlier turns is left out."""
    if not isinstance(content, list):
        return text_of(content)
    for i, block in enumerate(content):
        if block["type"] == "text" and "text" not in block:
            raise invalid(f"{where}[{i}].text", f"{where}[{i}].text is required", "missing_required_parameter")
    return "".join(block["text"] for block in content if block["type"] == "text")


def _thinking(body: Mapping[str, Any]) -> ThinkingWish:
    """Thinking by Anthropic's names, and by the others that every dialect takes."""
    own = dict(body.get("thinking") or {})
    kind, display, budget = own.get("type"), own.pop("display", None), own.get("budget_tokens")
    if kind == "enabled" and budget is None:
        name = "thinking.budget_tokens"
        raise invalid(name, f"{name} is required where thinking.type is enabled", "missing_required_parameter")
    if kind == "adaptive" and budget is not None:
        raise invalid("thinking.budget_tokens", "thinking.budget_tokens goes with thinking.type enabled")
    if budget is not None and budget >= body["max_tokens"]:
        raise invalid(
            "thinking.budget_tokens",
            f"thinking.budget_tokens = {budget} must be less than max_tokens = {body['max_tokens']}",
            "budget_exceeds_max_tokens",
        )
    effort = (body.get("output_config") or {}).get("effort")
    said = body.get("reasoning_effort")
    if effort is not None and said not in (None, effort):
        raise invalid(
            "output_config.effort",
            f"reasoning_effort = {said!r} and output_config.effort = {effort!r} contradict each other: send one",
            "conflicting_thinking",
        )
    try:
        wish = read_thinking({**body, "thinking": own, "reasoning_effort": effort or said})
    except ApiError as error:
        raise error if effort is None else _renamed(error) from error
    if effort is not None:
        wish = replace(wish, effort_field="output_config.effort")
    return replace(wish, show=wish.show and display != "omitted")


def _renamed(error: ApiError) -> ApiError:
    """Speak of the effort by the name that the client used."""
    old, new = "reasoning_effort", "output_config.effort"
    param = new if error.param == old else error.param
    return ApiError(error.status, error.code, error.message.replace(old, new), param=param)
