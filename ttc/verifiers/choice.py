"""Multiple choice: one letter, as in (C), C., option C, a boxed C, against the letter of the target.

A target may also be the text of the right option in `alternatives`. Two letters ("B or C") are a hedge and no answer.
Left out: options without letters, and several right letters (make the combination one option).

Args:
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

from ttc.answers import extract
from ttc.answers.choice import choice_key, choice_letter
from ttc.core import Submission, Target, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import ALL_OR_NOTHING, Canary, Card
from ttc.verifiers.shared.reading import MAX_S, PLAIN_LIMITS, Clock, decided, read_answer, read_gold

VERSION = "1"


def choice(*, allow_truncated: bool = False) -> ChoiceVerifier:
    """Return the verifier of multiple-choice answers."""
    return ChoiceVerifier(allow_truncated)


class ChoiceVerifier:
    """Compares letters; see the module."""

    name = "choice"

    def __init__(self, allow_truncated: bool) -> None:
        self._allow_truncated = allow_truncated
        self.version = f"choice-{VERSION}{'-truncated' if allow_truncated else ''}"
        self.card = _card(self.name, self.version)

    async def verify(self, target: Target, submission: Submission) -> Verdict:
        """Compare `submission` with `target`; a target that cannot be read is the verdict `error`."""
        clock = Clock()
        try:
            gold = read_gold(target)
        except ConfigError as exc:
            return clock.stamp(Verdict("error", reason=str(exc)), self.version)
        extraction = read_answer(submission, "choice", self._allow_truncated)
        if isinstance(extraction, Verdict):
            return clock.stamp(extraction, self.version)
        keys = {choice_key(answer) for answer in gold.answers}
        equal = choice_key(extraction.final or "") in keys
        return clock.stamp(decided(equal, extraction, "same" if equal else "different"), self.version)

    def check_gold(self, target: Target, item: str = "") -> None:
        """Raise ConfigError, naming `item`, when the target is not a letter that verifies against itself."""
        where = f"{item}: " if item else ""
        try:
            answer = read_gold(target).answers[0]
        except ConfigError as exc:
            raise ConfigError(f"{where}{exc}") from exc
        letter, second = choice_letter(answer)
        letter_read = extract(rf"\boxed{{{answer}}}", "choice").final
        if not letter or second or letter_read is None or choice_key(letter_read) != letter:
            raise ConfigError(f"{where}the gold {answer[:80]!r} does not verify against itself: it is not one letter")

    async def close(self) -> None:
        """Nothing to stop."""


def _card(name: str, version: str) -> Card:
    return Card(
        name,
        version,
        inputs="target: a letter, or {answer: letter, alternatives: [texts of the option]}; reads the answer part",
        max_s=MAX_S,
        limits=PLAIN_LIMITS,
        partial_credit=ALL_OR_NOTHING,
        correct_when="the one letter of the final answer is the target's, or the answer is an alternative's text",
        weaknesses=(
            "a guess is right one time in as many as there are options",
            "the article A at the end of an answer phrase may read as the letter A",
        ),
        canaries=(
            Canary("C", "The answer is (C).", "correct"),
            Canary("C", r"First \boxed{C}. No: \boxed{D}", "incorrect"),
            Canary("C", "Answer: B or C", "no_answer"),
            Canary("C", "<think>C", "no_answer"),
        ),
    )
