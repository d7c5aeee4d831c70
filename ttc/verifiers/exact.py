"""A short string: equal after Unicode and white-space normalisation, by default without regard to case.

The final answer is found like any other (box, tag, ####, phrase, or the only line). Left out: synonyms, edit distance.

Args:
    case_sensitive: Whether upper and lower case differ.
    whole_text: Whether the whole text is the answer instead of the final one found in it.
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

import unicodedata

from ttc.answers import Extraction, extract
from ttc.core import Submission, Target, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import ALL_OR_NOTHING, Canary, Card
from ttc.verifiers.shared.reading import MAX_S, PLAIN_LIMITS, Clock, decided, read_answer, read_gold

VERSION = "1"


def exact(*, case_sensitive: bool = False, whole_text: bool = False, allow_truncated: bool = False) -> ExactVerifier:
    """Return the verifier of short strings."""
    return ExactVerifier(case_sensitive, whole_text, allow_truncated)


class ExactVerifier:
    """Compares strings; see the module."""

    name = "exact"

    def __init__(self, case_sensitive: bool, whole_text: bool, allow_truncated: bool) -> None:
        self._case_sensitive, self._allow_truncated = case_sensitive, allow_truncated
        self._kind = "format" if whole_text else "exact"
        flags = "".join("ny"[flag] for flag in (case_sensitive, whole_text, allow_truncated))
        self.version = f"exact-{VERSION}-{flags}"
        self.card = _card(self.name, self.version)

    async def verify(self, target: Target, submission: Submission) -> Verdict:
        """Compare `submission` with `target`; a target that cannot be read is the verdict `error`."""
        clock = Clock()
        try:
            gold = read_gold(target)
        except ConfigError as exc:
            return clock.stamp(Verdict("error", reason=str(exc)), self.version)
        extraction = read_answer(submission, self._kind, self._allow_truncated)
        if isinstance(extraction, Verdict):
            return clock.stamp(extraction, self.version)
        equal = self._matches(extraction, gold.answers)
        return clock.stamp(decided(equal, extraction, "same" if equal else "different"), self.version)

    def check_gold(self, target: Target, item: str = "") -> None:
        """Raise ConfigError, naming `item`, when the target does not verify against itself."""
        where = f"{item}: " if item else ""
        try:
            answers = read_gold(target).answers
        except ConfigError as exc:
            raise ConfigError(f"{where}{exc}") from exc
        for answer in answers:
            text = answer if self._kind == "format" else rf"\boxed{{{answer}}}"
            if not self._matches(extract(text, self._kind), (answer,)):
                raise ConfigError(f"{where}the gold {answer[:80]!r} does not verify against itself")

    async def close(self) -> None:
        """Nothing to stop."""

    def _matches(self, found: Extraction, answers: tuple[str, ...]) -> bool:
        return found.final is not None and self._clean(found.final) in {self._clean(answer) for answer in answers}

    def _clean(self, text: str) -> str:
        words = " ".join(unicodedata.normalize("NFKC", text).split()).strip("\"'`").rstrip(".")
        return words if self._case_sensitive else words.casefold()


def _card(name: str, version: str) -> Card:
    return Card(
        name,
        version,
        inputs="target: a string or number, or {answer, alternatives}; reads the answer part, final answer or whole",
        max_s=MAX_S,
        limits=PLAIN_LIMITS,
        partial_credit=ALL_OR_NOTHING,
        correct_when="the answer equals the target or an alternative after NFKC, white-space and quote normalisation",
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
