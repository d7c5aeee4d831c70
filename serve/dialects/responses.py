"""`POST /v1/responses`: the text part of OpenAI's Responses.

`input` is a text or a list of messages; `instructions` is the system message before them. What came out of an earlier
reply can be sent back as it is, or referred to (`serve.dialects.items`): messages are read, reasoning items are not
read again.

In the reply the thought is a reasoning item before the message: as `reasoning_text`, or, when a summary was asked for,
as a summary (the whole thought: nothing here summarises). A stream has the same as named, numbered events; progress of
a search goes out as events `ttc.progress`; the `ttc` object is in the final response.

Functions of the client are called as the model's family writes calls (`serve.requests.tools`). Left out, and refused by
name: objects of conversations, OpenAI's own tools, images and files, background runs, templates of prompts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, Field, PrivateAttr

from serve.dialects.items import STATELESS, Conversation, InputItem, ResponseStore, StoredResponse, messages_of
from serve.dialects.sse import ApiDialect, Count, completion_details, named
from serve.requests.body import FIRST_FAULT, WHOLE, OpenBody, RequestBody, with_reason
from serve.requests.errors import ApiError, agreed, invalid, missing, unsupported
from serve.requests.fields import (
    OpenAIFields,
    ServeRequest,
    StreamOptions,
    TokenCount,
    Verbosity,
    begun,
    max_tokens_of,
    request_of,
    stream_options,
)
from serve.requests.thinking import ReasoningOptions
from serve.requests.tools import AnswerForm, forward_of, function_tool, read_choice, read_tools
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
from ttc.core import Message, Sampling, ToolMessage

MAX_METADATA = 16


class TextFormat(OpenBody):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponsesTool(OpenBody):
    """A function that the model may call."""

    type: Literal["function"] = with_reason("of OpenAI's tools only functions of the client run anywhere", ...)
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(RequestBody):
    """`text`: the form of an answer."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = Field(None, description="Like verbosity.")


