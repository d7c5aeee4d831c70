"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages with text, thinking and tools.

`thinking.budget_tokens` is the budget, held to the token as in every dialect, and may be below Anthropic's least of
1024; `thinking` that is absent or adaptive leaves it to `output_config.effort`, then to the server.

In the reply the thought is a thinking block before the text block. Its `signature` is a digest of the thought, there
because clients want one; nothing here relies on it when it comes back. Progress of a search goes out as events
`ttc.progress`, silence is filled by pings; the `ttc` object is in the message, or in `message_delta`. The prompt's
tokens are known at the end, so `message_start` counts none and `message_delta` all.

An assistant's message at the end is an answer that has begun: the model goes on with it, without a thought.

Functions of the client are called as the model's family writes calls (`serve.requests.tools`). Left out, and refused by
name: Anthropic's own tools, images and documents, containers. A mark for Anthropic's prompt cache has no effect:
prefixes are cached here anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import MaxLen, MinLen
from pydantic import BaseModel, Field

from serve.dialects.sse import ApiDialect, Count, named
from serve.requests.body import FIRST_FAULT, OpenBody, RequestBody, with_reason
from serve.requests.errors import TYPES, ApiError, agreed, invalid, missing
from serve.requests.fields import (
    CommonFields,
    SamplingRequest,
    ServeRequest,
    StopText,
    TokenCount,
    begun,
    text_of,
    top_k_of,
)
from serve.requests.search import read_search
from serve.requests.thinking import CONFLICT, Effort, ThinkingMode, ThinkingRequest, read_thinking
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
from ttc.core import Message, ToolCall, ToolMessage


class ResultBlock(RequestBody):
    """A block of a result's content."""

    type: Literal["text"] = with_reason("this server reads text only", ...)
    text: str
    cache_control: dict[str, Any] | None = Field(None, description="No effect.")


class ContentBlock(RequestBody):
    """A block of a message's content."""

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"] = with_reason(
        "this server reads text only", ...
    )
    text: str | None = None
    cache_control: dict[str, Any] | None = Field(None, description="No effect.")
    citations: Annotated[list[Any], MaxLen(0)] | None = Field(None, description="None.")
    thinking: str | None = Field(None, description="No effect: thought of earlier turns is not read again.")
    signature: str | None = Field(None, description="No effect, like thinking.")
    data: str | None = Field(None, description="No effect, like thinking.")
    id: str | None = Field(None, description="Of a call.")
    name: str | None = Field(None, description="Of a call.")
    input: dict[str, Any] | None = Field(None, description="Of a call.")
    tool_use_id: str | None = Field(None, description="Of a result: the call that it belongs to.")
    content: str | Annotated[list[ResultBlock], FIRST_FAULT] | None = Field(None, description="Of a result.")
    is_error: bool | None = Field(None, description="Of a result: its text is then begun by Error.")
    caller: dict[str, Any] | None = Field(None, description="No effect.")


_Content = str | Annotated[list[ContentBlock], FIRST_FAULT, MinLen(1)]


class MessageTurn(RequestBody):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: _Content


class MessagesThinking(ThinkingMode):
    """`thinking` as Anthropic has it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: TokenCount | None = None
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted hides the thought; nothing here summarises it."
    )


class OutputFormat(RequestBody):
    """`output_config.format`: an answer in JSON."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class MessagesTool(OpenBody):
    """A function that the model may call."""

    type: Literal["custom"] | None = with_reason("of Anthropic's tools only those of the client run anywhere")
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class MessagesToolChoice(RequestBody):
    """Whether a function must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(RequestBody):
    """`output_config`: the effort of a reply."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class ContextEdit(OpenBody):
    """An edit of `context_management`."""

    type: Literal["clear_thinking_20251015"] = with_reason("nothing else is cut off a conversation", ...)


class ContextManagement(RequestBody):
    """`context_management`: what Anthropic's server would cut off; thought of earlier turns is left out here anyway."""

    edits: Annotated[list[ContextEdit], FIRST_FAULT, MaxLen(16)] | None = None


