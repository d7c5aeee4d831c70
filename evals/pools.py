"""From records to votes: which candidates a problem had, and what sub-sampling them may claim.

A pool can be sub-sampled when its candidates are draws of one prompt (paths of length one), so any k of them are what a
run with n = k would have drawn. The leaves of a tree are not, nor are samples whose number was decided by what they
said (a stopping rule, a budget): there only their union counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from evals.metrics import Vote
from ttc import answers
from ttc.core import Record

__all__ = ["exchangeable", "votes"]


def votes(record: Record) -> list[Vote]:
    """Return the candidates as voting sees them; one without a final answer abstains and its score is void."""
    if record.answer is None:
        return []
    finals = {candidate.final for candidate in record.answer.candidates if candidate.final is not None}
    keys = {final: answers.key(final, record.problem.kind) for final in finals}
    return [
        Vote(
            key=None if candidate.final is None else keys[candidate.final],
            correct=candidate.final is not None and verdict.correct,
            score=None if candidate.final is None else candidate.score,
        )
        for candidate, verdict in zip(record.answer.candidates, record.verdicts, strict=True)
    ]


def exchangeable(records: Sequence[Record]) -> bool:
    """Whether every candidate of every record is a draw of its problem's own prompt, and none was stopped."""
    if any(record.answer is not None and record.answer.stop_cause != "done" for record in records):
        return False
    paths = [candidate.path for record in records if record.answer for candidate in record.answer.candidates]
    return bool(paths) and all(len(path) == 1 for path in paths)
