"""Frames on pipes between this process and a cell: one byte of kind, four of length, then the bytes.

These are the blocking ends that run in the cell; the other side, which trusts nobody, is `streams`.
"""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct(">cI")
MAX_FRAME = 64 << 20
"""Bytes of the longest frame that is taken."""

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
    """Read one frame; None at the end of the stream or when a frame is broken."""
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
