"""`POST /v1/responses`: the text part of OpenAI's Responses, without state: what a request holds is all there is.

`input` is a text or a list of messages; `instructions` is the system message before them. What came out of an earlier
reply can be sent back as it is: messages are read, reasoning items are not read again. The reply is made in
`serve.dialects.responses_reply`.

Left out, and refused by name: stored responses and conversations, tools, images and files, background runs, JSON
formats, templates of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import Field

from serve.requests.body import FIRST_FAULT, WHOLE, Body, OpenBody, read, with_reason
from serve.requests.errors import ApiError, invalid
from serve.requests.fields import (
    OpenAIFields,
    StreamOptions,
    TokenCount,
    max_tokens_of,
    sampling_of,
    stream_options,
    text_of,
)
from serve.requests.request import ServeRequest
from serve.requests.search import read_search
from serve.requests.thinking import read_thinking
from ttc.core import Message

__all__ = ["ResponsesRequest", "parse"]

STATELESS = "this server keeps nothing between requests: send the whole conversation as input"
MAX_METADATA = 16


class InputPart(Body):
    """A part of a message's content."""

    type: Literal["input_text", "output_text", "text"] = with_reason("this server reads text only", ...)
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(Body):
    """An item of the input: a message, or the reasoning of an earlier reply."""

    type: Literal["message", "reasoning"] = with_reason(
        "of the kinds of items only messages are read, and reasoning is accepted", "message"
    )
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: str | None = Field(None, description="No effect.")
    summary: list[Any] | None = Field(None, description="Of a reasoning item; not read again.")
    encrypted_content: str | None = Field(None, description="Of a reasoning item; not read again.")


class TextFormat(OpenBody):
    """`text.format`."""

    type: Literal["text"] = with_reason("formats go with /v1/chat/completions only", ...)


class TextOptions(Body):
    """`text`: the form of an answer."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(OpenAIFields):
    """The body of a Responses request."""

    input: Annotated[str, MinLen(1)] | Annotated[list[InputItem], FIRST_FAULT, MinLen(1), MaxLen(4096)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = Field(None, description="Most tokens, thought included.")
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    store: Literal[False] | None = with_reason(STATELESS)
    background: Literal[False] | None = with_reason(STATELESS)
    previous_response_id: None = with_reason(STATELESS)
    conversation: None = with_reason(STATELESS)
    context_management: None = with_reason(STATELESS)
    prompt: None = with_reason("templates of prompts are not kept here")
    moderation: None = with_reason("there is no moderation here")
    image: None = with_reason("images are not made here")
    include: Annotated[list[Any], MaxLen(0)] | None = with_reason("nothing further can be included")
    tools: Annotated[list[Any], MaxLen(0)] | None = with_reason("tools go with /v1/chat/completions only")
    tool_choice: Literal["auto", "none"] | None = with_reason("there are no tools")
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, WHOLE] | None = None
    top_logprobs: Annotated[int, Ge(0), Le(0), WHOLE] | None = with_reason("log-probabilities go with chat only")
    truncation: Literal["disabled"] | None = with_reason("nothing is cut off a conversation")


def parse(body: ResponsesRequest) -> ServeRequest:
    """Translate a request.

    Raises:
        ApiError: an item that cannot be read, or fields that contradict each other.
    """
    stream_options(body, body.stream_options)
    _check_metadata(body.metadata or {})
    max_tokens, name = max_tokens_of(body, ("max_output_tokens",))
    return ServeRequest(
        model=body.model,
        messages=_messages(body),
        stream=bool(body.stream),
        sampling=sampling_of(body, max_tokens, name),
        thinking=read_thinking(body),
        search=read_search(body.ttc, None if body.seed is None else abs(body.seed)),
    )


def _messages(body: ResponsesRequest) -> tuple[Message, ...]:
    head = [Message("system", body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return (*head, Message("user", body.input))
    messages = [_message(item, f"input[{i}]") for i, item in enumerate(body.input) if item.type != "reasoning"]
    if not messages:
        raise invalid("input", "input holds no message")
    return (*head, *messages)


def _message(item: InputItem, where: str) -> Message:
    if item.role is None or item.content is None:
        missing = f"{where}.role" if item.role is None else f"{where}.content"
        raise invalid(missing, f"{missing} is required", "missing_required_parameter")
    content: Any = item.content
    if isinstance(content, list):  # of reasoning items it looks different, so parts are checked here
        content = [read(InputPart, part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    return Message("system" if item.role == "developer" else item.role, text_of(content))


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"metadata must have at most {MAX_METADATA} keys, got {len(metadata)}")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ApiError(400, "invalid_type", f"metadata.{key[:64]} must be a string", param="metadata")
