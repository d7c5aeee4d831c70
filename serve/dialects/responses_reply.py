"""What `POST /v1/responses` answers: the response object, and the same as a stream of named, numbered events.

The thought is a reasoning item before the message: as `reasoning_text`, or, when a summary was asked for, as a summary
(the whole thought: nothing here summarises). Progress of a search goes out as events `ttc.progress`; the `ttc` object
is in the final response.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import BaseModel

from serve.dialects._chunks import Count
from serve.dialects.responses import ResponsesRequest
from serve.dialects.sse import named
from serve.requests.errors import ApiError
from serve.requests.thinking import ReasoningOptions
from serve.running import events
from ttc.core import Sampling

__all__ = ["ResponsesEncoder", "ResponsesReply", "refusal", "reply"]


class OutputItem(BaseModel):
    """An item of a reply's output."""

    id: str
    type: Literal["reasoning", "message"]
    status: str


class ResponsesUsage(BaseModel):
    """The usage of a response."""

    input_tokens: Count
    input_tokens_details: dict[str, Any]
    output_tokens: Count
    output_tokens_details: dict[str, Any]
    total_tokens: Count


class ResponsesReply(BaseModel):
    """A reply that is not streamed: what it is sure to have."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    metadata: dict[str, Any]
    model: str
    output: Annotated[list[OutputItem], MinLen(1)]
    parallel_tool_calls: bool
    temperature: float
    tool_choice: str
    tools: list[Any]
    top_p: float
    usage: ResponsesUsage
    ttc: dict[str, Any]


def refusal(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object; what the server calls the messages is called input here."""
    detail: dict[str, Any] = error.to_json()["error"]
    if error.param == "messages":
        detail |= {"param": "input", "message": detail["message"].replace("messages", "input", 1)}
    return {"error": detail}


def reply(body: ResponsesRequest, outcome: events.Outcome) -> dict[str, Any]:
    """The response object of a request that is not streamed."""
    finish = outcome.choices[0]
    items = _Items(body, outcome.started.id)
    output = [items.reasoning(finish.thinking)] if finish.thinking else []
    return _final(body, outcome.started, finish, outcome.done, [*output, items.message(finish)])


class _Items:
    """The output items of one reply; `summarised` says which of its two places the thought goes to."""

    def __init__(self, body: ResponsesRequest, name: str) -> None:
        self.reasoning_id, self.message_id = f"rs_{name}", f"msg_{name}"
        self.summarised = body.reasoning is not None and body.reasoning.summary is not None

    def thought(self, text: str) -> dict[str, Any]:
        """The part that holds the thought."""
        return {"type": "summary_text" if self.summarised else "reasoning_text", "text": text}

    def reasoning(self, text: str | None) -> dict[str, Any]:
        """A reasoning item; None: one that begins."""
        parts = [] if text is None else [self.thought(text)]
        return {
            "id": self.reasoning_id,
            "type": "reasoning",
            "summary": parts if self.summarised else [],
            "content": [] if self.summarised else parts,
            "encrypted_content": None,
            "status": "in_progress" if text is None else "completed",
        }

    def message(self, finish: events.Finish | None) -> dict[str, Any]:
        """The message; None: one that begins."""
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "content": [] if finish is None else [text_part(finish.answer)],
            "status": "in_progress" if finish is None else _status(finish),
        }


def text_part(text: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(finish: events.Finish) -> str:
    return "incomplete" if finish.reason == "length" else "completed"


def _response(body: ResponsesRequest, started: events.Started, status: str) -> dict[str, Any]:
    """A response without output, with what the client asked for."""
    default, reasoning = Sampling(), body.reasoning or ReasoningOptions()
    return {
        "id": f"resp_{started.id}",
        "object": "response",
        "created_at": started.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": started.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {
            "effort": reasoning.effort or body.reasoning_effort,
            "summary": reasoning.summary,
        },
        "service_tier": "default",
        "store": False,
        "temperature": default.temperature if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": default.top_p if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _final(
    body: ResponsesRequest,
    started: events.Started,
    finish: events.Finish,
    done: events.Done,
    output: list[dict[str, Any]],
) -> dict[str, Any]:
    """The response once it is complete."""
    incomplete = {"reason": "max_output_tokens"} if finish.reason == "length" else None
    return {
        **_response(body, started, _status(finish)),
        "completed_at": None if incomplete else int(time.time()),
        "incomplete_details": incomplete,
        "output": output,
        "usage": _usage(done.counts),
        "ttc": done.ttc,
    }