class MessagesPrompt(CommonFields):
    """What a Messages request says of its prompt."""

    messages: Annotated[list[MessageTurn], FIRST_FAULT, MinLen(1), MaxLen(4096)]
    system: _Content | None = None
    thinking: MessagesThinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = Field(None, description="No effect.")
    tools: Annotated[list[MessagesTool], FIRST_FAULT, MaxLen(128)] | None = None
    tool_choice: MessagesToolChoice | None = None
    container: None = with_reason("nothing runs code here")
    mcp_servers: Annotated[list[Any], MaxLen(0)] | None = with_reason("nothing runs tools here")
    context_management: ContextManagement | None = Field(
        None, description="No effect: it may ask for edits that clear thought, which is not read again here."
    )


class MessagesRequest(MessagesPrompt):
    """The body of a Messages request."""

    max_tokens: TokenCount = Field(description="Most tokens, thought included.")
    stop_sequences: Annotated[list[StopText], MaxLen(64)] | None = None
    thread: None = with_reason("this server keeps nothing between requests: send the whole conversation as messages")
    metadata: dict[str, Any] | None = Field(None, description="No effect.")
    service_tier: str | None = Field(None, description="No effect.")


_NO_SAMPLING = "a count samples nothing: leave it out, it belongs to /v1/messages"


class MessagesCount(MessagesPrompt):
    """The body of a count; Anthropic's, too, refuses `max_tokens`."""

    max_tokens: None = with_reason(_NO_SAMPLING)
    stop_sequences: None = with_reason(_NO_SAMPLING)
    metadata: None = with_reason(_NO_SAMPLING)
    service_tier: None = with_reason(_NO_SAMPLING)


class TokenCountReply(BaseModel):
    """How long a prompt is."""

    input_tokens: Count


def parse(body: MessagesRequest) -> ServeRequest:
    """Translate a request; raises ApiError for contradictions."""
    budget = None if body.thinking is None else body.thinking.budget_tokens
    if budget is not None and budget >= body.max_tokens:
        raise invalid(
            "thinking.budget_tokens",
            f"thinking.budget_tokens = {budget} must be less than max_tokens = {body.max_tokens}",
            "budget_exceeds_max_tokens",
        )
    sampling = SamplingRequest(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=top_k_of(body),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
    )
    search = read_search(body.ttc, body.seed)
    return replace(parse_prompt(body), stream=bool(body.stream), sampling=sampling, search=search)


def parse_prompt(body: MessagesPrompt) -> ServeRequest:
    """Translate what decides about the prompt; raises ApiError for contradictions."""
    messages, prefill, field = begun(_messages(body), f"messages[{len(body.messages) - 1}].role")
    form = _form(body, messages)
    return ServeRequest(
        model=body.model,
        messages=messages,
        prefill=prefill,
        prefill_field=field,
        thinking=_thinking(body),
        forward=forward_of(form, messages),
        form=form,
    )


def count_reply(body: MessagesPrompt, num_tokens: int) -> dict[str, Any]:
    """The reply to a count."""
    return {"input_tokens": num_tokens}


def _form(body: MessagesPrompt, messages: tuple[Message, ...]) -> AnswerForm | None:
    """What the answer may be besides text; None where nothing of the kind is asked."""
    functions = [function_tool(tool.model_dump(), "input_schema") for tool in body.tools or ()]
    tools = read_tools(functions, "name", "input_schema")
    wish = body.tool_choice
    asked: Any = None if wish is None else {"name": wish.name} if wish.type == "tool" else wish.type
    tools, choice, named = read_choice(asked, tools)
    turns = any(isinstance(message, ToolMessage) for message in messages)
    shape = None if body.output_config is None else body.output_config.format
    if not (tools or turns or shape):
        return None
    return AnswerForm(
        tools,
        choice,
        named,
        parallel=wish is None or not wish.disable_parallel_tool_use,
        schema=None if shape is None else shape.schema_,
        strict=True,
        schema_field="output_config.format",
    )


