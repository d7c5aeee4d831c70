"""Digests of what a job is made of: a model folder's weights, tokenizer, template and configuration, and files.

A digest is the first 16 hex digits of a SHA-256. Weights are hashed whole, once per job: about a second per gigabyte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["digest_of", "file_digest", "model_digests"]

_BLOCK = 1 << 20
_PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("*.safetensors", "*.bin", "*.safetensors.index.json"),
    "config": ("config.json", "generation_config.json"),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt"),
    "template": ("chat_template.jinja", "chat_template.json"),
}


def model_digests(folder: Path) -> dict[str, str]:
    """One digest per part of a model folder; a part that has no file of its own is left out."""
    found: dict[str, str] = {}
    for part, patterns in _PARTS.items():
        files = sorted({path for pattern in patterns for path in folder.glob(pattern)})
        if files:
            found[part] = digest_of([path.name, file_digest(path)] for path in files)
    return found


def file_digest(path: Path) -> str:
    """Digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()[:16]


def digest_of(data: Any) -> str:
    """Digest of JSON data; the order of keys does not matter, that of lists does. An iterator counts as a list."""
    digest = hashlib.sha256()
    if isinstance(data, Iterator):  # of any length: never held at once
        digest.update(b"[")
        for number, item in enumerate(data):
            digest.update((b"," if number else b"") + _canonical(item))
        digest.update(b"]")
    else:
        digest.update(_canonical(data))
    return digest.hexdigest()[:16]


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
