"""One progress bar on stderr: problems done, accuracy so far, tokens per second, errors."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from tqdm import tqdm

from evals.runs.experiment import Arm
from ttc.core import Record

__all__ = ["ProgressBar"]


class ProgressBar:
    """Counts records as they come; shows nothing where stderr is not a terminal."""

    def __init__(self, total: int) -> None:
        self._bar: tqdm[NoReturn] = tqdm(
            total=total, unit=" problems", file=sys.stderr, disable=None, dynamic_ncols=True
        )
        self._started = time.monotonic()
        self._arm: Arm | None = None
        self._done = self._right = self._errors = self._tokens = 0

    def resumed(self, arm: Arm, count: int) -> None:
        """Move the bar past problems that an earlier session finished."""
        if count:
            self._bar.write(f"{arm.choice.label}: {count} problems were finished before", file=sys.stderr)
            self._bar.update(count)

    def add(self, arm: Arm, record: Record) -> None:
        """Count one record; the accuracy is that of its arm."""
        if arm is not self._arm:
            self._arm, self._done, self._right = arm, 0, 0
            self._bar.set_description(arm.choice.label, refresh=False)
        self._done += 1
        self._right += record.verdict is not None and record.verdict.correct
        self._errors += record.error is not None
        self._tokens += record.answer.usage.tokens if record.answer else 0
        rate = self._tokens / max(time.monotonic() - self._started, 1e-9)
        self._bar.set_postfix_str(
            f"{100 * self._right / self._done:.1f}% right, {rate:,.0f} tok/s, {self._errors} errors", refresh=False
        )
        self._bar.update()

    def __enter__(self) -> ProgressBar:
        """Return the bar."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the bar where it is."""
        self._bar.close()
