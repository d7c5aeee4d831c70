"""Multiple choice: one letter, as in (C), C., option C, a boxed C, against the letter of the target.

A target may also have the text of the right option in `alternatives`, as tasks with options do: an answer that is the
whole of it, and of no other option, is right without its letter (lm-eval's filter of choices takes it, too, inside
a sentence as well; Inspect's scorer takes letters alone). Two letters ("B or C") are a hedge and no answer, and the A
of "A mammal" is an article and no letter.
Left out: options without letters, and several right letters (make the combination one option).

Args:
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

from ttc.answers import Extraction, extract
from ttc.answers.kinds import choice_key, choice_letter, said_in
from ttc.answers.words import text_key
from ttc.core import Submission, Target, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import (
    ALL_OR_NOTHING,
    MAX_S,
    PLAIN_LIMITS,
    AnswerVerifier,
    Canary,
    Card,
    Clock,
    decided,
    read_answer,
)

VERSION = "17"


def choice(*, allow_truncated: bool = False) -> ChoiceVerifier:
    """Return the verifier of multiple-choice answers."""
    return ChoiceVerifier(allow_truncated)


class ChoiceVerifier(AnswerVerifier):
    """Compares letters; see the module."""

    name = "choice"

    def __init__(self, allow_truncated: bool) -> None:
        super().__init__("choice", allow_truncated)
        self.version = f"choice-{VERSION}{'-truncated' if allow_truncated else ''}"
        self.card = Card(
            self.name,
            self.version,
            inputs="target: a letter, or {answer: letter, alternatives: [texts of the option]}; reads the answer part",
            max_s=MAX_S,
            limits=PLAIN_LIMITS,
            partial_credit=ALL_OR_NOTHING,
            correct_when="the one letter of the final answer is the target's, or the answer is an alternative's text",
            weaknesses=(
                "a guess is right one time in as many as there are options",
                "an A before a noun is read as the article where nothing (a bracket, a mark, `option`) sets it apart",
            ),
            canaries=(
                Canary("C", "The answer is (C).", "correct"),
                Canary("C", r"First \boxed{C}. No: \boxed{D}", "incorrect"),
                Canary({"answer": "B", "alternatives": ["C major"]}, r"\boxed{C major}", "correct"),
                Canary({"answer": "B", "alternatives": ["C major"]}, r"\boxed{C}", "incorrect"),
                Canary("C", "Answer: B or C", "no_answer"),
                Canary("C", "<think>C", "no_answer"),
            ),
        )

    async def judge(self, goal: Target, submission: Submission, clock: Clock) -> Verdict:
        """Whether the letter matches; a text without any may say the option: "The answer is Mercury."."""
        verdict = await super().judge(goal, submission, clock)
        if verdict.status != "no_answer" or verdict.reason != "no_answer" or not goal.answers[1:]:
            return verdict
        words = read_answer(submission, "exact", self._allow_truncated)
        if isinstance(words, Verdict):
            return verdict
        values = {text_key(value) for value in (words.final or "", *said_in(words.final or ""))}
        if values.isdisjoint(map(text_key, goal.answers[1:])):
            return verdict
        return decided(True, words, "same")

    def matches(self, extraction: Extraction, answers: tuple[str, ...]) -> bool:
        """Whether the letter is that of the first answer, or the whole text is one of the others."""
        final, (letter, *texts) = extraction.final or "", answers
        # A text is never read for a letter: C major is the text of an option, which may be option B.
        return choice_key(final) == choice_key(letter) or text_key(final) in map(text_key, texts)

    def check(self, goal: Target) -> None:
        """The first answer must be one letter that comes out of a text as it went in."""
        answer = goal.answers[0]
        letter, second = choice_letter(answer)
        final = extract(rf"\boxed{{{answer}}}", "choice").final
        if not letter or second or final is None or choice_key(final) != letter:
            raise ConfigError(f"the gold {answer[:80]!r} does not verify against itself: it is not one letter")
