"""Names by content: the start of a digest, short enough for keys, folders and traces."""

from __future__ import annotations

from typing import Any

from ttc.identity.digests import digest_of

__all__ = ["name_of"]


def name_of(data: Any) -> str:
    """The first 16 hex digits of the digest of JSON data, or of an iterator of it."""
    return digest_of(data)[:16]