class ResponsesRequest(OpenAIFields):
    """The body of a Responses request."""

    input: Annotated[str, MinLen(1)] | Annotated[list[InputItem], FIRST_FAULT, MinLen(1), MaxLen(4096)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = Field(None, description="Most tokens, thought included.")
    max_tokens: None = with_reason("use max_output_tokens")
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    background: Literal[False] | None = with_reason("a response is given in reply to its request")
    previous_response_id: str | None = None
    conversation: None = with_reason("send previous_response_id, or the whole conversation as input")
    context_management: None = with_reason("nothing is cut off a conversation")
    prompt: None = with_reason("templates of prompts are not kept here")
    moderation: None = with_reason("there is no moderation here")
    image: None = with_reason("images are not made here")
    include: list[Literal["reasoning.encrypted_content"]] | None = with_reason(
        "nothing further can be included; of reasoning there is the text"
    )
    tools: Annotated[list[ResponsesTool], FIRST_FAULT, MaxLen(128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, WHOLE] | None = None
    top_logprobs: Annotated[int, Ge(0), Le(0), WHOLE] | None = with_reason("log-probabilities go with chat only")
    truncation: Literal["disabled"] | None = with_reason("nothing is cut off a conversation")
    _conversation: Conversation = PrivateAttr(default_factory=Conversation)

    @property
    def thread(self) -> Conversation:
        """What it continues; empty until `begin`."""
        return self._conversation

    def begin(self, store: ResponseStore, owner: str) -> None:
        """Find what the body refers to among what is stored for a key; raises ApiError where that is not there."""
        if self.store and not store.max_bytes:
            raise unsupported("store", f"store: {STATELESS}")
        name = self.previous_response_id
        before = StoredResponse() if name is None else store.response(owner, name)
        self._conversation = Conversation(store, owner, before, self.store is not False and store.max_bytes > 0)
        if not isinstance(self.input, str):
            self.input = [
                store.item(owner, item.id or "", f"input[{i}]") if item.type == "item_reference" else item
                for i, item in enumerate(self.input)
            ]

    @property
    def items(self) -> list[InputItem]:
        """The items of `input`."""
        if isinstance(self.input, str):
            return [InputItem.model_validate({"role": "user", "content": self.input})]
        return self.input


def parse(body: ResponsesRequest) -> ServeRequest:
    """Translate a request; raises ApiError for an item that cannot be read, and for contradictions."""
    stream_options(body, body.stream_options)
    _check_metadata(body.metadata or {})
    max_tokens, name = max_tokens_of(body, ("max_output_tokens",))
    size = 0 if isinstance(body.input, str) else len(body.input) - 1
    head = (Message("system", body.instructions),) if body.instructions else ()
    before = body.thread.before.items
    messages, prefill, field = begun((*head, *messages_of([*before, *body.items], len(before))), f"input[{size}].role")
    form = _form(body, messages)
    wishes = {"text.verbosity": body.text and body.text.verbosity, "verbosity": body.verbosity}
    verbosity_field, verbosity = agreed(wishes)
    return replace(
        request_of(body, messages, max_tokens, name),
        verbosity=verbosity,
        verbosity_field=verbosity_field or "verbosity",
        prefill=prefill,
        prefill_field=field,
        forward=forward_of(form, messages),
        form=form,
    )


def _form(body: ResponsesRequest, messages: tuple[Message, ...]) -> AnswerForm | None:
    """What the answer may be besides text; None where nothing of the kind is asked."""
    functions = [function_tool(tool.model_dump(), "parameters") for tool in body.tools or ()]
    tools = read_tools(functions, "name", "parameters")
    tools, choice, named = read_choice(body.tool_choice, tools)
    turns = any(isinstance(message, ToolMessage) for message in messages)
    shape = None if body.text is None else body.text.format
    schema = {"type": "object"} if shape is not None and shape.type == "json_object" else None
    if shape is not None and shape.type == "json_schema":
        if shape.schema_ is None:
            raise missing("text.format.schema")
        schema = shape.schema_
    if not (tools or turns or schema is not None):
        return None
    return AnswerForm(
        tools,
        choice,
        named,
        parallel=body.parallel_tool_calls is not False,
        schema=schema,
        strict=bool(shape and shape.strict),
        schema_field="text.format",
    )


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"metadata must have at most {MAX_METADATA} keys, got {len(metadata)}")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ApiError(400, "invalid_type", f"metadata.{key[:64]} must be a string", param="metadata")


class OutputItem(BaseModel):
    """An item of a reply's output."""

    id: str
    type: Literal["reasoning", "message", "function_call"]
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
    tool_choice: str | dict[str, Any]
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


def reply(body: ResponsesRequest, outcome: WholeReply) -> dict[str, Any]:
    """The response object of a request that is not streamed."""
    finish = outcome.choices[0]
    items = _Items(body, outcome.started.id)
    output = [items.reasoning(finish.thinking)] if finish.thinking else []
    message = [items.message(finish)] if finish.answer or not finish.tool_calls else []
    calls = [items.call(call, call["function"]["arguments"]) for call in finish.tool_calls]
    return _kept(body, _final(body, outcome.started, finish, outcome.done, [*output, *message, *calls]))


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

    def message(self, finish: Finish | None) -> dict[str, Any]:
        """The message; None: one that begins."""
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "content": [] if finish is None else [text_part(finish.answer)],
            "status": "in_progress" if finish is None else _status(finish),
        }

    def call(self, call: Mapping[str, Any], arguments: str | None) -> dict[str, Any]:
        """A call of a function; None: one that begins."""
        return {
            "id": f"fc_{call['id']}",
            "type": "function_call",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": arguments or "",
            "status": "in_progress" if arguments is None else "completed",
        }


