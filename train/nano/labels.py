"""Exact labels for the reward model: is this path still on track, token by token.

A label is given at the end of each step (its delimiter), at the delimiter after `</think>` (1 when the
work is complete), and at the end of the answer; results are labelled digit by digit as well, which says
where an error happens. All come from the step checker of `evals.arithmetic`, none from a model.
Left out: the left side of a step, and whatever stands where no step is due (no label).
"""

from dataclasses import dataclass
from typing import Any

from evals.arithmetic import STEP_DELIMITER, WAIT, Expression, Progress

NONE = -100


@dataclass(frozen=True, slots=True)
class Labels:
    """Per token: 1, 0 or `NONE`; `ends` marks the tokens at which a score is read."""

    values: list[int]
    ends: list[bool]


def label(tokenizer: Any, problem: Expression, ids: list[int], handover: bool = False) -> Labels:
    """Label a completion that begins inside the think block; `handover`: the thinking was cut."""
    values, ends = [NONE] * len(ids), [False] * len(ids)
    pieces = [tokenizer.decode([token]) for token in ids]
    closed = pieces.index("</think>") if "</think>" in pieces else len(pieces)
    progress, start = Progress.start(problem), 0
    for at in range(closed):
        if pieces[at] != STEP_DELIMITER:
            continue
        cut = handover and "".join(pieces[at + 1 : closed]).startswith("Time is up")
        if cut:
            break
        _label_result(problem, progress, pieces[start:at], values, start)
        progress = progress.step("".join(pieces[start:at]))
        values[at], ends[at] = int(progress.on_track), True
        start = at + 1
    if closed == len(pieces):
        return Labels(values, ends)
    if not handover and closed + 1 < len(pieces):
        values[closed + 1], ends[closed + 1] = int(progress.done), True
    label_answer(problem, pieces, closed + 2, values, ends)
    return Labels(values, ends)


def label_answer(
    problem: Expression, pieces: list[str], start: int, values: list[int], ends: list[bool]
) -> None:
    """Label the answer that begins at `start`, in place: its digits, its end and the end of the turn."""
    if "\\boxed{" not in pieces[start:]:
        return
    opened = pieces.index("\\boxed{", start)
    closed = next((i for i in range(opened, len(pieces)) if pieces[i].startswith("}")), None)
    _label_digits(pieces[opened + 1 : closed], str(problem.value), values, opened + 1)
    if closed is None:
        return
    right = int("".join(pieces[opened + 1 : closed]) == str(problem.value))
    for at in range(closed, len(pieces)):
        values[at], ends[at] = right, True


def _label_result(
    problem: Expression, progress: Progress, line: list[str], values: list[int], start: int
) -> None:
    """Label the digits after the equals sign of one line."""
    if "=" not in line:
        return
    equals = line.index("=")
    left = "".join(line[:equals])
    wait = left.startswith(WAIT)
    exact = progress.right_value(left.removeprefix(WAIT), wait)
    _label_digits(
        line[equals + 1 :], "" if exact is None else str(exact), values, start + equals + 1
    )


def _label_digits(digits: list[str], exact: str, values: list[int], start: int) -> None:
    for at in range(len(digits)):
        values[start + at] = int(exact.startswith("".join(digits[: at + 1])) and exact != "")
