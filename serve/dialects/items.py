"""The items of a Responses conversation: what they say, and those that are kept for clients that refer to them.

A stored response is its whole conversation, so it can be continued when what came before it is forgotten. They are in
the memory of this process, each for the key that asked; where they take too many bytes, the oldest is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from serve.requests.body import FIRST_FAULT, RequestBody, read, shown, with_reason
from serve.requests.errors import ApiError, invalid, missing, unsupported
from serve.requests.fields import text_of
from serve.requests.tools import call_of
from ttc.core import Message, ToolCall, ToolMessage

ITEM_BYTES = 1536
"""What an item takes in memory besides its text."""
WHOLE_INPUT = "send the whole conversation as input"
STATELESS = f"this server keeps nothing between requests (its operator can set limits.stored_bytes): {WHOLE_INPUT}"


class InputPart(RequestBody):
    """A part of a message's content."""

    type: Literal["input_text", "output_text", "text"] = with_reason("this server reads text only", ...)
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(RequestBody):
    """An item of the input: a message, a call or its result, or the reasoning of an earlier reply."""

    type: Literal["message", "reasoning", "function_call", "function_call_output", "item_reference"] = with_reason(
        "of the kinds of items messages, calls of functions and their outputs are read; reasoning is accepted",
        "message",
    )
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: str | None = Field(None, description="No effect.")
    summary: list[Any] | None = Field(None, description="Of a reasoning item; not read again.")
    encrypted_content: str | None = Field(None, description="Of a reasoning item; not read again.")
    call_id: str | None = Field(None, description="Of a call and of its output.")
    name: str | None = Field(None, description="Of a call.")
    arguments: str | None = Field(None, description="Of a call.")
    output: str | Annotated[list[dict[str, Any]], FIRST_FAULT] | None = Field(None, description="Of a call's output.")
    namespace: None = None


def messages_of(items: Sequence[InputItem], known: int = 0) -> tuple[Message, ...]:
    """What `items` say; the first `known` of them are no part of `input`, where messages of errors count from."""
    messages: list[Message] = []
    for i, item in enumerate(items, -known):
        if item.type == "function_call" and messages and messages[-1].role == "assistant":
            last = messages.pop()  # calls belong to the turn that they follow
            calls = last.calls if isinstance(last, ToolMessage) else ()
            messages.append(ToolMessage("assistant", last.content, (*calls, _call(item, f"input[{i}]"))))
        elif item.type != "reasoning":
            messages.append(_message(item, f"input[{i}]"))
    if not messages:
        raise invalid("input", "input holds no message")
    return tuple(messages)


def _call(item: InputItem, where: str) -> ToolCall:
    if item.name is None or item.call_id is None:
        raise missing(f"{where}.name" if item.name is None else f"{where}.call_id")
    return call_of(item.name, item.arguments or "", item.call_id, f"{where}.arguments")


def _message(item: InputItem, where: str) -> Message:
    if item.type == "function_call":
        return ToolMessage("assistant", "", (_call(item, where),))
    if item.type == "function_call_output":
        if item.output is None or item.call_id is None:
            raise missing(f"{where}.output" if item.output is None else f"{where}.call_id")
        return ToolMessage("tool", _content(item.output, f"{where}.output"), (), item.call_id)
    if item.role is None or item.content is None:
        raise missing(f"{where}.role" if item.role is None else f"{where}.content")
    return Message("system" if item.role == "developer" else item.role, _content(item.content, f"{where}.content"))


def _content(content: str | list[dict[str, Any]], where: str) -> str:
    """The text of a content; of reasoning items it looks different, so parts are checked here."""
    if isinstance(content, str):
        return content
    return text_of([read(InputPart, part, f"{where}[{i}]") for i, part in enumerate(content)])


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The items of a conversation that ends with a response, and their bytes."""

    items: tuple[InputItem, ...] = ()
    num_bytes: int = 0


class ResponseStore:
    """Stored responses of all keys; `max_bytes` 0 stores none."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._num_bytes = max_bytes, 0
        self._responses: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._items: dict[tuple[str, str], tuple[InputItem, str]] = {}
        """By key and id: an item, and the newest response that holds it."""

    def response(self, owner: str, name: str) -> StoredResponse:
        """A stored response of a key; raises ApiError where there is none."""
        stored = self._responses.get((owner, name))
        if stored is None:
            raise self._gone("previous_response_id", "previous response", name)
        return stored

    def item(self, owner: str, name: str, where: str) -> InputItem:
        """An item of a stored response; raises ApiError where there is none."""
        entry = self._items.get((owner, name))
        if entry is None:
            raise self._gone(f"{where}.id", "item", name)
        return entry[0]

    def _gone(self, field_name: str, kind: str, name: str) -> ApiError:
        if not self.max_bytes:
            return unsupported(field_name, f"{field_name}: {STATELESS}")
        why = "it was not stored for this key, or has been forgotten: for newer ones, or as the server restarted"
        text = f"{field_name}: no {kind} {shown(name)} is kept here ({why}): {WHOLE_INPUT}"
        return invalid(field_name, text, f"{kind.replace(' ', '_')}_not_found")

    def keep(self, owner: str, name: str, before: StoredResponse, own: Sequence[InputItem]) -> None:
        """Store a response that adds `own` items to the conversation `before`, and forget the oldest for it."""
        num_bytes = before.num_bytes + sum(ITEM_BYTES + len(item.model_dump_json(exclude_none=True)) for item in own)
        if num_bytes > self.max_bytes:
            return
        stored = StoredResponse((*before.items, *own), num_bytes)
        self._responses[owner, name] = stored
        self._items |= {(owner, item.id): (item, name) for item in stored.items if item.id is not None}
        self._num_bytes += num_bytes
        while self._num_bytes > self.max_bytes:
            self._forget(*self._responses.popitem(last=False))

    def _forget(self, place: tuple[str, str], stored: StoredResponse) -> None:
        owner, name = place
        self._num_bytes -= stored.num_bytes
        for item in stored.items:
            if self._items.get((owner, item.id or ""), (item, ""))[1] == name:
                del self._items[owner, item.id or ""]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one response continues, and where it is kept; without a store, nothing is."""

    store: ResponseStore = field(default_factory=lambda: ResponseStore(0))
    owner: str = ""
    before: StoredResponse = StoredResponse()
    is_stored: bool = False

    def keep(self, name: str, asked: Sequence[InputItem], output: Sequence[Mapping[str, Any]]) -> None:
        """Store a response, if that is wanted."""
        if self.is_stored:
            items = [*asked, *(InputItem.model_validate(item) for item in output)]
            self.store.keep(self.owner, name, self.before, items)
