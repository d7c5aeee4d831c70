"""What dialects share: what each provides, server-sent events, and the chunks of OpenAI's dialects with choices."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from annotated_types import Ge
from pydantic import BaseModel

from serve.dialects.items import ResponseStore
from serve.requests.errors import ApiError, ErrorReply
from serve.requests.fields import ChoiceFields, ServeRequest, stream_options
from serve.running.events import (
    AnswerDelta,
    Done,
    Finish,
    RequestFailed,
    SearchProgress,
    ServeEvent,
    Started,
    ThinkingDelta,
    TokenCounts,
    WholeReply,
)

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": keep-alive\n\n"
_BREAKS = ("\x85", "\u2028", "\u2029")
"""What is no end of a line in a stream of events, but is one for readers that split as Python does (httpx)."""
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def data(value: Any) -> bytes:
    """One event without a name."""
    return b"data: " + _text(value) + b"\n\n"


def named(name: str, value: Any) -> bytes:
    """One event with a name, as the Responses and Messages dialects use them."""
    return b"event: " + name.encode() + b"\n" + data(value)


class ChunkTemplate:
    """An event without a name that is sent often, with another text each time: only the text is encoded anew."""

    HOLE = "\0text\0"

    def __init__(self, value: Any) -> None:
        """`value` holds HOLE wherever the text goes."""
        self._parts = data(value).split(_text(self.HOLE))

    def fill(self, text: str) -> bytes:
        """The event with `text` in it."""
        return _text(text).join(self._parts)


def openai_failure(error: ApiError) -> bytes:
    """The end of an OpenAI stream that failed: an error object, then the usual last line."""
    return data(error.to_json()) + DONE


def _text(value: Any) -> bytes:
    text = _JSON.encode(value)
    if not text.isascii():
        for mark in _BREAKS:
            text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "replace")


class Encoder(Protocol):
    """Turns the events of one stream into bytes."""

    def encode(self, event: ServeEvent) -> bytes:
        """The bytes of one event; may be empty."""
        ...


@dataclass(frozen=True, slots=True)
class ApiDialect:
    """What a dialect's module provides: models of request, reply and error, and how one becomes the other.

    `statuses` are those it has another number for than OpenAI, `heartbeat` fills silence. One that `counts` samples
    nothing: its `reply` is given the length of the prompt in tokens, and it has no stream. `begin` tells a body what is
    stored for its key, before it is parsed.
    """

    path: str
    request: type[Any]
    parse: Callable[[Any], ServeRequest]
    reply: Callable[[Any, Any], Any]
    encoder: Callable[[Any], Encoder]
    result: type[BaseModel]
    refuse: Callable[[ApiError], Any] = ApiError.to_json
    refusal: type[BaseModel] = ErrorReply
    statuses: Mapping[int, int] = field(default_factory=dict)
    heartbeat: bytes = HEARTBEAT
    counts: bool = False
    begin: Callable[[Any, ResponseStore, str], None] = lambda body, store, owner: None

    def status(self, usual: int) -> int:
        """The dialect's own number for a status."""
        return self.statuses.get(usual, usual)


Count = Annotated[int, Ge(0)]


class ChoiceUsage(BaseModel):
    """OpenAI's usage of a reply with choices."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


def _usage_of(counts: TokenCounts) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached, "scored_tokens": counts.scored},
        "completion_tokens_details": completion_details(counts),
    }


def completion_details(counts: TokenCounts) -> dict[str, int]:
    """What was written, by what it was for."""
    return {"reasoning_tokens": counts.reasoning, "rejected_tokens": counts.rejected, "judged_tokens": counts.judged}


def head_of(started: Started, prefix: str, kind: str) -> dict[str, Any]:
    """What a reply with choices, and each of its chunks, begins with."""
    return {"id": f"{prefix}-{started.id}", "object": kind, "created": started.created, "model": started.model}


def body_of(outcome: WholeReply, head: Mapping[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of a reply that is not streamed."""
    summary = outcome.done
    ids = {} if summary.prompt_token_ids is None else {"prompt_token_ids": summary.prompt_token_ids}
    return {**head, "choices": choices, "usage": _usage_of(summary.counts), "ttc": summary.ttc, **ids}


