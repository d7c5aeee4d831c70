"""What `POST /v1/messages` answers: the message object, the same as a stream of named events, and errors.

The thought is a thinking block before the text block. Its `signature` is a digest of the thought, there because clients
want one; nothing here relies on it when it comes back. Progress of a search goes out as events `ttc.progress`, silence
is filled by pings; the `ttc` object is in the message, or in `message_delta`. The prompt's tokens are known at the end,
so `message_start` counts none and `message_delta` all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import BaseModel

from serve.dialects._chunks import Count
from serve.dialects.messages import MessagesRequest
from serve.dialects.sse import named
from serve.requests.errors import ApiError
from serve.running import events

__all__ = ["PING", "STATUSES", "MessagesEncoder", "MessagesError", "MessagesReply", "refusal", "reply"]

PING = named("ping", {"type": "ping"})
STATUSES: Mapping[int, int] = MappingProxyType({503: 529})
"""Anthropic's number for an overloaded or unavailable service."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ReplyBlock(BaseModel):
    """A block of a reply."""

    type: Literal["thinking", "text"]


class MessagesUsage(BaseModel):
    """Anthropic's usage."""

    input_tokens: Count
    output_tokens: Count


class MessagesReply(BaseModel):
    """A reply that is not streamed: what it is sure to have."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: Annotated[list[ReplyBlock], MinLen(1)]
    model: str
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"]
    stop_sequence: str | None
    usage: MessagesUsage
    ttc: dict[str, Any]


class MessagesErrorDetail(BaseModel):
    """What went wrong; `code` and `param` are those of the other dialects."""

    type: str
    message: str
    code: str
    param: str | None


class MessagesError(BaseModel):
    """What an error looks like."""

    type: Literal["error"]
    error: MessagesErrorDetail


def refusal(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object; `code` and `param` are those of the other dialects."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    detail = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
    return {"type": "error", "error": detail}


def reply(body: MessagesRequest, outcome: events.Outcome) -> dict[str, Any]:
    """The message of a request that is not streamed; nothing of the request is repeated in it."""
    finish = outcome.choices[0]
    blocks = [_thought(finish.thinking, _signature(finish.thinking))] if finish.thinking else []
    if finish.answer or not blocks:
        blocks.append({"type": "text", "text": finish.answer})
    usage = _usage(outcome.done.counts)
    return {**_message(outcome.started, usage), **_stop(finish), "content": blocks, "ttc": outcome.done.ttc}


def _thought(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def _signature(thought: str) -> str:
    return hashlib.sha256(thought.encode()).hexdigest()


def _message(started: events.Started, usage: Mapping[str, Any]) -> dict[str, Any]:
    """A message without content."""
    return {
        "id": f"msg_{started.id}",
        "type": "message",
        "role": "assistant",
        "model": started.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _stop(finish: events.Finish) -> dict[str, Any]:
    """Why it ended."""
    if finish.reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "end_turn" if finish.stop is None else "stop_sequence", "stop_sequence": finish.stop}


def _usage(counts: events.Counts) -> dict[str, Any]:
    """Anthropic counts cached tokens of the prompt apart."""
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
        "output_tokens_details": {"thinking_tokens": counts.reasoning},
    }


class MessagesEncoder:
    """Events in Anthropic's order: message_start, blocks with their deltas, message_delta, message_stop."""

    def __init__(self, body: MessagesRequest) -> None:
        """Nothing of the request is repeated."""
        self._index = -1
        self._open: str | None = None
        self._thinking: list[str] = []
        self._finish: events.Finish | None = None

    def encode(self, event: events.ServeEvent) -> bytes:
        """The events of one event; may be empty."""
        match event:
            case events.Started():
                sent = [_event("message_start", message=_message(event, _usage(events.Counts())))]
            case events.ThinkingDelta():
                self._thinking.append(event.text)
                sent = self._delta("thinking", "thinking_delta", event.text)
            case events.AnswerDelta():
                sent = self._delta("text", "text_delta", event.text)
            case events.Progress():
                sent = [_event("ttc.progress", ttc=event.data)]
            case events.Finish():
                sent = self._end(event)
            case events.Done():
                sent = self._done(event)
            case events.Failed():
                sent = [named("error", refusal(event.error))]
        return b"".join(sent)

    def _delta(self, block: str, kind: str, text: str) -> list[bytes]:
        return [*self._enter(block), self._block("delta", delta={"type": kind, block: text})]

    def _block(self, kind: str, **fields: Any) -> bytes:
        return _event(f"content_block_{kind}", index=self._index, **fields)

    def _enter(self, block: str) -> list[bytes]:
        """Begin a block, where it is not open; ends the one before."""
        if self._open == block:
            return []
        ended = self._leave()
        self._index, self._open = self._index + 1, block
        content = _thought("", "") if block == "thinking" else {"type": "text", "text": ""}
        return [*ended, self._block("start", content_block=content)]

    def _leave(self) -> list[bytes]:
        block, self._open = self._open, None
        if block is None:
            return []
        signed = []
        if block == "thinking":
            signature = _signature("".join(self._thinking))
            signed = [self._block("delta", delta={"type": "signature_delta", "signature": signature})]
        return [*signed, self._block("stop")]

    def _end(self, finish: events.Finish) -> list[bytes]:
        self._finish = finish
        begun = self._enter("text") if self._index < 0 else []
        return [*begun, *self._leave()]

    def _done(self, event: events.Done) -> list[bytes]:
        if self._finish is None:
            return []
        usage = _usage(event.counts)
        return [
            _event("message_delta", delta=_stop(self._finish), usage=usage, ttc=event.ttc),
            _event("message_stop"),
        ]


def _event(kind: str, **fields: Any) -> bytes:
    return named(kind, {"type": kind, **fields})
