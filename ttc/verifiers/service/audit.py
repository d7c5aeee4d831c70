"""The audit log: every verdict with what it was made of, so that another version can judge the same again.

One JSON object a line: the caller's id, a digest of the input, target, submission, verdict (with the version), and
whether it was remembered. Each line is written whole; it is on the disk within a second and at the end, so a killed
process loses nothing and a loss of power at most the last second. A torn last line is cut off by the next writer.

Left out: rotation, compression; texts are stored in full.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ttc import records
from ttc.core import Json, Submission, Target, Verdict
from ttc.errors import ConfigError, RecordError

__all__ = ["Audit", "Entry", "digest", "read_audit"]

SYNC_S = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One verdict: `digest` is that of target and submission, `remembered` tells that it was not computed anew."""

    id: Json
    digest: str
    target: Target
    submission: Submission
    verifier: str
    verdict: Verdict
    remembered: bool = False


def digest(target: Target, submission: Submission) -> str:
    """A hash of what a verifier is given: 32 hexadecimal digits.

    Raises:
        ConfigError: the target is not JSON data, or nested too deeply.
    """
    try:
        row = json.dumps([target, submission.text, submission.thinking, submission.finish_reason], sort_keys=True)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"target is not JSON data: {exc}") from exc
    return hashlib.blake2b(row.encode(), digest_size=16).hexdigest()


class Audit:
    """An open audit log; `append` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; raises ConfigError where it cannot be opened or another process writes to it."""
        try:
            self._file = records.LineFile(path)
        except OSError as exc:
            raise ConfigError(f"audit log {path} cannot be opened: {exc.strerror or exc}") from exc
        self._synced = 0.0

    def append(self, entry: Entry) -> None:
        """Write one entry."""
        now = time.monotonic()
        due = now - self._synced >= SYNC_S
        if due:
            self._synced = now
        self._file.write(records.encode(entry), sync=due)

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
    for number, data in records.iterate(path):
        try:
            yield records.decode(Entry, data)
        except RecordError as exc:
            raise RecordError(f"{path}, line {number}: {exc}") from exc
