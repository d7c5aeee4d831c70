"""The 25 kinds of verifiable instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), one small file per family.

`INSTRUCTIONS` maps an id to a function that reads the parameters and returns the check: text -> followed or not. Each
check is linear in the text. Where the published checkers differ, the docstring of the check or of its file says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from ttc.verifiers.instructions.table import (
    case,
    combination,
    content,
    format,
    keywords,
    language,
    length,
    punctuation,
    startend,
)
from ttc.verifiers.instructions.arguments import Arguments, Check, Make

__all__ = ["INSTRUCTIONS", "Arguments", "Check", "Make"]

INSTRUCTIONS: Mapping[str, Make] = {
    "keywords:existence": keywords.existence,
    "keywords:frequency": keywords.frequency,
    "keywords:forbidden_words": keywords.forbidden_words,
    "keywords:letter_frequency": keywords.letter_frequency,
    "language:response_language": language.response_language,
    "length_constraints:number_sentences": length.number_sentences,
    "length_constraints:number_paragraphs": length.number_paragraphs,
    "length_constraints:number_words": length.number_words,
    "length_constraints:nth_paragraph_first_word": length.nth_paragraph_first_word,
    "detectable_content:number_placeholders": content.number_placeholders,
    "detectable_content:postscript": content.postscript,
    "detectable_format:number_bullet_lists": format.number_bullet_lists,
    "detectable_format:constrained_response": format.constrained_response,
    "detectable_format:number_highlighted_sections": format.number_highlighted_sections,
    "detectable_format:multiple_sections": format.multiple_sections,
    "detectable_format:json_format": format.json_format,
    "detectable_format:title": format.title,
    "combination:two_responses": combination.two_responses,
    "combination:repeat_prompt": combination.repeat_prompt,
    "startend:end_checker": startend.end_checker,
    "startend:quotation": startend.quotation,
    "change_case:capital_word_frequency": case.capital_word_frequency,
    "change_case:english_capital": case.english_capital,
    "change_case:english_lowercase": case.english_lowercase,
    "punctuation:no_comma": punctuation.no_comma,
}
