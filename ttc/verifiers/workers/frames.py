"""The pipe between the pool and a worker: messages in JSON, each behind its length in four bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

PREFIX = struct.Struct(">I")
"""The length of a message, in bytes."""
MAX_FRAME = 1 << 20
"""Bytes of the longest reply that the pool reads."""


def write_frame(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Write one message. Raises BrokenPipeError where the other end has gone."""
    body = json.dumps(message).encode("ascii")
    stream.write(PREFIX.pack(len(body)) + body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(PREFIX.size)
    if len(head) < PREFIX.size:
        return None
    (length,) = PREFIX.unpack(head)
    message: dict[str, Any] = json.loads(stream.read(length))
    return message
