"""The progress of an evaluation, on stderr: a bar on a terminal, plain lines elsewhere.

The bar shows no time left: the next strategy may cost a hundred times as much per problem. Without a terminal there is
a line when a strategy is done, and in between after 5, 15, 35 and 75 seconds and then every minute, even while no
problem finishes; no carriage returns. Cost: a thread that sleeps.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import NoReturn

from tqdm import tqdm

from evals.experiment import Arm
from ttc.config.values import counted
from ttc.core import Capabilities, Record, Sampling

FIRST_S, LONGEST_S, REFRESH_S = 5.0, 60.0, 1.0
"""Seconds before the first line; the most between two lines; and between two updates of the bar's clock."""
_FORMAT = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} problems [{elapsed}{postfix}]"


class ProgressReport:
    """Watches an evaluation of `num_problems` by `num_arms` strategies; to be closed at the end.

    `usual` is the sampling that is used where the user sets none.
    """

    def __init__(self, num_problems: int, num_arms: int, usual: Sampling | None) -> None:
        self._usual = usual
        self._num_problems, self._started = num_problems, time.monotonic()
        self._bar: tqdm[NoReturn] = tqdm(
            total=num_problems * num_arms, file=sys.stderr, disable=None, dynamic_ncols=True, bar_format=_FORMAT
        )
        self._bar.set_description("starting", refresh=False)
        self._arm: Arm | None = None
        self._kept = self._done = self._right = self._errors = self._spent = 0
        self._arm_started = self._started
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        self._clock.start()

    @property
    def _is_plain(self) -> bool:
        return bool(self._bar.disable)

    def loaded(self, capabilities: Capabilities) -> None:
        """Print the sampling that the model's authors recommend, if the usual sampling differs from it."""
        for name, value in capabilities.unapplied:
            tqdm.write(
                f"the authors of {capabilities.model} recommend {name}={value:g} (generation_config.json); "
                "this engine cannot apply it",
                file=sys.stderr,
            )
        usual = self._usual
        if usual is None or usual == capabilities.as_recommended(usual):
            return
        stated = [(name, f"{value:g}") for name, value in capabilities.recommended]
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in stated)
        tqdm.write(
            f"the authors of {capabilities.model} recommend {', '.join(map('='.join, stated))} "
            f"(generation_config.json); this run draws at temperature={usual.temperature:g}: for theirs add {options}",
            file=sys.stderr,
        )

    @property
    def _is_through(self) -> bool:
        """Whether this strategy has finished all problems, as its last line says."""
        return self._arm is not None and self._kept + self._done == self._num_problems

    def resumed(self, arm: Arm, count: int) -> None:
        """Move past problems that an earlier session finished."""
        with self._lock:
            self._on(arm)
            self._kept = count
            if count:
                were = "was" if count == 1 else "were"
                text = f"{arm.choice.label}: {counted(count, 'problem')} {were} finished before"
                tqdm.write(text, file=sys.stderr)
                self._bar.update(count)

    def spent(self, arm: Arm, tokens: int) -> None:
        """Count tokens of a total; its problems all finish at the end."""
        with self._lock:
            self._on(arm)
            self._spent += tokens
            self._describe()

    def add(self, arm: Arm, record: Record) -> None:
        """Count one record; the accuracy is that of its arm."""
        with self._lock:
            self._on(arm)
            self._done += 1
            self._right += record.verdict is not None and record.verdict.correct
            self._errors += record.error is not None
            self._describe()
            self._bar.update()
            if self._is_plain and self._is_through:
                self._line()

    def failed(self, failures: Mapping[str, int]) -> None:
        """Print why requests were repeated: that costs time, and `overrun` where tokens had arrived."""
        for reason, count in failures.items():
            tqdm.write(f"asked again after {count} failed attempts: {reason}", file=sys.stderr)

    def close(self) -> None:
        """Leave the bar where it is."""
        self._ended.set()
        self._clock.join()
        self._bar.close()

    def _on(self, arm: Arm) -> None:
        """Reset the counts when this is the first record of another strategy."""
        if arm is self._arm:
            return
        self._arm, self._kept, self._done, self._right, self._errors, self._spent = arm, 0, 0, 0, 0, 0
        self._arm_started = time.monotonic()
        self._bar.set_description(arm.choice.label, refresh=False)
        self._bar.set_postfix_str("", refresh=False)

    def _describe(self) -> None:
        self._bar.set_postfix_str(self._state(), refresh=False)

    def _state(self) -> str:
        """What is shown of this strategy beside its number of problems."""
        parts = []
        if self._done:
            of = f" of {self._done} new" if self._kept else ""
            parts.append(f"{100 * self._right / self._done:.1f} %{of} right")
        elif self._spent and self._arm is not None:
            parts.append(f"{self._spent:,} of {self._arm.choice.params['total']:,} tokens spent")
        if self._errors:
            parts.append(f"{self._errors} failed")
        return ", ".join(parts)

    def _line(self) -> None:
        now = time.monotonic()
        if self._arm is None:
            text = f"starting: {now - self._started:.0f} s"
        else:
            counts = f"{self._kept + self._done} of {counted(self._num_problems, 'problem')}"
            state = self._state()
            text = f"{self._arm.choice.label}: {counts}{', ' if state else ''}{state}, {now - self._arm_started:.0f} s"
        print(text, file=sys.stderr, flush=True)

    def _tick(self) -> None:
        """Show that time goes on."""
        pause = FIRST_S if self._is_plain else REFRESH_S
        while not self._ended.wait(pause):
            with self._lock:
                if self._is_plain:
                    pause = min(2 * pause, LONGEST_S)
                    if not self._is_through:
                        self._line()
                else:
                    self._bar.refresh()
