"""The part of a submission that is judged as a whole: what comes after the thinking, of a text that was finished."""

from __future__ import annotations

from ttc.answers.extract import answer_start
from ttc.core import Submission, Verdict
from ttc.verifiers.shared.reading import unfinished


def answer_part(submission: Submission, allow_truncated: bool, max_chars: int) -> str | Verdict:
    """The text after the thinking, or the verdict where there is none: cut, still thinking, blank or too long.

    A text without thinking is returned as it is, with its white space.
    """
    if cut := unfinished(submission, allow_truncated):
        return Verdict("no_answer", reason=cut)
    start = answer_start(submission.text)
    if start is None:
        return Verdict("no_answer", reason="unclosed_thinking")
    body = submission.text[start:].strip() if start else submission.text
    if len(body) > max_chars:
        return Verdict("limit", reason=f"more than {max_chars} characters")
    return body if body.strip() else Verdict("no_answer", reason="empty")
