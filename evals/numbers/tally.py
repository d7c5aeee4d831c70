"""One pass over the records of a run: its sums, and the few numbers of each problem that intervals are made of.

About a hundred bytes are kept for each problem, whatever its record holds, so a run of any length fits.

A problem's candidates are a pool that can be sub-sampled when they are draws of one prompt (paths of length one), so
that any k of them are what a run with n = k would have drawn. The leaves of a tree are not, nor are samples whose
number was decided by what they said (a stopping rule, a budget): there only their union counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from evals.numbers.metrics import Vote
from ttc import answers
from ttc.core import Answer, Record, Usage

__all__ = ["RunTotals", "cluster_of", "exchangeable", "independent", "is_correct", "tally", "usage_of", "votes"]


@dataclass(slots=True)
class RunTotals:
    """See the module docstring. `right`, `clusters` and `difficulties` have one entry per problem, in order."""

    right: list[float] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    difficulties: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    verdicts: Counter[str] = field(default_factory=Counter)
    stop_causes: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    truncated: int = 0
    no_answer: int = 0
    covered: int = 0
    """Problems with a right candidate."""
    candidates: int = 0
    fewest: int | None = None
    """Candidates of the solved problem that has the fewest; `most` of the one that has the most."""
    most: int | None = None
    lowest: float | None = None
    """The lowest score of any candidate; None without scores."""
    independent: bool = True
    """Whether no problem forbids to sub-sample its candidates."""
    ends: dict[int, float] = field(default_factory=dict)
    """Seconds at which the last record of each session was written."""

    @property
    def problems(self) -> int:
        """How many there are."""
        return len(self.right)

    @property
    def pool_size(self) -> int:
        """The largest k that every solved problem can give; 0 where sub-sampling would not be a smaller run."""
        return self.fewest or 0 if self.independent and self.candidates else 0

    @property
    def seconds(self) -> float:
        """The time of all sessions: a run that was resumed did not work in between."""
        return sum(self.ends.values())

    def add(self, record: Record) -> None:
        """Count one record in."""
        self.right.append(float(is_correct(record)))
        self.clusters.append(cluster_of(record))
        self.difficulties.append(str(record.provenance.get("difficulty")))
        self.usage += usage_of(record)
        self.errors += record.error is not None
        self.independent = self.independent and independent(record)
        if record.verdict is not None:
            self.verdicts[record.verdict.status] += 1
        if record.answer is not None:
            self._add_answer(record.answer)
            pairs = zip(record.answer.candidates, record.verdicts, strict=True)
            self.covered += any(candidate.final is not None and verdict.correct for candidate, verdict in pairs)
        session = int(record.provenance.get("session", 1))
        self.ends[session] = max(self.ends.get(session, 0.0), float(record.provenance.get("at_s", 0.0)))

    def _add_answer(self, answer: Answer) -> None:
        self.stop_causes[answer.stop_cause] += 1
        self.truncated += answer.finish_reason == "length"
        self.no_answer += answer.final is None
        count = len(answer.candidates)
        self.candidates += count
        self.fewest = count if self.fewest is None else min(self.fewest, count)
        self.most = count if self.most is None else max(self.most, count)
        scores = [candidate.score for candidate in answer.candidates if candidate.score is not None]
        if scores:
            self.lowest = min(scores) if self.lowest is None else min(self.lowest, *scores)


def tally(records: Iterable[Record]) -> RunTotals:
    """Read every record once."""
    totals = RunTotals()
    for record in records:
        totals.add(record)
    return totals


def is_correct(record: Record) -> bool:
    """Whether the chosen answer is right; a failed problem is not."""
    return record.verdict is not None and record.verdict.correct


def cluster_of(record: Record) -> str:
    """Return what the problem is resampled with: its cluster, by default itself."""
    return str(record.provenance.get("cluster") or record.problem.id)


def usage_of(record: Record) -> Usage:
    """Return what one problem cost; a failed one carries it in its provenance."""
    if record.answer is not None:
        return record.answer.usage
    return Usage(**record.provenance.get("spent", {}))


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
