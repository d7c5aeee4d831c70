"""Every id means the same to student and teacher.

Equal sizes prove nothing: one family has 151,936 rows in one model and 152,064 in another for the same tokens, and
others have the same size for different ones (TRL issues 2215 and 4562). Compared are the bytes of every used id,
special tokens by their names, so tokenizers that spell a space as `Ġ` and as `▁` agree where they agree. Left out:
equal maps under different merge rules, which split a text differently but give sampled ids the same meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.preflight import Finding, fine, reads_tokens, refused, skipped, teacher_folders
from distill.spec.method import DistillJob
from train.base.models import load_tokenizer


def tokenizer(job: DistillJob) -> Finding:
    """Compare what ids stand for."""
    if not reads_tokens(job):
        return skipped()
    for name, folder in teacher_folders(job).items():
        unlike = differences(job.student, folder)
        if unlike:
            token, ours, theirs = unlike[0]
            return refused(
                f"{len(unlike)} ids differ: {token} is {ours} to the student and {theirs} to {name}",
                "take a teacher of the student's tokenizer, or a method that passes texts: rejection or search",
            )
    return fine("every id means the same bytes")


Difference = tuple[int, str, str]
"""An id, and what it stands for on either side; "nothing" where there is no such id."""


def differences(first: Path, second: Path) -> list[Difference]:
    """The ids that stand for different things in the tokenizers of two folders, in order."""
    ours, theirs = id_bytes(first), id_bytes(second)
    return [
        (token, _shown(ours.get(token)), _shown(theirs.get(token)))
        for token in sorted(ours.keys() | theirs.keys())
        if ours.get(token) != theirs.get(token)
    ]


def id_bytes(folder: Path) -> dict[int, bytes]:
    """The meaning of every used id; of a special token its name, marked."""
    tokenizer: Any = load_tokenizer(folder)
    decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder") or {}
    alphabet = _byte_alphabet() if "ByteLevel" in json.dumps(decoder) else None
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    vocab: Mapping[str, int] = tokenizer.get_vocab()
    return {
        token: b"\0" + piece.encode() if piece in added else _bytes_of(piece, alphabet)
        for piece, token in vocab.items()
    }


def _bytes_of(piece: str, alphabet: Mapping[str, int] | None) -> bytes:
    if alphabet is not None and all(char in alphabet for char in piece):
        return bytes(alphabet[char] for char in piece)
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode("utf-8", "surrogatepass")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable ones are themselves, the others follow from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


def _shown(piece: bytes | None) -> str:
    if piece is None:
        return "nothing"
    return repr(piece.removeprefix(b"\0").decode("utf-8", "replace"))
