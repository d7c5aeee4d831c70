"""Search in the text files of one local folder: the passages that share the most distinctive words with a query.

BM25 (Robertson and Zaragoza 2009) over paragraphs, read once when the tool is made. It reads only files that are in the
folder when it is made; links out of the folder are not followed. Cost: one pass over the paragraphs per call. Left out:
files above `max_kb` and formats other than UTF-8 text, of which it warns; an index on disk.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ttc.agents.tool import ToolFailure, Use
from ttc.config.values import at_least, counted
from ttc.core import Problem
from ttc.errors import ConfigError

_WORD = re.compile(r"\w+")
_SATURATION, _LENGTH = 1.5, 0.75
"""The two constants of BM25: how soon more of a word stops helping, and how much long paragraphs are held back."""


def search(*, folder: str, top: int = 3, max_kb: int = 1024) -> Search:
    """Return the tool over `folder`.

    Args:
        folder: its text files, and those of its subfolders, are searched.
        top: passages returned.
        max_kb: files larger than this are left out, in KiB.

    Raises:
        ConfigError: no such folder, or no text in it.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise ConfigError(f"tool search: folder {folder!r} is no folder")
    at_least("tool search", 1, top=top, max_kb=max_kb)
    left_out: list[str] = []
    passages = list(_passages(root, max_kb << 10, left_out))
    if not passages:
        raise ConfigError(f"tool search: {folder} holds no UTF-8 text of at most {max_kb} KiB a file")
    if left_out:
        text = f"{counted(len(left_out), 'file')} of {folder} left out, for no UTF-8 text of at most {max_kb} KiB"
        warnings.warn(f"tool search: {text}: {', '.join(left_out[:3])}", RuntimeWarning, stacklevel=2)
    return Search(passages, top)


@dataclass(frozen=True, slots=True)
class _Passage:
    place: str
    text: str
    words: Counter[str]


class Search:
    """Finds passages."""

    name = "search"
    about = "finds passages in the local files that share words with a query"

    def __init__(self, passages: list[_Passage], top: int) -> None:
        self._passages, self._top = passages, top
        self._holding = Counter(word for passage in passages for word in passage.words)
        self._mean = sum(passage.words.total() for passage in passages) / len(passages)

    def start(self, problem: Problem) -> Use:
        """See `Tool.start`; it has no state."""
        return self._find

    async def _find(self, argument: str) -> str:
        query = set(_WORD.findall(argument.lower()))
        if not query:
            raise ToolFailure("the query has no word")
        scored = [(self._score(passage, query), i) for i, passage in enumerate(self._passages)]
        best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: (-pair[0], pair[1]))[: self._top]
        if not best:
            raise ToolFailure("nothing found")
        return "\n\n".join(f"{self._passages[i].place}: {self._passages[i].text}" for _, i in best)

    def _score(self, passage: _Passage, query: set[str]) -> float:
        held_back = _SATURATION * (1 - _LENGTH + _LENGTH * passage.words.total() / self._mean)
        number = len(self._passages)
        total = 0.0
        for word in query & passage.words.keys():
            rarity = math.log(1 + (number - self._holding[word] + 0.5) / (self._holding[word] + 0.5))
            total += rarity * passage.words[word] * (_SATURATION + 1) / (passage.words[word] + held_back)
        return total


def _passages(root: Path, most: int, left_out: list[str]) -> Iterator[_Passage]:
    for path in sorted(root.rglob("*")):
        if not path.is_file() or not path.resolve().is_relative_to(root):
            continue
        try:
            text = None if path.stat().st_size > most else path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, PermissionError):
            text = None
        if text is None:
            left_out.append(str(path.relative_to(root)))
            continue
        for number, part in enumerate(re.split(r"\n\s*\n", text), start=1):
            words = Counter(_WORD.findall(part.lower()))
            if words:
                yield _Passage(f"{path.relative_to(root)}, paragraph {number}", " ".join(part.split()), words)
