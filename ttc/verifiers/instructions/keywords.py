"""Keywords: that words occur, do not occur, or occur so often; that a letter does.

Keywords are literal text and their case does not matter. (IFEval reads them as regular expressions; none of its
prompts has one that would differ.)
"""

from __future__ import annotations

import re

from ttc.verifiers.instructions.arguments import Arguments, Check


def existence(arguments: Arguments) -> Check:
    """Every keyword occurs, also inside other words."""
    patterns = [_anywhere(word) for word in arguments.texts("keywords")]
    return lambda text: all(pattern.search(text) for pattern in patterns)


def frequency(arguments: Arguments) -> Check:
    """The keyword occurs at least, or less than, so many times."""
    pattern = _anywhere(arguments.text("keyword"))
    enough = arguments.compared("relation", "frequency")
    return lambda text: enough(sum(1 for _ in pattern.finditer(text)))


def forbidden_words(arguments: Arguments) -> Check:
    """None of the words occurs as a word of its own."""
    patterns = [re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE) for word in arguments.texts("forbidden_words")]
    return lambda text: not any(pattern.search(text) for pattern in patterns)


def letter_frequency(arguments: Arguments) -> Check:
    """The letter, or any other character, occurs at least, or less than, so many times."""
    letter = arguments.text("letter").strip().lower()
    enough = arguments.compared("let_relation", "let_frequency")
    return lambda text: enough(text.lower().count(letter))


def _anywhere(word: str) -> re.Pattern[str]:
    return re.compile(re.escape(word.strip()), re.IGNORECASE)
