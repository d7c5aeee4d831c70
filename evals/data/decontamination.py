"""Are training prompts free of evaluation problems, and of their own answers?

There are two detectors, because each misses what the other finds: equality of normalised texts (case, spaces,
punctuation and Unicode forms aside), and a shared run of `n` words (13, as GPT-3 and its followers use). A text shorter
than n words is compared as a whole. Training, distillation and their pre-flight checks share this file. Cost: linear in
the texts. Left out: paraphrases and translations; numbers changed in an otherwise equal problem.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from evals.task import Item, gold_text

_GAPS = re.compile(r"[^\w+\-*/=<>^%.]+")
_MARKS = r"(?:\\boxed\{{\s*{0}\s*\}}|####\s*{0}\b|answer(?:\s+is)?\s*[:=]?\s*\$?{0}\b(?!\s*[-+*/^=]))"
_MARK_BEGINS = re.compile(r"\\boxed\{|####|answer", re.IGNORECASE)
"""What every match of `_MARKS` begins with."""
_LONG = 20
"""From this length on, a target that stands in its prompt word for word counts as given away."""
_MIN_COMMON = 3
"""With at least this many prompts, the words that all of them share count as an instruction."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two texts that are too alike: their places, what they share, and which detector found it."""

    train: int
    held_out: int
    shared: str
    how: Literal["equal", "ngram"]


@dataclass(frozen=True, slots=True)
class Leak:
    """A problem whose prompt gives its answer away: its id and the part that does."""

    problem_id: str
    shared: str


def normalised(text: str) -> str:
    """Lower case, one Unicode form, words and operators separated by single spaces."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return _GAPS.sub(" ", plain).strip()


def overlaps(train: Sequence[str], held_out: Iterable[str], *, n: int = 13) -> Iterator[Overlap]:
    """Yield one overlap per training text that is too like a held-out one, in the order of the training texts.

    Args:
        train: texts that would be trained on.
        held_out: texts that something is measured on.
        n: words of a shared run that count as the same text; at least 1.
    """
    whole: dict[str, int] = {}
    grams: dict[tuple[str, ...], int] = {}
    for place, text in enumerate(held_out):
        plain = normalised(text)
        whole.setdefault(plain, place)
        for gram in _grams(plain, n):
            grams.setdefault(gram, place)
    for place, text in enumerate(train):
        plain = normalised(text)
        if plain in whole:
            yield Overlap(place, whole[plain], text, "equal")
            continue
        match = next((gram for gram in _grams(plain, n) if gram in grams), None)
        if match is not None:
            yield Overlap(place, grams[match], " ".join(match), "ngram")


def answer_leaks(items: Iterable[Item]) -> Iterator[Leak]:
    """Yield the problems whose prompt gives the target away: after an answer mark, or word for word if it is long.

    A short target may stand in a problem by chance (the 12 of `12 + 30`), so it counts only where the prompt calls it
    the answer.
    """
    for item in items:
        text, target = prompt_text(item), gold_text(item.target).strip()
        if not target:
            continue
        marked = _marked_answer(target, text)
        if marked is not None:
            yield Leak(item.problem.id, marked.group(0))
        elif len(target) >= _LONG and target in text:
            yield Leak(item.problem.id, target)


def _marked_answer(target: str, text: str) -> re.Match[str] | None:
    """Where the text names the target as its answer.

    The pattern is costly to compile, so only texts that may match are searched.
    """
    same_in_any_case = target.lower() == target.upper()
    if not _MARK_BEGINS.search(text) or (same_in_any_case and target not in text):
        return None
    return re.search(_MARKS.format(re.escape(target)), text, re.IGNORECASE)


def own_texts(items: Sequence[Item]) -> list[str]:
    """Each prompt without the words that all of them begin or end with."""
    words = [prompt_text(item).split() for item in items]
    if len(words) < _MIN_COMMON:
        return [" ".join(line) for line in words]
    head = _num_common(words)
    tail = _num_common([line[head:][::-1] for line in words])
    return [" ".join(line[head : len(line) - tail]) for line in words]


def _num_common(lines: Sequence[Sequence[str]]) -> int:
    """How many words all lines begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*lines, strict=False)))


def prompt_text(item: Item) -> str:
    """All text that a problem sends to the model."""
    return "\n".join(message.content for message in item.problem.messages)


def _grams(plain: str, n: int) -> Iterator[tuple[str, ...]]:
    words = plain.split(" ")
    for start in range(len(words) - n + 1):
        yield tuple(words[start : start + n])
