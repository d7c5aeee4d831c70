"""Length: words, sentences, paragraphs, and the first word of a paragraph."""

from __future__ import annotations

import re

from ttc.verifiers.instructions.arguments import Arguments, Check
from ttc.verifiers.instructions.sentences import count_sentences
from ttc.verifiers.instructions.words import count_words

_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_ENDS_WORD = re.compile(r"[.,?!'\"]")


def number_words(arguments: Arguments) -> Check:
    """At least, or less than, so many words."""
    enough = arguments.compared("relation", "num_words")
    return lambda text: enough(count_words(text))


def number_sentences(arguments: Arguments) -> Check:
    """At least, or less than, so many sentences (see `sentences`)."""
    enough = arguments.compared("relation", "num_sentences")
    return lambda text: enough(count_sentences(text))


def number_paragraphs(arguments: Arguments) -> Check:
    """Exactly so many paragraphs between dividers `***`; an empty one counts as broken, except first and last."""
    wanted = arguments.count("num_paragraphs")

    def check(text: str) -> bool:
        blank = [not part.strip() for part in _DIVIDER.split(text)]
        return not any(blank[1:-1]) and len(blank) - blank[0] - (len(blank) > 1 and blank[-1]) == wanted

    return check


def nth_paragraph_first_word(arguments: Arguments) -> Check:
    """So many paragraphs between empty lines, one of which begins with the word."""
    wanted, nth = arguments.count("num_paragraphs"), arguments.count("nth_paragraph")
    first = arguments.text("first_word").strip().lower()

    def check(text: str) -> bool:
        paragraphs = text.split("\n\n")
        number = sum(1 for paragraph in paragraphs if paragraph.strip())
        if not 1 <= nth <= number or not paragraphs[nth - 1].strip():
            return False
        word = paragraphs[nth - 1].split(maxsplit=1)[0].lstrip("'").lstrip('"')
        return number == wanted and _ENDS_WORD.split(word, maxsplit=1)[0].lower() == first

    return check