class ChunkStream:
    """Events to chunks as clients expect them; `prefix` and `kind` begin each, a dialect words its choices."""

    prefix: str
    kind: str

    def __init__(self, body: ChoiceFields) -> None:
        """`body` is the request."""
        self._num_choices, self._usage = body.n or 1, stream_options(body, body.stream_options)
        self._head: Mapping[str, Any] = {}
        self._last: Finish | None = None
        self._frames: dict[tuple[int, bool], ChunkTemplate] = {}

    def first(self, index: int) -> dict[str, Any] | None:
        """The choice that opens a stream, if there is one."""
        raise NotImplementedError

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """The choice of a chunk with new text; both texts may be empty."""
        raise NotImplementedError

    def end(self, finish: Finish) -> dict[str, Any]:
        """The choice of the chunk that ends it."""
        raise NotImplementedError

    def calls(self, finish: Finish) -> dict[str, Any] | None:
        """The choice of the chunk with its calls of functions, if there are any."""
        return None

    def logprobs(self, event: AnswerDelta) -> dict[str, Any] | None:
        """The log-probabilities of a piece."""
        raise NotImplementedError

    def encode(self, event: ServeEvent) -> bytes:
        """The chunks of one event; may be empty."""
        match event:
            case Started():
                self._head = head_of(event, self.prefix, self.kind)
                opening = [self.first(index) for index in range(self._num_choices)]
                return b"".join(self._chunk(choice) for choice in opening if choice is not None)
            case ThinkingDelta():
                return self._text(event.index, True, event.text)
            case AnswerDelta(logprobs=None):
                return self._text(event.index, False, event.text)
            case AnswerDelta():
                return self._answer(event)
            case SearchProgress():
                return self._chunk(self.piece(0, "", ""), ttc=event.data)
            case Finish():
                ended, self._last = self._last, event  # the chunk of the last choice waits for the `ttc` object
                choices = (None if ended is None else self.end(ended), self.calls(event))
                return b"".join(self._chunk(choice) for choice in choices if choice is not None)
            case Done():
                return self._done(event)
            case RequestFailed():
                return openai_failure(event.error)

    def _done(self, event: Done) -> bytes:
        extra: dict[str, Any] = {"ttc": event.ttc}
        if event.prompt_token_ids is not None:
            extra["prompt_token_ids"] = event.prompt_token_ids
        last = b"" if self._last is None else self._chunk(self.end(self._last), **extra)
        usage = {**self._head, "choices": [], "usage": _usage_of(event.counts)}
        return last + (data(usage) if self._usage else b"") + DONE

    def _answer(self, event: AnswerDelta) -> bytes:
        if not (event.text or event.logprobs):
            return b""
        return self._chunk({**self.piece(event.index, "", event.text), "logprobs": self.logprobs(event)})

    def _text(self, index: int, thinking: bool, text: str) -> bytes:
        """A chunk with new text, which is most of a stream."""
        frame = self._frames.get((index, thinking))
        if frame is None:
            choice = self.piece(index, *((ChunkTemplate.HOLE, "") if thinking else ("", ChunkTemplate.HOLE)))
            frame = self._frames[index, thinking] = ChunkTemplate(self._value(choice))
        return frame.fill(text)

    def _chunk(self, choice: Mapping[str, Any], **extra: Any) -> bytes:
        return data(self._value(choice, **extra))

    def _value(self, choice: Mapping[str, Any], **extra: Any) -> dict[str, Any]:
        usage = {"usage": None} if self._usage else {}
        return {**self._head, "choices": [choice], **usage, **extra}
