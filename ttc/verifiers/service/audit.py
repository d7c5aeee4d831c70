"""The audit log: every verdict with what it was made of, so that another version can judge the same; how they differ.

One JSON object a line: the caller's id, a digest of the input, target, submission, verdict (with the version), and
whether it was remembered. Each line is written whole; it is on the disk within a second and at the end, so a killed
process loses nothing and a loss of power at most the last second. A torn last line is cut off by the next writer.

Left out: rotation, compression; texts are stored in full.

`tally` compares two verifiers, or two versions of one, on the same submissions. Agreement counts where both decided
(correct or incorrect): no verdict is not a vote. Its interval is Wilson's (1927) for independent rows. Left out: which
of the two is right; the rows are there to be read.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from ttc.core import Json, Submission, TargetLike, Verdict
from ttc.errors import ConfigError, RecordError
from ttc.records import LineFile, decode, encode, iterate

SYNC_S = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One verdict: `digest` is that of target and submission, `remembered` tells that it was not computed anew."""

    id: Json
    digest: str
    target: TargetLike
    submission: Submission
    verifier: str
    verdict: Verdict
    remembered: bool = False


class Audit:
    """An open audit log; `append` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; raises ConfigError where it cannot be opened or another process writes to it."""
        try:
            self._file = LineFile(path)
        except OSError as exc:
            raise ConfigError(f"audit log {path} cannot be opened: {exc.strerror or exc}") from exc
        self._synced = 0.0

    def log(
        self,
        label: Json,
        digest: str,
        target: TargetLike,
        submission: Submission,
        verifier: str,
        verdict: Verdict,
        remembered: bool,
    ) -> None:
        """Write one verdict of a service."""
        self.append(Entry(label, digest, target, submission, verifier, verdict, remembered))

    def append(self, entry: Entry) -> None:
        """Write one entry."""
        now = time.monotonic()
        due = now - self._synced >= SYNC_S
        if due:
            self._synced = now
        self._file.write(encode(entry), sync=due)

    def close(self) -> None:
        """Bring everything to the disk and let the next writer in."""
        self._file.close()


def read_audit(path: Path) -> Iterator[Entry]:
    """Yield the entries of an audit log in order.

    Raises:
        ConfigError: no such file.
        RecordError: a broken line, by number and field.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; expected an audit log (ttc verify --audit FILE writes one)")
    for number, data in iterate(path):
        try:
            yield decode(Entry, data)
        except RecordError as exc:
            raise RecordError(f"{path}, line {number}: {exc}") from exc


DECIDED = ("correct", "incorrect")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """`transitions` counts rows by (first status, second status).

    `agreement` is the share of the `decided` rows, where both were correct or incorrect, on which the two are the same,
    from `low` to `high` at 95 %; all three are NaN where nothing was decided by both.
    """

    count: int
    decided: int
    agreement: float
    low: float
    high: float
    transitions: Mapping[tuple[str, str], int]

    @property
    def differing(self) -> int:
        """Rows with two different statuses."""
        return sum(count for (first, second), count in self.transitions.items() if first != second)


def tally(pairs: Iterable[tuple[Verdict, Verdict]]) -> Disagreement:
    """Compare the verdicts of two verifiers, row by row."""
    transitions: Counter[tuple[str, str]] = Counter((first.status, second.status) for first, second in pairs)
    decided = sum(count for pair, count in transitions.items() if set(pair) <= set(DECIDED))
    same = sum(transitions[status, status] for status in DECIDED)
    low, high = wilson(same, decided)
    ordered = dict(sorted(transitions.items(), key=lambda item: (item[0][0] == item[0][1], -item[1], item[0])))
    share = same / decided if decided else math.nan
    return Disagreement(sum(transitions.values()), decided, share, low, high, ordered)


def summary_lines(first: str, second: str, found: Disagreement) -> list[str]:
    """Say how often `first` and `second` (versions) agree, and what became what."""
    lines = [f"first   {first or 'nothing'}", f"second  {second}", f"{found.count:,} rows, {found.differing:,} differ"]
    if found.decided:
        share, low, high = (f"{100 * value:.2f}" for value in (found.agreement, found.low, found.high))
        lines.append(f"where both decided ({found.decided:,}) they agree on {share} % (95 %: {low} to {high})")
    lines += [f"  {before:>11} -> {after:<11} {count:>8,}" for (before, after), count in found.transitions.items()]
    return lines


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the Wilson interval of a share at 95 %; NaN without trials."""
    if not trials:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.975)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)
