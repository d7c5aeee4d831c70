"""Frames on pipes between this process and a cell: one byte of kind, four of length, then the bytes.

The cell's ends block. The host's ends trust nothing: every wait has a deadline, every read a limit.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Mapping
from contextlib import suppress

HEADER = struct.Struct(">cI")
MAX_FRAME = 64 << 20
"""Bytes of the longest accepted frame."""

JOB, READY, REFUSED = b"J", b"Y", b"X"
CALL, REPLY, GONE, NOTE, DONE = b"C", b"R", b"G", b"N", b"D"


def pack(kind: bytes, payload: bytes) -> bytes:
    """Return one frame."""
    return HEADER.pack(kind, len(payload)) + payload


def write(descriptor: int, kind: bytes, payload: bytes) -> None:
    """Write one frame."""
    data = memoryview(pack(kind, payload))
    while data:
        data = data[os.write(descriptor, data) :]


def read(descriptor: int) -> tuple[bytes, bytes] | None:
    """Read one frame; None at the end of the stream or for a malformed frame."""
    head = _exactly(descriptor, HEADER.size)
    if head is None:
        return None
    kind, length = HEADER.unpack(head)
    if length > MAX_FRAME:
        return None
    payload = _exactly(descriptor, length)
    return None if payload is None else (kind, payload)


def _exactly(descriptor: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


MAX_REPLY = 8 << 20
"""Bytes of the longest frame accepted from a cell."""


class StreamEnded(Exception):
    """The other side closed the stream, sent a malformed frame, or exceeded the deadline."""


def send(descriptor: int, kind: bytes, payload: bytes, deadline: float) -> None:
    """Write one frame; raises StreamEnded."""
    data = memoryview(pack(kind, payload))
    while data:
        _wait(descriptor, select.POLLOUT, deadline)
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            continue
        except BrokenPipeError as exc:
            raise StreamEnded from exc


def receive(descriptor: int, deadline: float) -> tuple[bytes, bytes]:
    """Read one frame; raises StreamEnded."""
    kind, length = HEADER.unpack(_all_of(descriptor, HEADER.size, deadline))
    if length > MAX_REPLY:
        raise StreamEnded(f"a frame of {length} bytes")
    return kind, _all_of(descriptor, length, deadline)


def _all_of(descriptor: int, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        _wait(descriptor, select.POLLIN, deadline)
        try:
            part = os.read(descriptor, count - len(data))
        except BlockingIOError:
            continue
        if not part:
            raise StreamEnded
        data += part
    return bytes(data)


def drain(caps: Mapping[int, int], deadline: float) -> tuple[dict[int, bytes], int | None]:
    """Read several streams to their ends; the output of each, and the stream that exceeded its limit, if any.

    A negative limit keeps that many bytes of the end and is never exceeded. Streams that are still open at the deadline
    return what they have sent.
    """
    texts = {descriptor: bytearray() for descriptor in caps}
    open_ = set(caps)
    while open_:
        poll = select.poll()
        for descriptor in open_:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(_left_ms(deadline))
        if not ready:
            break
        for descriptor, _ in ready:
            part = b""
            with suppress(BlockingIOError):
                part = os.read(descriptor, 65_536)
                if not part:
                    open_.discard(descriptor)
            data, cap = texts[descriptor], caps[descriptor]
            data += part
            if 0 <= cap < len(data):
                return {each: bytes(text) for each, text in texts.items()}, descriptor
            if cap < 0:
                del data[:cap]
    return {descriptor: bytes(data) for descriptor, data in texts.items()}, None


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(_left_ms(deadline)):
        raise StreamEnded("the deadline passed")


def _left_ms(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic()) * 1000
