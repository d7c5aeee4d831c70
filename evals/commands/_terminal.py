"""What an evaluation says on stderr: its progress, and afterwards what its table does not show.

Progress is a bar on a terminal and plain lines elsewhere. The bar shows no time left: the next strategy may cost a
hundred times as much per problem. Without a terminal there is a line when a strategy is done, and in between after 5,
15, 35 and 75 seconds and then every minute, even while no problem finishes; no carriage returns. Cost: a thread that
sleeps.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NoReturn

from tqdm import tqdm

from evals.experiment import Arm, Result
from ttc.config.plugins import cut_by_budget, without_scores
from ttc.config.values import counted
from ttc.core import FILTERED, NO_VERDICT, Answer, Capabilities, Record, Sampling

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
        values = [(name, f"{value:g}") for name, value in capabilities.recommended]
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values)
        tqdm.write(
            f"the authors of {capabilities.model} recommend {', '.join(map('='.join, values))} "
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


# -- afterwards --------------------------------------------------------------------------------------------------------
UNREAD = {
    "truncated": "cut (raise --max-tokens)",
    "budget": "cut (raise --budget)",
    "unclosed_thinking": "still thinking (raise --max-tokens, or cap the thinking by --max-thinking)",
    "hedge": "with several answers, or none clearly",
    "empty": "empty (the model ended at once, or wrote nothing behind its thinking)",
    "no_answer": "without any that can be read (the report shows the texts)",
}
"""Why an answer has no final, by the reason of its verdict, and what helps."""
LAST_NUMBER = "; where the last number of a text is its answer and the rows name no kind: --set task.kind=number"
"""What helps where a user's rows are of maths."""


def complaints(result: Result, *, of_rows: bool) -> Iterator[str]:
    """What a strategy's row does not show: what failed, got no verdict, has no final or was chosen without scores."""
    if result.entry["errors"]:
        yield f"{_failures(result)}; see {result.arm.folder}; --retry-errors asks again"
    yield from filter(None, (undecided(result), _unread(result, of_rows=of_rows)))
    if without := unscored(result):
        yield f"{without}; its answers were chosen without"


def unscored(result: Result) -> str:
    """Report that no score could be used; empty where one could."""
    if not result.arm.choice.takes_scorer:
        return ""
    return without_scores(record.answer for record in result.records if record.answer is not None)


def _unread(result: Result, *, of_rows: bool) -> str:
    """Report why answers have no final and what helps, where at least half have none; empty elsewhere.

    `of_rows`: the task is a user's file of problems, whose answer kind the user can choose. Answers that the server
    itself ended (its filter, an unknown reason) are reported in any case: --max-tokens does not help them.
    """
    ends = Counter(end for record in result.records if record.answer is not None and (end := _ended_by(record.answer)))
    by_server = "; ".join(f"{count} {end}" for end, count in ends.most_common())
    verdicts = [record.verdict for record in result.records if record.verdict is not None]
    longest = int(result.entry["sampling"]["max_tokens"])
    reasons = Counter(reason for record in result.records if (reason := _unread_reason(record, longest)) is not None)
    if not reasons or 2 * reasons.total() < len(verdicts):
        return by_server and f"of {counted(len(verdicts), 'answer')} {by_server}"
    num_unread = reasons.total()
    reasons["truncated"] -= min(ends.total(), reasons["truncated"])
    causes = Counter[str]()
    for reason, count in reasons.items():
        causes[UNREAD.get(reason, UNREAD["no_answer"])] += count
    have = "has" if len(verdicts) == 1 else "have"
    text = f"{num_unread} of {counted(len(verdicts), 'answer')} {have} no final: "
    by_itself = [f"{count} {cause}" for cause, count in causes.most_common() if count]
    text += "; ".join([by_server, *by_itself] if by_server else by_itself)
    is_maths = {record.problem.kind for record in result.records} == {"math"}
    return text + (LAST_NUMBER if of_rows and is_maths and UNREAD["no_answer"] in causes else "")


def _unread_reason(record: Record, max_tokens: int) -> str | None:
    """The reason of a verdict that found no answer, which of one that was cut may be the budget; else None."""
    answer, verdict = record.answer, record.verdict
    if answer is None or verdict is None or verdict.status != "no_answer":
        return None
    if verdict.reason == "no_answer" and not answer.text.strip():
        return "empty"
    is_cut = verdict.reason in ("truncated", "unclosed_thinking")
    return "budget" if is_cut and cut_by_budget(answer, max_tokens) else verdict.reason


def _ended_by(answer: Answer) -> str:
    """How the server ended the chosen draw of an answer, where that was no end of its own; else empty."""
    if answer.final is not None:
        return ""
    path = next((event.path for event in reversed(answer.trace) if event.kind == "select"), None)
    draws = (event.data for event in answer.trace if event.kind == "generate" and event.path == path)
    word = next((str(data.get("stop_reason")) for data in draws if data.get("finish_reason") == "abort"), "")
    if word == FILTERED:
        return f"ended by the server's filter (finish_reason {word})"
    return word and f"ended by the server with finish_reason {word!r}"


def undecided(result: Result) -> str:
    """Report how many answers the verifier did not decide on, and why the first; empty where it decided on all."""
    verdicts = [record.verdict for record in result.records if record.verdict is not None]
    open_verdicts = [verdict for verdict in verdicts if verdict.status in NO_VERDICT]
    if not open_verdicts:
        return ""
    first = ": ".join(filter(None, (open_verdicts[0].status, open_verdicts[0].reason)))
    counts = f"{len(open_verdicts)} of {counted(len(verdicts), 'answer')}"
    return f"{counts} got no verdict and count as not right, the first with {first}; --retry-errors judges them again"


def _failures(result: Result) -> str:
    """Report how many problems failed, and the first error."""
    errors = [record.error for record in result.records if record.error is not None]
    return f"{len(errors)} of {counted(len(result.records), 'problem')} failed, the first with {errors[0]}"
