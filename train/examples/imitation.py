"""Completions as a batch of the update rule, their likelihood under a model, and earlier data beside rewards.

Only the completion's tokens are learnt; masks come from lengths. Cost: a forward pass, a few rows at a time.

`Ptx` reduces the alignment tax: InstructGPT's PPO-ptx (Ouyang et al. 2022, arXiv:2203.02155) adds the pretraining
objective to every update; here the earlier data are any examples: a file, a corpus, or the right rollouts of another
stage. Which rows an optimiser step takes is a pure function of (seed, step). Cost: a forward and backward pass over the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from evals.task import Item
from train.base.stage import Setting, check_file, rollouts_path
from train.examples.examples import (
    CORPORA,
    FIELDS,
    Example,
    check_prompts,
    check_rows,
    corpus_examples,
    read_examples,
    right_rollouts,
)
from train.registries import make
from train.update.batch import Normaliser, TokenBatch, micro_batches, pad, pass_tokens, rows_at, token_weights
from train.update.logprobs import token_logprobs
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, UnknownName

_ROWS = 32
"""Rows of a forward pass without a gradient."""


def imitation_batch(examples: Sequence[Example], pad_id: int, normaliser: Normaliser, max_tokens: int) -> TokenBatch:
    """A batch of cross-entropy on the completions of `examples`, each times its weight."""
    rows = [(*example.prompt_ids, *example.token_ids) for example in examples]
    ids = pad(rows, pad_id)
    mask = torch.zeros(len(rows), ids.shape[1] - 1, dtype=torch.bool)
    for row, example in enumerate(examples):
        mask[row, len(example.prompt_ids) - 1 : len(rows[row]) - 1] = True
    zero = torch.zeros(mask.shape)
    weight = torch.tensor([example.weight for example in examples])[:, None]
    batch = TokenBatch(ids, mask, zero, zero, zero, zero, torch.full(mask.shape, float("nan")), zero)
    return replace(batch, ce=token_weights(mask, normaliser, max_tokens) * weight)


@torch.no_grad()
def completion_sums(model: Any, examples: Sequence[Example], pad_id: int) -> list[tuple[float, int]]:
    """Log-probability of each completion (nats) and its length, without a gradient, in passes of the usual size."""
    device = next(model.parameters()).device
    model.eval()
    sums: list[tuple[float, int]] = []
    for start in range(0, len(examples), _ROWS):
        batch = imitation_batch(examples[start : start + _ROWS], pad_id, "token", 1)
        totals = torch.zeros(len(batch))
        for part in micro_batches(batch.mask, torch.arange(len(batch)), pass_tokens(None, device)):
            rows = batch.rows(part).to(device)
            totals[part] = token_logprobs(model, rows.ids, rows.mask).logprobs.sum(1).cpu()
        sums += zip(totals.tolist(), batch.mask.sum(1).tolist(), strict=True)
    return sums


def mean_loss(model: Any, examples: Sequence[Example], pad_id: int) -> float:
    """Cross-entropy of the completions, nats per token."""
    sums = completion_sums(model, examples, pad_id)
    return -sum(total for total, _ in sums) / sum(length for _, length in sums)


def probabilities(model: Any, examples: Sequence[Example], pad_id: int) -> list[float]:
    """Per completion the geometric mean of its tokens' probabilities: a share in [0, 1]."""
    return [float(torch.tensor(total / length).exp()) for total, length in completion_sums(model, examples, pad_id)]


def ranked_right(
    model: Any, chosen: Sequence[Example], rejected: Sequence[Example], pad_id: int, per_token: bool = False
) -> list[float]:
    """1 per pair whose chosen completion is likelier than the rejected one (optionally per token), else 0."""
    first, second = (
        [total / (length if per_token else 1) for total, length in completion_sums(model, side, pad_id)]
        for side in (chosen, rejected)
    )
    return [float(better > worse) for better, worse in zip(first, second, strict=True)]


_CORPUS_ROWS = 2048

_READERS: Mapping[str, Callable[[str, Setting, Path, int], list[Example]]] = {
    "data": lambda where, setting, source, end: read_examples(Path(where).expanduser(), Text(source), end),
    "corpus": lambda where, setting, source, end: corpus_examples(
        make(CORPORA, where), Text(source), end, _CORPUS_ROWS, setting.seed
    ),
    "rollouts": lambda where, setting, source, end: right_rollouts(rollouts_path(where, setting)),
}
_CHECKS: Mapping[str, Callable[[str], object]] = {
    "data": lambda where: check_file("ptx", Path(where).expanduser()),
    "corpus": lambda where: make(CORPORA, where),
    "rollouts": str,
}
"""By kind, what can be checked of WHERE before anything is loaded."""


@dataclass(frozen=True, slots=True)
class Ptx:
    """The source of the examples (`KIND:WHERE`), how many an update takes, and the weight of their mean loss."""

    source: str
    rows: int
    weight: float

    def check(self, held_out: Sequence[Item]) -> None:
        """Raise ConfigError for an invalid source or one with held-out problems, before anything is loaded."""
        kind, colon, value = self.source.partition(":")
        if not colon or not value:
            raise ConfigError(f"ptx: write KIND:WHERE with a kind of {', '.join(_READERS)}, got {self.source!r}")
        if kind not in _READERS:
            raise UnknownName("kind of ptx", kind, _READERS)
        if self.rows < 1 or not self.weight > 0:
            raise ConfigError(f"ptx: needs ptx_rows >= 1 and ptx_weight > 0, got {self.rows} and {self.weight}")
        _CHECKS[kind](value)
        if kind == "data":
            check_rows("ptx", Path(value).expanduser(), FIELDS, held_out)

    def batches(
        self, setting: Setting, source: Path, end: int, pad_id: int, held_out: Sequence[Item]
    ) -> Callable[[int], TokenBatch]:
        """The batch of optimiser step `number`; `end` is the id that ends a turn of the model in `source`.

        Raises:
            ConfigError: rows or rollouts that answer held-out problems.
        """
        kind, _, value = self.source.partition(":")
        examples = _READERS[kind](value, setting, source, end)
        if kind != "corpus":
            check_prompts("ptx", self.source, examples, Text(source), held_out)

        def batch(number: int) -> TokenBatch:
            rows = [examples[row] for row in rows_at(number, self.rows, len(examples), setting.seed)]
            plain = imitation_batch(rows, pad_id, "token", 1)
            return replace(plain, ce=plain.ce * self.weight)

        return batch