def _messages(body: MessagesPrompt) -> tuple[Message, ...]:
    system = _text(body.system, "system")
    turns = [message for i, turn in enumerate(body.messages) for message in _turn(turn, f"messages[{i}].content")]
    return (*([Message("system", system)] if system else []), *turns)


def _turn(turn: MessageTurn, where: str) -> list[Message]:
    """A turn as the core has it: each result is a message of its own, before the words of the turn."""
    text = _text(turn.content, where)
    blocks = turn.content if isinstance(turn.content, list) else []
    calls = [_call(block, f"{where}[{i}]") for i, block in enumerate(blocks) if block.type == "tool_use"]
    results: list[Message] = [
        ToolMessage("tool", _result(block), (), block.tool_use_id or "")
        for block in blocks
        if block.type == "tool_result"
    ]
    if calls:
        return [*results, ToolMessage(turn.role, text, tuple(calls))]
    return [*results, Message(turn.role, text)] if text or not results else results


def _result(block: ContentBlock) -> str:
    """The text of a result, which says whether the call failed: templates have no other place for that."""
    text = text_of(block.content)
    return f"Error: {text}" if block.is_error else text


def _call(block: ContentBlock, where: str) -> ToolCall:
    if block.name is None or block.input is None:
        raise missing(f"{where}.name" if block.name is None else f"{where}.input")
    return ToolCall(block.name, json.dumps(block.input, ensure_ascii=False), block.id or "")


def _text(content: str | list[ContentBlock] | None, where: str) -> str:
    """The text of a content; thought of earlier turns is left out."""
    if not isinstance(content, list):
        return text_of(content)
    for i, block in enumerate(content):
        if block.type == "text" and block.text is None:
            raise missing(f"{where}[{i}].text")
    return "".join(block.text or "" for block in content if block.type == "text")


def _thinking(body: MessagesPrompt) -> ThinkingRequest:
    """Thinking by Anthropic's names, and by the others that every dialect takes."""
    mode = body.thinking
    budget = None if mode is None else mode.budget_tokens
    if mode is not None and mode.type == "enabled" and budget is None:
        raise missing("thinking.budget_tokens", " where thinking.type is enabled")
    if mode is not None and mode.type == "adaptive" and budget is not None:
        raise invalid("thinking.budget_tokens", "thinking.budget_tokens goes with thinking.type enabled")
    effort = None if body.output_config is None else body.output_config.effort
    _, either = agreed({"reasoning_effort": body.reasoning_effort, "output_config.effort": effort}, CONFLICT)
    try:
        wish = read_thinking(body.model_copy(update={"reasoning_effort": either}))
    except ApiError as error:
        raise error if effort is None else _renamed(error) from error
    if effort is not None:
        wish = replace(wish, effort_field="output_config.effort")
    return replace(wish, show=wish.show and (mode is None or mode.display != "omitted"))


def _renamed(error: ApiError) -> ApiError:
    """Name the effort in messages as the client did."""
    old, new = "reasoning_effort", "output_config.effort"
    param = new if error.param == old else error.param
    return ApiError(error.status, error.code, error.message.replace(old, new), param=param)


PING = named("ping", {"type": "ping"})
STATUSES = {503: 529}
"""Anthropic's number for an overloaded or unavailable service."""
_TYPES = {**TYPES, 413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}


class ReplyBlock(BaseModel):
    """A block of a reply."""

    type: Literal["thinking", "text", "tool_use"]


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
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
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
    detail: dict[str, Any] = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
    if error.param == "thread":  # Anthropic's tool runner asks for one first, and goes on without where it hears this
        detail["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": detail}


