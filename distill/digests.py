"""Digests of what a job is made of: a model folder's weights, tokenizer, template and configuration, and files.

A digest is the first 16 hex digits of a SHA-256. Weights are hashed whole, once per job: about a second per gigabyte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
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
    plain = list(data) if isinstance(data, Iterable) and not isinstance(data, str | Mapping) else data
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
