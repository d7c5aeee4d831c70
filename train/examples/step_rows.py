"""Solutions cut into steps with a label each: what a process reward model learns from.

A solution is the ids that a model reads, and the positions at which it is asked whether the path is right so far: the
last token of every step. The positions are found by the same code that reads the trained model (`ttc.scorers`), so
training and scoring cannot disagree. Rows come from a JSON-lines file (`evals.data.steps`) or from rollouts
(`train.reward_models.monte_carlo`). A label is in [0, 1]; a step without one is not learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from evals.data.steps import Labelled, read_labelled
from ttc.core import Prompt
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.layouts import RewardTokenizer, SameIds
from ttc.verifiers.steps import prefixes

__all__ = ["StepRow", "Steps", "read_steps", "targets"]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One solution: `ids` whole, `reads` ascending places in it, a label or None at each; `key` names the problem."""

    key: str
    ids: tuple[int, ...]
    reads: tuple[int, ...]
    labels: tuple[float | None, ...]

    def labelled(self) -> list[tuple[int, float]]:
        """(place, label) of the steps that have a label."""
        return [(read, label) for read, label in zip(self.reads, self.labels, strict=True) if label is not None]


class Steps:
    """Where the steps of a path end, for the tokenizer of one model folder."""

    def __init__(self, folder: Path, delimiter: str) -> None:
        text = Text(folder)
        self._layout = SameIds(RewardTokenizer(folder), text.size, delimiter, None)

    def reads(self, path: Prompt) -> tuple[int, ...]:
        """Place of the last token of every step in the path's ids."""
        return self._layout.lay(path).reads


def read_steps(file: Path, folder: Path, delimiter: str) -> list[StepRow]:
    """Read a file of labelled steps for the model in `folder`.

    Raises:
        RecordError: a broken line, by name.
        ConfigError: no row, or steps that the delimiter does not keep apart.
    """
    text, steps = Text(folder), Steps(folder, delimiter)
    return [_row(row, text, steps, delimiter, file) for row in read_labelled(file)]


def _row(row: Labelled, text: Text, steps: Steps, delimiter: str, file: Path) -> StepRow:
    root = text.render(row.problem.messages, None)
    whole = prefixes(root, text.encode, row.steps, delimiter)[-1]
    reads = steps.reads(whole)
    if len(reads) != len(row.steps):
        raise ConfigError(
            f"{file}: solution {row.problem.id!r} has {len(row.steps)} steps, but step_delimiter {delimiter!r} ends "
            f"{len(reads)}; set the delimiter that the steps were cut at"
        )
    return StepRow(row.cluster, whole.token_ids or (), reads, row.labels)


def targets(rows: Sequence[StepRow], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels (R, width) at the places where steps end, and a mask of where there is one."""
    labels = torch.zeros(len(rows), width)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        for read, label in row.labelled():
            labels[number, read], mask[number, read] = label, True
    return labels, mask
