"""`POST /v1/chat/completions`: OpenAI's chat completions, with thinking and search as further fields.

Thought goes out as both `reasoning` and `reasoning_content`, since clients read one or the other; `content` is never
null. What happened is in the top-level `ttc` object: of the reply, or of the chunk that ends the last choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.errors import invalid
from serve.events import (
    AnswerDelta,
    Counts,
    Done,
    Failed,
    Finish,
    Outcome,
    Progress,
    ServeEvent,
    Started,
    ThinkingDelta,
)
from serve.fields import SHARED, max_tokens_of, sampling_of, stream_options, text_of
from serve.request import ServeRequest
from serve.schema import Schema, described, nullable, without_nulls
from serve.search import read_search
from serve.sse import DONE, data, openai_failure
from serve.thinking import read_thinking
from ttc.core import Message

__all__ = ["RESULT", "USAGE", "Stream", "parse", "reply", "schema", "usage_of"]

ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLES = {"developer": "system"}
FORWARDED = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
"""What only a server behind can do (see `serve.forward`)."""

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


_COUNT: Schema = {"type": "integer", "minimum": 0}
USAGE: Schema = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
}
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
            "top_logprobs": nullable(
                {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 0,
                    "x-reason": "only the log-probability of the sampled token is known",
                }
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


def usage_of(counts: Counts) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }


def reply(request: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """The body of a reply that is not streamed; nothing of the checked `request` is repeated in it."""
    body: dict[str, Any] = {
        "id": f"chatcmpl-{outcome.started.id}",
        "object": "chat.completion",
        "created": outcome.started.created,
        "model": outcome.started.model,
        "choices": [_choice(finish) for finish in outcome.choices],
        "usage": usage_of(outcome.done.counts),
        "ttc": outcome.done.ttc,
    }
    if outcome.done.prompt_token_ids is not None:
        body["prompt_token_ids"] = outcome.done.prompt_token_ids
    return body


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
    content = [
        {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": []}
        for item in finish.logprobs
    ]
    return {"content": content, "refusal": None}


class Stream:
    """Events to chunks, in the order in which clients expect them."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """`body` is the checked request."""
        self._num_choices, self._usage = body.get("n") or 1, stream_options(body)
        self._head: dict[str, Any] = {}
        self._last: Finish | None = None

    def encode(self, event: ServeEvent) -> bytes:
        """The chunks of one event; may be empty."""
        match event:
            case Started():
                chunks = self._started(event)
            case ThinkingDelta():
                chunks = self._thinking(event)
            case AnswerDelta():
                chunks = self._answer(event)
            case Progress():
                chunks = self._progress(event)
            case Finish():
                chunks = self._finish(event)
            case Done():
                chunks = self._done(event)
            case Failed():
                chunks = [openai_failure(event.error)]
        return b"".join(chunks)

    def _started(self, event: Started) -> list[bytes]:
        self._head = {
            "id": f"chatcmpl-{event.id}",
            "object": "chat.completion.chunk",
            "created": event.created,
            "model": event.model,
        }
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._num_choices)]

    def _thinking(self, event: ThinkingDelta) -> list[bytes]:
        return [self._chunk(event.index, {"reasoning": event.text, "reasoning_content": event.text})]

    def _answer(self, event: AnswerDelta) -> list[bytes]:
        return [self._chunk(event.index, {"content": event.text})]

    def _progress(self, event: Progress) -> list[bytes]:
        return [self._chunk(0, {}, ttc=event.data)]

    def _finish(self, event: Finish) -> list[bytes]:
        """End a choice; the chunk of the last one waits for the `ttc` object."""
        ended, self._last = self._last, event
        return [] if ended is None else [self._end(ended)]

    def _end(self, finish: Finish, **extra: Any) -> bytes:
        calls = [{"index": i, **call} for i, call in enumerate(finish.tool_calls)]
        delta = {"tool_calls": calls} if calls else {}
        choice: dict[str, Any] = {"finish_reason": finish.reason, "logprobs": _logprob_object(finish)}
        if finish.token_ids is not None:
            choice["token_ids"] = finish.token_ids
        return self._chunk(finish.index, delta, choice, **extra)

    def _done(self, event: Done) -> list[bytes]:
        extra: dict[str, Any] = {"ttc": event.ttc}
        if event.prompt_token_ids is not None:
            extra["prompt_token_ids"] = event.prompt_token_ids
        chunks = [] if self._last is None else [self._end(self._last, **extra)]
        if self._usage:
            chunks.append(data({**self._head, "choices": [], "usage": usage_of(event.counts)}))
        return [*chunks, DONE]

    def _chunk(
        self, index: int, delta: Mapping[str, Any], choice: Mapping[str, Any] | None = None, **extra: Any
    ) -> bytes:
        whole = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **(choice or {})}
        usage = {"usage": None} if self._usage else {}
        return data({**self._head, "choices": [whole], **usage, **extra})
