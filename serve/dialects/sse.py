"""Server-sent events: data lines, comments, and the end."""

from __future__ import annotations

import json
from typing import Any

from serve.requests.errors import ApiError

__all__ = ["DONE", "HEARTBEAT", "Frame", "data", "named", "openai_failure"]

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": keep-alive\n\n"


def data(value: Any) -> bytes:
    """One event without a name."""
    return b"data: " + _text(value) + b"\n\n"


def named(name: str, value: Any) -> bytes:
    """One event with a name, as the Responses and Messages dialects use them."""
    return b"event: " + name.encode() + b"\n" + data(value)


class Frame:
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
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")
