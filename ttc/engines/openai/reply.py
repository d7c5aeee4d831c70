"""What comes back for one draw: the end of a stream, and readers that gather its tokens or its text.

A stream that ends without a finish reason, or with one that says the server gave up, is a transient failure and never a
completion. Unknown finish reasons (a content filter, a tool call) are kept as `abort`: not finished, so they can win no
vote. Missing choices, null contents and chunks that only carry usage are all legal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ttc.core import FinishReason, Logprobs
from ttc.engines.openai.client import Chunk
from ttc.engines.shared.balance import Transient
from ttc.errors import EngineError
from ttc.session.thinking import CLOSE, OPEN

__all__ = ["Outcome", "Reader", "ServerUsage", "Tail", "TextReader", "as_mapping", "first_choice"]

_FINISHES: Mapping[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "repetition": "length",  # vLLM's detector of degenerate loops: cut, not ended
}
_GAVE_UP = frozenset({"abort", "aborted", "cancelled", "error"})


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The token counts a server reports for one request; None where it says nothing."""

    prompt: int | None = None
    generated: int | None = None
    cached: int | None = None
    thinking: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A draw as read from the wire. `num_streamed` is what arrived; beyond `num_generated` it was not kept."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: Logprobs | None
    num_generated: int
    num_streamed: int
    server: ServerUsage


class Reader(Protocol):
    """Gathers one stream."""

    @property
    def num_streamed(self) -> int:
        """Tokens that arrived so far (for text without a tokenizer: chunks, which hold at least one each)."""
        ...

    def add(self, chunk: Chunk) -> tuple[bool, tuple[int, ...]]:
        """Take a chunk; returns whether to stop reading, and the new ids that belong to the draw.

        Raises:
            ValueError: the chunk has not the shape of one.
        """
        ...

    def result(self) -> Outcome:
        """The draw; raises Transient when the stream broke off."""
        ...


def first_choice(chunk: Chunk) -> Mapping[str, Any]:
    """The choice of a chunk; empty for a chunk without one. Requests never ask for more than one.

    Raises:
        ValueError: the chunk has not the shape of one.
    """
    choices = chunk.get("choices") or [{}]
    if not isinstance(choices, Sequence):
        raise ValueError("choices is no list")
    return as_mapping(choices[0], "choice")


def as_mapping(value: object, name: str) -> Mapping[str, Any]:
    """`value`, which may be null; raises ValueError when it is something else than an object."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is no object")
    return value


def _as_text(value: object, name: str) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value or ""


def _as_count(value: object) -> int | None:
    """A token count; what is none counts as not reported."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class Tail:
    """The end of a stream: finish reason, stop reason, usage."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.stop: str | int | None = None
        self.server = ServerUsage()

    def add(self, chunk: Chunk) -> Mapping[str, Any]:
        """Note what ends a draw; returns the chunk's choice."""
        choice = first_choice(chunk)
        if choice.get("finish_reason") is not None:
            self.finish, stop = str(choice["finish_reason"]), choice.get("stop_reason")
            self.stop = stop if isinstance(stop, str | int) else None
        if isinstance(chunk.get("usage"), Mapping):
            self.server = _usage(chunk["usage"])
        return choice

    def reason(self) -> FinishReason:
        """Our finish reason; raises Transient when the server did not end the draw."""
        if self.finish is None:
            raise Transient(EngineError("the server closed the stream before the completion had ended"))
        if self.finish in _GAVE_UP:
            raise Transient(EngineError(f"the server gave the request up ({self.finish})"))
        return _FINISHES.get(self.finish, "abort")


def _usage(usage: Mapping[str, Any]) -> ServerUsage:
    prompt_details = as_mapping(usage.get("prompt_tokens_details"), "prompt_tokens_details")
    details = as_mapping(usage.get("completion_tokens_details"), "completion_tokens_details")
    return ServerUsage(
        prompt=_as_count(usage.get("prompt_tokens")),
        generated=_as_count(usage.get("completion_tokens")),
        cached=_as_count(prompt_details.get("cached_tokens")),
        thinking=_as_count(details.get("reasoning_tokens")),
    )


class TextReader:
    """Gathers text, from `choice.text` or from a chat delta; reasoning fields become a think block.

    `inside` says that the prompt left a think block open, so that the text goes on within it. The end-of-sequence text
    that some servers leave at the end is dropped. `count` counts the tokens of a text, None without a tokenizer.
    """

    def __init__(
        self, stops: Sequence[str], eos_texts: Sequence[str], inside: bool, count: Callable[[str], int] | None
    ) -> None:
        self._stops, self._eos_texts, self._inside, self._count = tuple(stops), eos_texts, inside, count
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._chunks, self._tail = 0, Tail()

    @property
    def num_streamed(self) -> int:
        """See `Reader`."""
        if self._count is None:
            return self._chunks
        return self._count("".join(self._content)) + self._count("".join(self._reasoning))

    def add(self, chunk: Chunk) -> tuple[bool, tuple[int, ...]]:
        """See `Reader`; the server alone decides where the text ends."""
        choice = self._tail.add(chunk)
        delta = as_mapping(choice.get("delta") or choice.get("message"), "delta")
        content = _as_text(choice.get("text") or delta.get("content"), "content")
        reasoning = _as_text(delta.get("reasoning_content") or delta.get("reasoning"), "reasoning")
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._chunks += bool(content or reasoning)
        return False, ()

    def result(self) -> Outcome:
        """See `Reader`."""
        reason, content = self._tail.reason(), "".join(self._content)
        stop: str | None = None
        if reason == "stop":
            stop = self._stop(content)
            content += stop if stop != "eos" and stop not in content else ""  # most servers take it off
            eos = next((text for text in self._eos_texts if content.endswith(text)), "")
            content = content.removesuffix(eos) if stop == "eos" else content
        server = self._tail.server
        num = self.num_streamed if server.generated is None else server.generated
        return Outcome(
            text=_joined("".join(self._reasoning), content, self._inside),
            token_ids=(),
            finish_reason=reason,
            stop_reason=stop,
            logprobs=None,
            num_generated=num,
            num_streamed=num,
            server=server,
        )

    def _stop(self, content: str) -> str:
        """The stop string that ended the text, by the server's word or by the text's own end."""
        if self._tail.stop in self._stops:
            return str(self._tail.stop)
        return next((stop for stop in self._stops if stop in content), "eos")


def _joined(reasoning: str, content: str, inside: bool) -> str:
    """One text with the thinking between markers, as a template would show it."""
    if not reasoning and CLOSE not in content:
        return f"{CLOSE}{content}" if inside and content else content
    if reasoning:
        body = f"{reasoning}{CLOSE}{content}" if content else reasoning
    else:
        body = content.removeprefix(OPEN) if inside else content
    return body if inside or not reasoning else OPEN + body
