"""What the tests of runs share: a verifier that counts, and records without what no resume can repeat."""

from __future__ import annotations

import dataclasses

from ttc.core import Record, Submission, TargetLike, Verdict, Verifier


class BoxVerifier(Verifier):
    """Right when the boxed target is in the text; counts its calls."""

    name = "box"
    version = "1"

    def __init__(self) -> None:
        self.calls = 0

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        self.calls += 1
        right = f"\\boxed{{{target}}}" in submission.text
        return Verdict("correct" if right else "incorrect", score=float(right), version=self.version)


def timeless(record: Record) -> Record:
    """The record without its seconds and sessions, which no resume can repeat."""
    answer = None if record.answer is None else dataclasses.replace(record.answer, seconds=0.0)
    return dataclasses.replace(record, answer=answer, provenance={})
