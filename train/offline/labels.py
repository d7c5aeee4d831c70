"""Single completions marked good or bad, and the update that learns from them: thumbs up and thumbs down, no pairs.

    {"prompt": "2+3", "completion": "5", "label": true}          also "messages", "thinking", "mode", "weight"

A label is also 1 or 0, or "desirable" or "undesirable".

Ethayarajh et al. 2024 (arXiv:2402.01306), KTO. The reference point is the divergence from the reference on prompts that
are matched with another row's completion, without a gradient. The two kinds need not be equally frequent: they are
weighted so that both count the same (the paper's bound for its two weights), times the loss's own weights. Held out are
whole prompts; measured is the share of completions whose likelihood moved to the side of their label, ties one half.
Cost: a forward and backward pass per row, a forward pass more for the reference point, and once two of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from train.base.optimiser import Optimiser
from train.examples.examples import Example, completion_ids, mismatched
from train.examples.imitation import completion_sums, imitation_batch
from train.examples.pairs import LabelledBatch, each_loss
from train.examples.rows import read_prompt, read_weight, rows_of
from train.update.logprobs import token_logprobs
from train.update.update import Build
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError


@dataclass(frozen=True, slots=True)
class Marked:
    """A completion, and whether it is good."""

    example: Example
    good: bool

    @property
    def key(self) -> str:
        """The name of its prompt."""
        return self.example.key


_LABELS = {
    **dict.fromkeys(("true", "1", "1.0", "desirable"), True),
    **dict.fromkeys(("false", "0", "0.0", "undesirable"), False),
}
"""What data sets write for a good completion and for a bad one."""


def read_marked(path: Path, text: Text, end: int) -> list[Marked]:
    """Read a file of marked completions; `end` is the id that ends a turn.

    Raises:
        ConfigError: no such file, or not both kinds in it.
        RecordError: a broken line; names file, line and field.
    """
    rows: list[Marked] = []
    for where, row in rows_of(path, {"completion", "thinking", "label", "weight"}):
        label, answer, thinking = str(row.get("label")).lower(), row.get("completion"), row.get("thinking")
        if label not in _LABELS:
            names = "true, 1 or desirable (good), or false, 0 or undesirable (bad)"
            raise RecordError(f"{where}: label must be {names}, got {row.get('label')!r}")
        if not isinstance(answer, str) or not (thinking is None or isinstance(thinking, str)):
            raise RecordError(f"{where}: completion must be a text, and thinking a text or absent")
        key, prompt = read_prompt(row, text, where)
        ids = completion_ids(text, prompt, thinking, answer, end, where)
        rows.append(Marked(Example(key, prompt.token_ids or (), ids, read_weight(row, where)), _LABELS[label]))
    if len({row.good for row in rows}) < 2:
        raise ConfigError(f"{path} needs good completions and bad ones; all {len(rows)} are of one kind")
    return rows


class MarkedUpdater:
    """Holds the model, its optimiser, and the rows with the reference's log-probabilities (R,), matched and not."""

    def __init__(
        self,
        model: Any,
        optimiser: Optimiser,
        rows: Sequence[Marked],
        reference: tuple[torch.Tensor, torch.Tensor],
        pad_id: int,
        loss: Callable[[Any], torch.Tensor],
        build: Build,
    ) -> None:
        self.model, self._optimiser, self._rows, self._reference = model, optimiser, rows, reference
        self._pad_id, self._loss, self._build = pad_id, loss, build
        self._others = mismatched([row.example for row in rows])
        longest = max(len(row.example.prompt_ids) + len(row.example.token_ids) for row in rows)
        self._device = next(model.parameters()).device
        self._micro = build.rows(longest, self._device)
        share = fmean(row.good for row in rows)
        self._balance = {True: 0.5 / share, False: 0.5 / (1 - share)}

    def step(self, numbers: Sequence[int]) -> dict[str, float]:
        """Update on the rows of these numbers; nats, shares and norms."""
        self.model.train()
        with torch.no_grad():
            apart = torch.cat([self._sums([self._others[row]]) for row in numbers])
            kl = (apart - self._reference[1][torch.tensor(numbers)].to(self._device)).mean()
        total, ratios = 0.0, list[float]()
        for start in range(0, len(numbers), self._micro):
            part = numbers[start : start + self._micro]
            batch = self._batch(part, kl)
            losses = each_loss(self._loss, batch, batch.logprob)
            loss = (losses * self._weights(part)).sum() / len(numbers)
            loss.backward()
            total += float(loss.detach())
            ratios += (batch.logprob.detach() - batch.reference).tolist()
        kinds = [self._rows[row].good for row in numbers]
        measures = {"good_ratio": _mean(ratios, kinds, True), "bad_ratio": _mean(ratios, kinds, False), "kl": float(kl)}
        return {"loss": total, **measures, "grad_norm": self._optimiser.step()}

    def _batch(self, part: Sequence[int], kl: torch.Tensor) -> LabelledBatch:
        rows = [self._rows[row] for row in part]
        good = torch.tensor([row.good for row in rows], device=self._device)
        reference = self._reference[0][torch.tensor(part)].to(self._device)
        return LabelledBatch(self._sums([row.example for row in rows]), reference, good, kl)

    def _weights(self, part: Sequence[int]) -> torch.Tensor:
        rows = [self._rows[row] for row in part]
        return torch.tensor([self._balance[row.good] * row.example.weight for row in rows], device=self._device)

    def _sums(self, examples: Sequence[Example]) -> torch.Tensor:
        batch = imitation_batch(examples, self._pad_id, "token", 1).to(self._device)
        with self._build.computing(self._device):
            return token_logprobs(self.model, batch.ids, batch.mask).logprobs.sum(1)


def _mean(values: Sequence[float], kinds: Sequence[bool], kind: bool) -> float:
    chosen = [value for value, own in zip(values, kinds, strict=True) if own is kind]
    return fmean(chosen) if chosen else float("nan")


def moved_right(model: Any, rows: Sequence[Marked], reference: torch.Tensor, pad_id: int) -> list[float]:
    """1 per completion that is good and became likelier, or bad and less likely; else 0, ties one half."""
    sums = [total for total, _ in completion_sums(model, [row.example for row in rows], pad_id)]
    ratios = [total - before for total, before in zip(sums, reference.tolist(), strict=True)]
    return [0.5 if not ratio else float((ratio > 0) is row.good) for ratio, row in zip(ratios, rows, strict=True)]