def reply(body: MessagesRequest, outcome: WholeReply) -> dict[str, Any]:
    """The message of a request that is not streamed; nothing of the request is repeated in it."""
    finish = outcome.choices[0]
    blocks = [_thought(finish.thinking, _signature(finish.thinking))] if finish.thinking else []
    if finish.answer or not (blocks or finish.tool_calls):
        blocks.append({"type": "text", "text": finish.answer})
    blocks += [{**_tool_use(call), "input": _input(call)} for call in finish.tool_calls]
    usage = _usage(outcome.done.counts)
    return {**_message(outcome.started, usage), **_stop(finish), "content": blocks, "ttc": outcome.done.ttc}


def _thought(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a call, without its arguments."""
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def _input(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call; raises ApiError where an upstream server has written something else than an object."""
    try:
        value = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        name = call["function"]["name"]
        raise ApiError(
            502, "upstream_failed", f"the upstream server called {name} with arguments that are not a JSON object"
        )
    return value


def _signature(thought: str) -> str:
    return hashlib.sha256(thought.encode()).hexdigest()


def _message(started: Started, usage: Mapping[str, Any]) -> dict[str, Any]:
    """The message without its content."""
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


def _stop(finish: Finish) -> dict[str, Any]:
    """Why it ended."""
    if finish.reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if finish.reason == "content_filter":
        return {"stop_reason": "refusal", "stop_sequence": None}
    if finish.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if finish.stop is None else "stop_sequence", "stop_sequence": finish.stop}


def _usage(counts: TokenCounts) -> dict[str, Any]:
    """Anthropic counts cached tokens of the prompt apart."""
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
        "output_tokens_details": {
            "thinking_tokens": counts.reasoning,
            "rejected_tokens": counts.rejected,
            "judged_tokens": counts.judged,
        },
    }


class MessagesEncoder:
    """Events in Anthropic's order: message_start, blocks with their deltas, message_delta, message_stop."""

    def __init__(self, body: MessagesPrompt) -> None:
        """Nothing of the request is repeated."""
        self._index = -1
        self._open: str | None = None
        self._thinking: list[str] = []
        self._finish: Finish | None = None

    def encode(self, event: ServeEvent) -> bytes:
        """The events of one event; may be empty."""
        match event:
            case Started():
                frames = [_event("message_start", message=_message(event, _usage(TokenCounts())))]
            case ThinkingDelta():
                self._thinking.append(event.text)
                frames = self._delta("thinking", "thinking_delta", event.text)
            case AnswerDelta():
                frames = self._delta("text", "text_delta", event.text)
            case SearchProgress():
                frames = [_event("ttc.progress", ttc=event.data)]
            case Finish():
                frames = self._end(event)
            case Done():
                frames = self._done(event)
            case RequestFailed():
                frames = [named("error", refusal(event.error))]
        return b"".join(frames)

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

    def _end(self, finish: Finish) -> list[bytes]:
        self._finish = finish
        begun = self._enter("text") if self._index < 0 and not finish.tool_calls else []
        return [*begun, *self._leave(), *(frame for call in finish.tool_calls for frame in self._call(call))]

    def _call(self, call: Mapping[str, Any]) -> list[bytes]:
        """The block of a call, whole."""
        self._index += 1
        arguments = {"type": "input_json_delta", "partial_json": call["function"]["arguments"]}
        return [
            self._block("start", content_block=_tool_use(call)),
            self._block("delta", delta=arguments),
            self._block("stop"),
        ]

    def _done(self, event: Done) -> list[bytes]:
        if self._finish is None:
            return []
        usage = _usage(event.counts)
        return [_event("message_delta", delta=_stop(self._finish), usage=usage, ttc=event.ttc), _event("message_stop")]


def _event(kind: str, **fields: Any) -> bytes:
    return named(kind, {"type": kind, **fields})


MESSAGES = ApiDialect(
    "/v1/messages",
    MessagesRequest,
    parse,
    reply,
    MessagesEncoder,
    MessagesReply,
    refusal,
    MessagesError,
    STATUSES,
    PING,
)
COUNT = replace(
    MESSAGES,
    path="/v1/messages/count_tokens",
    request=MessagesCount,
    parse=parse_prompt,
    reply=count_reply,
    result=TokenCountReply,
    counts=True,
)
