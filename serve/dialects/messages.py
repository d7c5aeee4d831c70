"""`POST /v1/messages`: the text part of Anthropic's Messages, thinking included.

`thinking.budget_tokens` is the budget, held to the token as in every dialect, and may be below Anthropic's least of
1024; `thinking` that is absent or adaptive leaves it to `output_config.effort`, then to the server. The reply is made
in `serve.dialects.messages_reply`.

Left out, and refused by name: tools, images and documents, prefilled answers, containers, JSON formats. A mark for
Anthropic's prompt cache has no effect: prefixes are cached here anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import MaxLen, MinLen
from pydantic import Field

from serve.requests.body import FIRST_FAULT, Body, with_reason
from serve.requests.errors import ApiError, invalid
from serve.requests.fields import CommonFields, StopText, TokenCount, text_of
from serve.requests.request import SamplingWish, ServeRequest, ThinkingWish
from serve.requests.search import read_search
from serve.requests.thinking import Effort, ThinkingMode, read_thinking
from ttc.core import Message

__all__ = ["MessagesRequest", "parse"]


class ContentBlock(Body):
    """A block of a message's content."""

    type: Literal["text", "thinking", "redacted_thinking"] = with_reason("this server reads text only", ...)
    text: str | None = None
    cache_control: dict[str, Any] | None = Field(None, description="No effect.")
    citations: Annotated[list[Any], MaxLen(0)] | None = Field(None, description="None.")
    thinking: str | None = Field(None, description="No effect: thought of earlier turns is not read again.")
    signature: str | None = Field(None, description="No effect, like thinking.")
    data: str | None = Field(None, description="No effect, like thinking.")


_Content = str | Annotated[list[ContentBlock], FIRST_FAULT, MinLen(1)]


class MessageTurn(Body):
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


class OutputConfig(Body):
    """`output_config`: the effort of a reply."""

    effort: Effort | None = None
    format: None = with_reason("formats go with /v1/chat/completions only")


class MessagesRequest(CommonFields):
    """The body of a Messages request."""

    messages: Annotated[list[MessageTurn], FIRST_FAULT, MinLen(1), MaxLen(4096)]
    system: _Content | None = None
    max_tokens: TokenCount = Field(description="Most tokens, thought included.")
    stop_sequences: Annotated[list[StopText], MaxLen(4)] | None = None
    thinking: MessagesThinking | None = None
    output_config: OutputConfig | None = None
    metadata: dict[str, Any] | None = Field(None, description="No effect.")
    service_tier: str | None = Field(None, description="No effect.")
    cache_control: dict[str, Any] | None = Field(None, description="No effect.")
    tools: Annotated[list[Any], MaxLen(0)] | None = with_reason("tools go with /v1/chat/completions only")
    tool_choice: None = with_reason("there are no tools")
    container: None = with_reason("nothing runs code here")
    mcp_servers: Annotated[list[Any], MaxLen(0)] | None = with_reason("there are no tools")
    context_management: None = with_reason("nothing is cut off a conversation")


def parse(body: MessagesRequest) -> ServeRequest:
    """Translate a request.

    Raises:
        ApiError: a message that cannot be continued from, or fields that contradict each other.
    """
    return ServeRequest(
        model=body.model,
        messages=_messages(body),
        stream=bool(body.stream),
        sampling=SamplingWish(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
            max_tokens=body.max_tokens,
            stop=tuple(body.stop_sequences or ()),
        ),
        thinking=_thinking(body),
        search=read_search(body.ttc, None),
    )


def _messages(body: MessagesRequest) -> tuple[Message, ...]:
    if body.messages[-1].role != "user":
        last = f"messages[{len(body.messages) - 1}].role"
        raise invalid(last, f"{last}: the last message must be the user's; an answer cannot be begun for the model")
    system = _text(body.system, "system")
    turns = [Message(turn.role, _text(turn.content, f"messages[{i}].content")) for i, turn in enumerate(body.messages)]
    return (*([Message("system", system)] if system else []), *turns)


def _text(content: str | list[ContentBlock] | None, where: str) -> str:
    """The text of a content; thought of earlier turns is left out."""
    if not isinstance(content, list):
        return text_of(content)
    for i, block in enumerate(content):
        if block.type == "text" and block.text is None:
            raise invalid(f"{where}[{i}].text", f"{where}[{i}].text is required", "missing_required_parameter")
    return "".join(block.text or "" for block in content if block.type == "text")


def _thinking(body: MessagesRequest) -> ThinkingWish:
    """Thinking by Anthropic's names, and by the others that every dialect takes."""
    mode = body.thinking
    budget = None if mode is None else mode.budget_tokens
    if mode is not None and mode.type == "enabled" and budget is None:
        name = "thinking.budget_tokens"
        raise invalid(name, f"{name} is required where thinking.type is enabled", "missing_required_parameter")
    if mode is not None and mode.type == "adaptive" and budget is not None:
        raise invalid("thinking.budget_tokens", "thinking.budget_tokens goes with thinking.type enabled")
    if budget is not None and budget >= body.max_tokens:
        raise invalid(
            "thinking.budget_tokens",
            f"thinking.budget_tokens = {budget} must be less than max_tokens = {body.max_tokens}",
            "budget_exceeds_max_tokens",
        )
    effort, other = None if body.output_config is None else body.output_config.effort, body.reasoning_effort
    if effort is not None and other not in (None, effort):
        raise invalid(
            "output_config.effort",
            f"reasoning_effort = {other!r} and output_config.effort = {effort!r} contradict each other: send one",
            "conflicting_thinking",
        )
    try:
        wish = read_thinking(body.model_copy(update={"reasoning_effort": effort or other}))
    except ApiError as error:
        raise error if effort is None else _renamed(error) from error
    if effort is not None:
        wish = replace(wish, effort_field="output_config.effort")
    return replace(wish, show=wish.show and (mode is None or mode.display != "omitted"))


def _renamed(error: ApiError) -> ApiError:
    """Speak of the effort by the name that the client used."""
    old, new = "reasoning_effort", "output_config.effort"
    param = new if error.param == old else error.param
    return ApiError(error.status, error.code, error.message.replace(old, new), param=param)