def _usage(counts: events.Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }


class ResponsesEncoder:
    """Events in the order of OpenAI's own: created, items with their parts and deltas, then completed or incomplete."""

    def __init__(self, body: ResponsesRequest) -> None:
        """`body` is the request."""
        self._body, self._number = body, 0
        self._started = events.Started("", "", 0)
        self._items = _Items(body, "")
        self._output: list[dict[str, Any]] = []
        self._thinking: list[str] | None = None
        self._answering = False
        self._finish: events.Finish | None = None

    def encode(self, event: events.ServeEvent) -> bytes:
        """The events of one event; may be empty."""
        match event:
            case events.Started():
                sent = self._begin(event)
            case events.ThinkingDelta():
                sent = self._think(event.text)
            case events.AnswerDelta():
                sent = [*self._answer(), self._text("response.output_text.delta", delta=event.text, logprobs=[])]
            case events.Progress():
                sent = [self._event("ttc.progress", ttc=event.data)]
            case events.Finish():
                sent = self._end(event)
            case events.Done():
                sent = self._done(event)
            case events.Failed():
                sent = [self._failed(event.error)]
        return b"".join(sent)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named(kind, {"type": kind, "sequence_number": number, **fields})

    def _begin(self, event: events.Started) -> list[bytes]:
        self._started, self._items = event, _Items(self._body, event.id)
        response = _response(self._body, event, "in_progress")
        return [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def _item(self, kind: str, item: Mapping[str, Any]) -> bytes:
        return self._event(f"response.output_item.{kind}", output_index=len(self._output), item=item)

    def _thought(self, kind: str, **fields: Any) -> bytes:
        """An event of the part that holds the thought."""
        index = "summary_index" if self._items.summarised else "content_index"
        where = {"item_id": self._items.reasoning_id, "output_index": len(self._output), index: 0}
        return self._event(kind, **where, **fields)

    def _text(self, kind: str, **fields: Any) -> bytes:
        """An event of the part that holds the answer."""
        return self._event(
            kind, item_id=self._items.message_id, output_index=len(self._output), content_index=0, **fields
        )

    def _names(self) -> tuple[str, str]:
        """What the events of the thought are called: those of its part, those of its text."""
        if self._items.summarised:
            return "response.reasoning_summary_part", "response.reasoning_summary_text"
        return "response.content_part", "response.reasoning_text"

    def _think(self, text: str) -> list[bytes]:
        part, content = self._names()
        begun = []
        if self._thinking is None:
            self._thinking = []
            begun = [self._item("added", self._items.reasoning(None))]
            begun.append(self._thought(f"{part}.added", part=self._items.thought("")))
        self._thinking.append(text)
        return [*begun, self._thought(f"{content}.delta", delta=text)]

    def _close_thought(self) -> list[bytes]:
        if self._thinking is None:
            return []
        (part, content), text, self._thinking = self._names(), "".join(self._thinking), None
        item = self._items.reasoning(text)
        ended = [
            self._thought(f"{content}.done", text=text),
            self._thought(f"{part}.done", part=self._items.thought(text)),
            self._item("done", item),
        ]
        self._output.append(item)
        return ended

    def _answer(self) -> list[bytes]:
        """Begin the message, where it has not begun."""
        if self._answering:
            return []
        self._answering = True
        return [
            *self._close_thought(),
            self._item("added", self._items.message(None)),
            self._text("response.content_part.added", part=text_part("")),
        ]

    def _end(self, finish: events.Finish) -> list[bytes]:
        self._finish = finish
        item = self._items.message(finish)
        ended = [
            *self._answer(),
            self._text("response.output_text.done", text=finish.answer, logprobs=[]),
            self._text("response.content_part.done", part=text_part(finish.answer)),
            self._item("done", item),
        ]
        self._output.append(item)
        return ended

    def _done(self, event: events.Done) -> list[bytes]:
        if self._finish is None:
            return []
        response = _final(self._body, self._started, self._finish, event, self._output)
        return [self._event(f"response.{response['status']}", response=response)]

    def _failed(self, error: ApiError) -> bytes:
        response = _response(self._body, self._started, "failed")
        told = {"code": error.code, "message": error.message}
        return self._event("response.failed", response={**response, "output": self._output, "error": told})
