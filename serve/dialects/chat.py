"""`POST /v1/chat/completions`: OpenAI's chat completions, with thinking and search as further fields.

Thought goes out as both `reasoning` and `reasoning_content`, since clients read one or the other; `content` is never
null. What happened is in the top-level `ttc` object: of the reply, or of the chunk that ends the last choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, Field

from serve.dialects.sse import ApiDialect, ChoiceUsage, ChunkStream, body_of, head_of
from serve.requests.body import FIRST_FAULT, WHOLE, OpenBody, RequestBody, with_reason
from serve.requests.errors import agreed, invalid
from serve.requests.fields import ChoiceFields, ServeRequest, TokenCount, begun, max_tokens_of, request_of, text_of
from serve.requests.tools import AnswerForm, call_of, is_allowance, read_choice, read_tools
from serve.running.events import AnswerDelta, Finish, TokenLogprob, WholeReply
from ttc.core import Message, ToolMessage

FORWARDED = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
"""Fields that an upstream server gets as they came (see `serve.running.forward`)."""
UNREAD = ("annotations", "reasoning_details", "thinking_blocks", "provider_specific_fields", "cache_control")
"""Fields of messages that clients keep for themselves or for other servers; upstream servers do not get them."""
_MARK = "No effect: prefixes are cached here anyway."


class ChatPart(RequestBody):
    """A part of a message's content."""

    type: Literal["text"] = with_reason("this server reads text only", ...)
    text: str
    cache_control: dict[str, Any] | None = Field(None, description=_MARK)


class CalledFunction(OpenBody):
    """The function of a tool call."""

    name: str
    arguments: str


class ChatToolCall(OpenBody):
    """A tool call of an earlier turn."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(RequestBody):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ChatPart], FIRST_FAULT] | None = None
    name: str | None = Field(None, description="No effect.")
    reasoning: str | None = Field(None, description="No effect: thought of earlier turns is not read again.")
    reasoning_content: str | None = Field(None, description="No effect, like reasoning.")
    refusal: str | None = None
    reasoning_details: list[Any] | None = Field(None, description="No effect, like reasoning.")
    thinking_blocks: list[Any] | None = Field(None, description="No effect, like reasoning.")
    annotations: list[Any] | None = Field(None, description="No effect.")
    audio: None = with_reason("this server reads text only")
    function_call: None = with_reason("use tool_calls")
    cache_control: dict[str, Any] | None = Field(None, description=_MARK)
    provider_specific_fields: dict[str, Any] | None = Field(None, description="No effect: LiteLLM's, of its reply.")
    tool_calls: Annotated[list[ChatToolCall], FIRST_FAULT, MaxLen(128)] | None = None
    tool_call_id: str | None = None


class ResponseFormat(OpenBody):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatRequest(ChoiceFields):
    """The body of a chat-completions request."""

    messages: Annotated[list[ChatMessage], FIRST_FAULT, MinLen(1), MaxLen(4096)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = Field(None, description="Most tokens of a choice, thought included.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(20), WHOLE] | None = Field(
        None,
        description="Of each token of the answer, with logprobs; refused by models whose engine does not report them.",
    )
    continue_final_message: bool | None = Field(
        None, description="Continue the assistant's message at the end; the default. false begins a new turn after it."
    )
    add_generation_prompt: bool | None = Field(None, description="The opposite of continue_final_message.")
    chat_template: None = with_reason("a model has its own, and templates are never taken from a request")
    documents: None = with_reason("put them into a message")
    mm_processor_kwargs: None = with_reason("this server reads text only")
    echo: Literal[False] | None = with_reason("the prompt of a chat is not repeated")
    modalities: Annotated[list[Literal["text"]], FIRST_FAULT] | None = None
    audio: None = with_reason("this server writes text only")
    prediction: None = with_reason("predicted outputs are not supported")
    web_search_options: None = with_reason("this server does not search the web")
    functions: None = with_reason("use tools")
    function_call: None = with_reason("use tool_choice")
    tools: Annotated[list[dict[str, Any]], MaxLen(128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None


class ReplyMessage(BaseModel):
    """The message of a choice; `reasoning`, `reasoning_content` and `tool_calls` where there are any."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One choice of a reply."""

    index: int
    message: ReplyMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class ChatReport(BaseModel):
    """The `ttc` object of a reply: what is always there."""

    type: str
    strategy: str
    thinking: Any
    usage: dict[str, Any]
    seed: int
    stop_cause: str | None


