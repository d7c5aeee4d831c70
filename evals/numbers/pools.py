"""From records to votes: which candidates a problem had, and what sub-sampling them may claim.

A pool can be sub-sampled when its candidates are draws of one prompt (paths of length one), so any k of them are what a
run with n = k would have drawn. The leaves of a tree are not, nor are samples whose number was decided by what they
said (a stopping rule, a budget): there only their union counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from evals.numbers.metrics import Vote
from ttc import answers
from ttc.core import Record

__all__ = ["exchangeable", "independent", "votes"]


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
    """Whether there are candidates, each of them a draw of its problem's own prompt, and none was stopped."""
    return all(map(independent, records)) and any(record.answer and record.answer.candidates for record in records)


def independent(record: Record) -> bool:
    """Whether all candidates are draws of the problem's own prompt that nothing stopped; also where there is none."""
    answer = record.answer
    return answer is None or (answer.stop_cause == "done" and all(len(one.path) == 1 for one in answer.candidates))
