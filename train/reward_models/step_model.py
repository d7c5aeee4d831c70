"""Process reward models in training: the probability that a path is right, read at the end of each step.

Two forms, both read by the scorer `prm`: a head of two labels on the body (`label`), or a language model that says a
good token rather than a bad one (`token`). Labels are shares, so the loss is the cross-entropy of a share. Cost: a
forward and backward pass over the solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F

from evals.numbers.step_metrics import Judged
from train.base.models import load_model
from train.examples.step_rows import StepRow, targets
from train.update.batch import pad
from ttc.errors import ConfigError
from ttc.scorers.reward_models.layouts import RewardTokenizer

__all__ = ["Form", "StepModel", "new_step_model"]

Form = Literal["label", "token"]
_ROWS = 32


@dataclass(frozen=True, slots=True)
class StepModel:
    """A `network` of transformers; `logits(hidden)` (.., 2) of wrong and right; `reading` as config.json states it."""

    network: Any
    logits: Callable[[torch.Tensor], torch.Tensor]
    reading: Mapping[str, object]

    def loss(self, rows: Sequence[StepRow], pad_id: int) -> torch.Tensor:
        """Mean cross-entropy per labelled step, nats."""
        scores, labels = self._scores(rows, pad_id)
        return -(labels * F.logsigmoid(scores) + (1 - labels) * F.logsigmoid(-scores)).sum() / max(len(labels), 1)

    @torch.no_grad()
    def judged(self, rows: Sequence[StepRow], pad_id: int) -> list[Judged]:
        """Every labelled step of `rows` with the probability that it is right."""
        self.network.eval()
        found: list[Judged] = []
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            values = iter(torch.sigmoid(self._scores(part, pad_id)[0]).tolist())
            for number, row in enumerate(part, start=start):
                labels = tuple(label for _, label in row.labelled())
                found.append(Judged(f"{row.key}/{number}", row.key, labels, tuple(next(values) for _ in labels)))
        return found

    def _scores(self, rows: Sequence[StepRow], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-odds of right at every labelled step, row by row, and the labels: two tensors (N,)."""
        device = next(self.network.parameters()).device
        ids = pad([row.ids for row in rows], pad_id).to(device)
        labels, mask = (tensor.to(device) for tensor in targets(rows, ids.shape[1]))
        hidden = self.network.base_model(input_ids=ids, use_cache=False).last_hidden_state[mask]
        two = self.logits(hidden).float()
        return two[:, 1] - two[:, 0], labels[mask]


def new_step_model(
    source: Path, form: Form, delimiter: str, words: tuple[str, str] | None, seed: int, device: str
) -> StepModel:
    """A step model on the body of the policy in `source`; `words` are the good and the bad token of the form `token`.

    Raises:
        ConfigError: words that are not single tokens, or missing.
    """
    reading: dict[str, object] = {"kind": form, "step_delimiter": delimiter}
    if form == "label":
        network = _classifier(source, seed, device)
        return StepModel(network, network.score, {**reading, "positive_label": 1})
    if words is None:
        raise ConfigError("prm: form token needs both good and bad")
    tokens = RewardTokenizer(source)
    good, bad = tokens.single("good", words[0]), tokens.single("bad", words[1])
    network = load_model(source, device)
    head = network.get_output_embeddings()
    reading |= {"good": words[0], "bad": words[1]}
    return StepModel(network, lambda hidden: head(hidden)[..., [bad, good]], reading)


def _classifier(source: Path, seed: int, device: str) -> Any:
    from transformers import AutoModelForTokenClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForTokenClassification.from_pretrained(source, num_labels=2, dtype=torch.float32)
    return network.to(device)