class ChatReply(BaseModel):
    """A reply that is not streamed: what it is sure to have, by OpenAI's own schema and ours."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[ChatChoice], MinLen(1)]
    usage: ChoiceUsage
    ttc: ChatReport


def parse(body: ChatRequest) -> ServeRequest:
    """Translate a request; raises ApiError for fields that contradict each other."""
    max_tokens, name = max_tokens_of(body, ("max_completion_tokens", "max_tokens"))
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs = true")
    form = _form(body)
    messages = tuple(_turn(number, message) for number, message in enumerate(body.messages))
    messages, prefill, field = _begun(body, messages)
    return replace(
        request_of(body, messages, max_tokens, name),
        prefill=prefill,
        prefill_field=field,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        forward=_forward(body, form),
        form=form,
    )


def _turn(number: int, message: ChatMessage) -> Message:
    """A message as the core has it."""
    role, text = "system" if message.role == "developer" else message.role, text_of(message.content)
    if not message.tool_calls and role != "tool":
        return Message(role, text)
    place = f"messages[{number}].tool_calls"
    calls = [call_of(call.function.name, call.function.arguments, call.id, place) for call in message.tool_calls or ()]
    return ToolMessage(role, text, tuple(calls), message.tool_call_id or "")


def _form(body: ChatRequest) -> AnswerForm | None:
    """What the answer may be besides text; None where nothing of the kind is asked."""
    tools = read_tools(body.tools)
    tools, choice, named = read_choice(body.tool_choice, tools)
    turns = any(message.role == "tool" or message.tool_calls for message in body.messages)
    wish = body.response_format
    if not tools and not turns and (wish is None or wish.type == "text"):
        return None
    schema, strict = _schema(wish)
    parallel = body.parallel_tool_calls is not False
    return AnswerForm(tools, choice, named, parallel=parallel, schema=schema, strict=strict)


def _schema(wish: ResponseFormat | None) -> tuple[Mapping[str, Any] | None, bool]:
    """The schema of an answer in JSON, and whether it must be held."""
    if wish is None or wish.type == "text":
        return None, False
    if wish.type == "json_object":
        return {"type": "object"}, False
    schema = (wish.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        field = "response_format.json_schema.schema"
        raise invalid(field, f"{field} must be a JSON Schema object")
    return schema, bool((wish.json_schema or {}).get("strict"))


def _begun(body: ChatRequest, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str | None, str]:
    """The conversation and the beginning of its answer: the last message, where it is the assistant's.

    vLLM's switches may say so, or that a new turn begins after it.
    """
    switches = {"continue_final_message": body.continue_final_message}
    if body.add_generation_prompt is not None:
        switches["add_generation_prompt"] = not body.add_generation_prompt
    name, asked = agreed(switches)
    last = body.messages[-1]
    if last.role != "assistant" and asked:
        raise invalid(name, f"{name}: the last message is not the assistant's, so there is no answer to continue")
    if last.tool_calls or asked is False:
        return messages, None, "messages"
    return begun(messages, f"messages[{len(messages) - 1}].role")


def _forward(body: ChatRequest, form: AnswerForm | None) -> dict[str, Any]:
    """The fields that an upstream server must see, with the messages as they came; empty when there is none.

    Few servers know `allowed_tools`, so they get the allowed functions and no others.
    """
    values = body.model_dump(include=set(FORWARDED), exclude_unset=True)
    fields = {name: value for name, value in values.items() if value not in (None, [])}
    if (fields.get("response_format") or {}).get("type") == "text":
        del fields["response_format"]
    if "tools" not in fields:
        fields = {name: value for name, value in fields.items() if name == "response_format"}
    if form is not None and is_allowance(body.tool_choice):
        fields |= {"tools": list(form.tools), "tool_choice": form.choice}
    turns = any(message.role == "tool" or message.tool_calls for message in body.messages)
    if not fields and not turns:
        return {}
    return {**fields, "messages": [_as_sent(message) for message in body.messages]}


def _as_sent(message: ChatMessage) -> dict[str, Any]:
    """A message as it came, for an upstream server, without what nobody reads and without nulls, which mean nothing."""
    body = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        body["content"] = [part.model_dump(exclude=set(UNREAD)) for part in message.content]
    return {name: value for name, value in body.items() if value is not None and name not in UNREAD}


def reply(body: ChatRequest, outcome: WholeReply) -> dict[str, Any]:
    """The body of a reply that is not streamed; nothing of the request is repeated in it."""
    head = head_of(outcome.started, "chatcmpl", "chat.completion")
    return body_of(outcome, head, [_choice(finish, "message", _message(finish)) for finish in outcome.choices])


def _message(finish: Finish) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": finish.answer, "refusal": None}
    if finish.thinking:
        message |= {"reasoning": finish.thinking, "reasoning_content": finish.thinking}
    if finish.tool_calls:
        message["tool_calls"] = list(finish.tool_calls)
    return message


def _choice(finish: Finish, place: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """A choice that is complete, with its content in `place`."""
    logprobs = _logprob_object(finish.logprobs)
    choice = {"index": finish.index, place: content, "logprobs": logprobs, "finish_reason": finish.reason}
    return choice if finish.token_ids is None else {**choice, "token_ids": finish.token_ids}


def _logprob_object(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    content = [{**_token(item), "top_logprobs": [_token(other) for other in item.top]} for item in tokens]
    return {"content": content, "refusal": None}


def _token(item: TokenLogprob) -> dict[str, Any]:
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode())}


class ChatEncoder(ChunkStream):
    """Chunks of a chat; tool calls come whole, in a chunk before the one that ends their choice, as clients expect."""

    prefix, kind = "chatcmpl", "chat.completion.chunk"

    def first(self, index: int) -> dict[str, Any]:
        """See `ChunkStream`."""
        return _delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """See `ChunkStream`."""
        thought = {"reasoning": thinking, "reasoning_content": thinking} if thinking else {}
        return _delta(index, {**thought, **({"content": answer} if answer else {})})

    def end(self, finish: Finish) -> dict[str, Any]:
        """See `ChunkStream`."""
        return _choice(replace(finish, logprobs=None), "delta", {})

    def calls(self, finish: Finish) -> dict[str, Any] | None:
        """See `ChunkStream`."""
        calls = [{"index": i, **call} for i, call in enumerate(finish.tool_calls)]
        return _delta(finish.index, {"tool_calls": calls}) if calls else None

    def logprobs(self, event: AnswerDelta) -> dict[str, Any] | None:
        """See `ChunkStream`."""
        return _logprob_object(event.logprobs)


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


CHAT = ApiDialect("/v1/chat/completions", ChatRequest, parse, reply, ChatEncoder, ChatReply)
