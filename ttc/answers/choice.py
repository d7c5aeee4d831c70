"""Answers by letter: (C), C., option C, each with the letter cut out; a second letter beside it is a hedge."""

from __future__ import annotations

import re

from ttc.answers.canonical import text_key
from ttc.answers.extract import LEAD, MAX_FINAL, Extraction, Hit, cascade, found, usual_rules

__all__ = ["choice_key", "choice_letter", "extract_choice"]

_LETTER = re.compile(
    r"\s*(?:\\text(?:bf)?\s*\{|\\mathrm\s*\{|\\mathbf\s*\{|\\\(|[\"'*$(\[]|\boption\b|\bchoice\b|\banswer\b|\s)*"
    r"(?P<letter>[A-Za-zＡ-Ｚ])(?![A-Za-z'’])(?P<rest>.*)\Z",
    re.DOTALL | re.IGNORECASE,
)
_SECOND = re.compile(
    r"[\s})\]*$\"'.:]*(?:,|/|&|or\b|and\b|或|和)\s*[\s({\[*$\"'\\a-z]{0,12}?(?<![A-Za-z])(?P<letter>[A-Z])(?![A-Za-z'’])"
)
_ALONE = re.compile(r"[\s*$(\[\\{a-z]*[A-Za-z][\s)\].:}*$,]")


def choice_letter(final: str) -> tuple[str, bool]:
    """The letter of a choice in upper case and whether a second one is offered beside it; ("", False) without any."""
    match = _LETTER.match(final[:MAX_FINAL])
    if match is None:
        return "", False
    letter = chr(ord(match["letter"]) - 0xFEE0) if ord(match["letter"]) > 0xFF00 else match["letter"]
    if letter.islower() and re.match(r"\s+[a-z]", match["rest"]):
        return "", False
    second = _SECOND.match(match["rest"])
    return letter.upper(), bool(second and second["letter"] != letter.upper())


def choice_key(final: str) -> str:
    """The letter, or the case-folded words when there is none."""
    return choice_letter(final)[0] or text_key(final)


def _choice_hedge(final: str) -> bool:
    return choice_letter(final)[1]


def _trim_choice(clause: str) -> tuple[int, int] | None:
    lead = LEAD.match(clause)
    start = lead.end() if lead else 0
    rest = clause[start:].rstrip(" *`_")
    return (start, start + len(rest)) if choice_letter(rest)[0] else None


def _bare_choice(text: str, start: int) -> Hit:
    body = text[start:].strip()
    letter, hedged = choice_letter(body)
    if not letter or len(body) > 200 or (len(body) > 1 and not _ALONE.match(body + " ")):
        return None
    if hedged:
        return Extraction(None, None, "bare", "hedge")
    plain_word = re.match(r"[AI]\s+[a-z]", body)
    return None if plain_word else found(text, start, len(text), "bare")


def _same_choice(left: str, right: str) -> bool:
    return choice_key(left) == choice_key(right)


_CHOICE_RULES = usual_rules(_same_choice, _choice_hedge, _trim_choice, _bare_choice)


def extract_choice(text: str) -> Extraction:
    """The letter that a text chooses."""
    return cascade(text, _CHOICE_RULES)
