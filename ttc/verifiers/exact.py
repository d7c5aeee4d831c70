r"""A short string: equal after Unicode and white-space normalisation, by default without regard to case.

The final answer is found like any other (box, tag, ####, phrase, or the only line), and loses what LaTeX and Markdown
put around words: `\text{Paris}`, `AT\&T`, `**Paris**`. Of a printed list neither the spaces beside brackets and commas
count nor the kind of quotation marks: `[1,2]` is `[1, 2]`. A target that is a verdict, yes or no, true or false, is met
by one with its reason, too, "No, because 4 is even", unless the reason takes it back or names the other one. So is any
target by a sentence that ends with it, "It was Marie Curie.", unless its words deny it; a vote takes the whole line.
An article, a preposition before a date or a name, how initials are spaced, and a remark behind the answer, "Paris, not
Lyon" or "water (H2O)", do not matter.
Left out: synonyms, edit distance.

Args:
    case_sensitive: Whether upper and lower case differ.
    whole_text: Whether the whole text is the answer instead of the final one found in it.
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

import re
import unicodedata

from ttc.answers import Extraction, extract
from ttc.answers.kinds import said_in, verdict_of
from ttc.answers.words import QUOTES, literal_spelling, undressed
from ttc.core import Target
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import ALL_OR_NOTHING, MAX_S, PLAIN_LIMITS, AnswerVerifier, Canary, Card

VERSION = "12"
_ARTICLE = re.compile(r"\Athe\s+", re.IGNORECASE)
_BEFORE = re.compile(r"\A(?:(?:the|an?(?=\s\w{3}))\s+|(?:in|on|at)\s+(?=\d|(?-i:[A-Z])))", re.IGNORECASE)
"""An article, or a preposition before a date or a name, which are no part of an answer."""
_REMARK = re.compile(
    r"(?:,\s(?:not|rather\sthan|the|an?|who|which)\s(?![^,]*\b(?:wrong|incorrect|false)\b)[^,]+"
    r"|\s\((?!(?:or|no|not|but|maybe|perhaps|probably|possibly)\b)[^()?]{1,80}\))\Z"
)
"""What is said of an answer behind it: `, not Lyon`, `, the 44th president`, ` (H2O)`."""
_INITIALS = re.compile(r"(?<![\w.])(?:[A-Z]\.\s?)*[A-Z]\.(?![^\s,])")
"""Initials with their full stops: J. K., D.C."""


def exact(*, case_sensitive: bool = False, whole_text: bool = False, allow_truncated: bool = False) -> ExactVerifier:
    """Return the verifier of short strings."""
    return ExactVerifier(case_sensitive, whole_text, allow_truncated)


class ExactVerifier(AnswerVerifier):
    """Compares strings; see the module."""

    name = "exact"

    def __init__(self, case_sensitive: bool, whole_text: bool, allow_truncated: bool) -> None:
        super().__init__("format" if whole_text else "exact", allow_truncated)
        self._case_sensitive = case_sensitive
        flags = "".join("ny"[flag] for flag in (case_sensitive, whole_text, allow_truncated))
        self.version = f"exact-{VERSION}-{flags}"
        self.card = Card(
            self.name,
            self.version,
            inputs="target: a string or number, or {answer, alternatives}; reads the answer part, "
            "final answer or whole",
            max_s=MAX_S,
            limits=PLAIN_LIMITS,
            partial_credit=ALL_OR_NOTHING,
            correct_when="the answer equals the target or an alternative after NFKC, white-space and quote "
            "normalisation, without marks of LaTeX and Markdown",
            weaknesses=(
                "synonyms and other spellings are incorrect unless they are alternatives",
                "NFKC makes some different signs equal: a superscript two is a two",
            ),
            canaries=(
                Canary("Paris", "Paris", "correct"),
                Canary("Paris", "Rome", "incorrect"),
                Canary("Paris", "", "no_answer"),
            ),
        )

    def matches(self, extraction: Extraction, answers: tuple[str, ...]) -> bool:
        """Whether the clean forms are equal."""
        final = extraction.final
        if final is None:
            return False
        if self._kind == "format":
            return self._clean(final) in map(self._clean, answers)
        values = [final, undressed(final), *said_in(final)]
        values += [_REMARK.sub("", value) for value in values]
        values += [_BEFORE.sub("", value, count=1) for value in values]
        forms = {self._clean(word) for word in (*values, *map(verdict_of, values))}
        return not forms.isdisjoint(map(self._clean, (*answers, *(_ARTICLE.sub("", answer) for answer in answers))))

    def check(self, goal: Target) -> None:
        """Each answer must come out of a text as it went in."""
        for answer in goal.answers:
            # Alone, too: brackets such as `] }` close no box.
            texts = (rf"\boxed{{{answer}}}", answer) if self._kind == "exact" else (answer,)
            if not any(self.matches(extract(text, self._kind), (answer,)) for text in texts):
                raise ConfigError(f"the gold {answer[:80]!r} does not verify against itself")

    def _clean(self, text: str) -> str:
        seen = "".join(char for char in undressed(text) if unicodedata.category(char) != "Cf")
        spaced = " ".join(unicodedata.normalize("NFKC", seen).split())
        spaced = _INITIALS.sub(lambda match: re.sub(r"[.\s]", "", match[0]), spaced)
        words = literal_spelling(spaced.rstrip(".").strip(QUOTES).rstrip("."))
        return words if self._case_sensitive else words.casefold()
