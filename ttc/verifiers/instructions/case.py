"""Case: all in capitals, all in lower case (both in English), and words in capitals."""

from __future__ import annotations

from ttc.verifiers.instructions.arguments import Arguments, Check
from ttc.verifiers.instructions.language import is_in
from ttc.verifiers.instructions.words import count_capital_words
from ttc.verifiers.shared.languages import check_code


def english_capital(_arguments: Arguments) -> Check:
    """English without a small letter."""
    check_code("en")
    return lambda text: text.isupper() and is_in(text, "en")


def english_lowercase(_arguments: Arguments) -> Check:
    """English without a capital."""
    check_code("en")
    return lambda text: text.islower() and is_in(text, "en")


def capital_word_frequency(arguments: Arguments) -> Check:
    """At least, or less than, so many words in capitals."""
    enough = arguments.compared("capital_relation", "capital_frequency")
    return lambda text: enough(count_capital_words(text))