def text_part(text: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""What OpenAI calls an end that is none."""


def _status(finish: Finish) -> str:
    return "incomplete" if finish.reason in _INCOMPLETE else "completed"


def _response(body: ResponsesRequest, started: Started, status: str) -> dict[str, Any]:
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
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort or body.reasoning_effort, "summary": reasoning.summary},
        "service_tier": "default",
        "store": body.thread.is_stored,
        "temperature": default.temperature if body.temperature is None else body.temperature,
        "text": {"format": _format(body)},
        "tool_choice": body.tool_choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_logprobs": 0,
        "top_p": default.top_p if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _format(body: ResponsesRequest) -> dict[str, Any]:
    """The form of the answer as it was asked for."""
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    return body.text.format.model_dump(by_alias=True, exclude_none=True)


def _final(
    body: ResponsesRequest,
    started: Started,
    finish: Finish,
    done: Done,
    output: list[dict[str, Any]],
) -> dict[str, Any]:
    """The response once it is complete."""
    incomplete = {"reason": _INCOMPLETE[finish.reason]} if finish.reason in _INCOMPLETE else None
    return {
        **_response(body, started, _status(finish)),
        "completed_at": None if incomplete else int(time.time()),
        "incomplete_details": incomplete,
        "output": output,
        "usage": _usage(done.counts),
        "ttc": done.ttc,
    }


def _kept(body: ResponsesRequest, response: dict[str, Any]) -> dict[str, Any]:
    """`response`, stored before it is sent: the client may refer to it at once."""
    body.thread.keep(response["id"], body.items, response["output"])
    return response


def _usage(counts: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {
            "cached_tokens": counts.cached,
            "cache_write_tokens": 0,
            "scored_tokens": counts.scored,
        },
        "output_tokens": counts.completion,
        "output_tokens_details": completion_details(counts),
        "total_tokens": counts.prompt + counts.completion,
    }


class ResponsesEncoder:
    """Events in the order of OpenAI's own: created, items with their parts and deltas, then completed or incomplete."""

    def __init__(self, body: ResponsesRequest) -> None:
        """`body` is the request."""
        self._body, self._number = body, 0
        self._started = Started("", "", 0)
        self._items = _Items(body, "")
        self._output: list[dict[str, Any]] = []
        self._thinking: list[str] | None = None
        self._answering = False
        self._finish: Finish | None = None

    def encode(self, event: ServeEvent) -> bytes:
        """The events of one event; may be empty."""
        match event:
            case Started():
                frames = self._begin(event)
            case ThinkingDelta():
                frames = self._think(event.text)
            case AnswerDelta():
                frames = [*self._answer(), self._text("response.output_text.delta", delta=event.text, logprobs=[])]
            case SearchProgress():
                frames = [self._event("ttc.progress", ttc=event.data)]
            case Finish():
                frames = self._end(event)
            case Done():
                frames = self._done(event)
            case RequestFailed():
                frames = [self._failed(event.error)]
        return b"".join(frames)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named(kind, {"type": kind, "sequence_number": number, **fields})

    def _begin(self, event: Started) -> list[bytes]:
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

    def _end(self, finish: Finish) -> list[bytes]:
        self._finish = finish
        ended = self._close_thought()
        if finish.answer or not finish.tool_calls:
            item = self._items.message(finish)
            ended += [
                *self._answer(),
                self._text("response.output_text.done", text=finish.answer, logprobs=[]),
                self._text("response.content_part.done", part=text_part(finish.answer)),
                self._item("done", item),
            ]
            self._output.append(item)
        return ended + [frame for call in finish.tool_calls for frame in self._call(call)]

    def _call(self, call: Mapping[str, Any]) -> list[bytes]:
        """A call, whole."""
        arguments = call["function"]["arguments"]
        item = self._items.call(call, arguments)
        place = {"item_id": item["id"], "output_index": len(self._output)}
        kind = "response.function_call_arguments"
        frames = [
            self._item("added", self._items.call(call, None)),
            self._event(f"{kind}.delta", **place, delta=arguments),
            self._event(f"{kind}.done", **place, name=item["name"], arguments=arguments),
            self._item("done", item),
        ]
        self._output.append(item)
        return frames

    def _done(self, event: Done) -> list[bytes]:
        if self._finish is None:
            return []
        response = _kept(self._body, _final(self._body, self._started, self._finish, event, self._output))
        return [self._event(f"response.{response['status']}", response=response)]

    def _failed(self, error: ApiError) -> bytes:
        response = _response(self._body, self._started, "failed")
        detail = {"code": error.code, "message": error.message}
        return self._event("response.failed", response={**response, "output": self._output, "error": detail})


RESPONSES = ApiDialect(
    "/v1/responses",
    ResponsesRequest,
    parse,
    reply,
    ResponsesEncoder,
    ResponsesReply,
    refusal,
    begin=ResponsesRequest.begin,
)
