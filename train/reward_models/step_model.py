"""Process reward models in training: rows of labelled steps, the model, and its scores as rewards of steps.

A row is the ids that a model reads, and the positions at which it is asked whether the path is right so far: the last
token of every step. The positions are found by the same code that reads the trained model (`ttc.scorers`), so training
and scoring cannot disagree. Rows come from a JSON-lines file (`evals.data.steps`) or from rollouts
(`train.stages.prm`). A label is in [0, 1], so the loss is the cross-entropy of a share; a step
without one is not learnt from. Two forms, both read by the scorer `prm`: a head of two labels on the body (`label`), or
a language model that says a good token rather than a bad one (`token`).

In reinforcement learning (Wang et al. 2024, "Math-Shepherd", arXiv:2312.08935; Shao et al. 2024, arXiv:2402.03300,
section 4.1.3) every step of a rollout is worth the model's probability that the path is right so far; the advantage
`steps` makes token weights of it. The model must be one that the stage `prm` wrote, with the policy's tokenizer. The
mean over a rollout's steps is logged as the part `process`. A step that a limit cut has no reward.

Cost: a forward and backward pass over the solutions; a forward pass per rollout. Left out: models that read their own
format (search can use them), and a reward for how much a step raised the probability.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F

from train.base.models import load_model, load_tokenizer, logits_of
from train.base.rollout import Rollout
from train.base.stage import Setting
from train.reward_models.reward_models import STEP_LABELS, beside, last_hidden, new_head, same_tokenizer
from ttc.core import Prompt
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.layouts import RewardTokenizer, SameIds

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
        odds, labels = self._odds(rows, pad_id)
        return -(labels * F.logsigmoid(odds) + (1 - labels) * F.logsigmoid(-odds)).sum() / max(len(labels), 1)

    @torch.no_grad()
    def scores(self, rows: Sequence[StepRow], pad_id: int) -> list[tuple[float, ...]]:
        """The probability that it is right for every labelled step of each row."""
        self.network.eval()
        scores: list[tuple[float, ...]] = [()] * len(rows)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place].ids))  # so that little is padding
        for start in range(0, len(rows), _ROWS):
            places = order[start : start + _ROWS]
            values = iter(torch.sigmoid(self._odds([rows[place] for place in places], pad_id)[0]).tolist())
            for place in places:
                scores[place] = tuple(next(values) for _ in rows[place].labelled())
        return scores

    def _odds(self, rows: Sequence[StepRow], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-odds of right at every labelled step, row by row, and the labels: two tensors (N,)."""
        states = last_hidden(self.network, [row.ids for row in rows], pad_id)
        labelled = [row.labelled() for row in rows]
        hidden = torch.cat([own[[place for place, _ in steps]] for own, steps in zip(states, labelled, strict=True)])
        two = self.logits(hidden).float()
        return two[:, 1] - two[:, 0], two.new_tensor([label for steps in labelled for _, label in steps])


def new_step_model(
    source: Path, form: Form, delimiter: str, words: tuple[str, str] | None, seed: int, device: str,
    dtype: torch.dtype = torch.float32,
) -> StepModel:  # fmt: skip
    """A step model on the body of the policy in `source`; `words` are the good and the bad token of the form `token`.

    Its body, and all of a language model, is held in `dtype`, which one in bf16 needs autocast for.

    Raises:
        ConfigError: words that are not single tokens, or missing.
    """
    reading: dict[str, object] = {"kind": form, "step_delimiter": delimiter}
    if form == "label":
        network = new_head(STEP_LABELS, source, 2, seed, device, dtype)
        return StepModel(network, network.score, {**reading, "positive_label": 1})
    if words is None:
        raise ConfigError("prm: form token needs both good and bad")
    tokens = RewardTokenizer(source)
    good, bad = tokens.single("good", words[0]), tokens.single("bad", words[1])
    network = load_model(source, device, dtype=dtype)
    logits = logits_of(network)
    reading |= {"good": words[0], "bad": words[1]}
    return StepModel(network, lambda hidden: logits(hidden)[..., [bad, good]], reading)


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


FOLDER = "prm"
"""What the stage `prm` calls the folder of its model."""


class ProcessReward:
    """Scores the steps of rollouts; see `train.rollouts.rewards.Process`."""

    def __init__(self, model: StepModel, steps: Steps, pad_id: int, ends: Sequence[int]) -> None:
        """`ends` are the ids that a rollout of the policy may stop at."""
        self._model, self._steps, self._pad_id, self._ends = model, steps, pad_id, tuple(ends)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[tuple[tuple[int, float], ...]]:
        """(place of its last token in `token_ids`, probability) of every step of every rollout."""
        rows = [self._row(rollout) for rollout in rollouts]
        rewards = []
        for row, rollout, scores in zip(rows, rollouts, self._model.scores(rows, self._pad_id), strict=True):
            places = [read - len(rollout.prompt_ids) for read in row.reads]
            if places and not rollout.truncated:
                places[-1] = len(rollout.token_ids) - 1  # to end where it ended is a part of the last step
            rewards.append(tuple(zip(places, scores, strict=True)))
        return rewards

    def _row(self, rollout: Rollout) -> StepRow:
        """The rollout as the model was trained to read it: without the end of the turn."""
        path_ids = rollout.token_ids[:-1] if rollout.token_ids[-1] in self._ends else rollout.token_ids
        ids = (*rollout.prompt_ids, *path_ids)
        reads = self._steps.reads(Prompt("", ids, rendered_len=len(rollout.prompt_ids)))
        if rollout.truncated and reads and reads[-1] == len(ids) - 1:
            reads = reads[:-1]
        return StepRow(rollout.key, ids, reads, (1.0,) * len(reads))


def load_process(name: str, setting: Setting, source: Path) -> ProcessReward:
    """The process reward model of a stage of this run, such as 2-prm, or of a folder; `source` is the policy's folder.

    Raises:
        ConfigError: a name that is no process reward model, or one with another tokenizer.
    """
    place = beside(name, setting)
    folder = place / FOLDER if (place / FOLDER).is_dir() else place
    reading = _reading(folder, name)
    same_tokenizer("process_reward", folder, source)
    words = (str(reading["good"]), str(reading["bad"])) if reading["kind"] == "token" else None
    delimiter = str(reading["step_delimiter"])
    model = new_step_model(folder, "token" if words else "label", delimiter, words, 0, setting.device)
    pad_id = int(load_tokenizer(source).pad_token_id)
    return ProcessReward(model, Steps(folder, delimiter), pad_id, Text(source).eos_ids)


def _reading(folder: Path, name: str) -> Mapping[str, object]:
    """How the model in `folder` says that it is read."""
    config = folder / "config.json"
    reading = json.loads(config.read_text()).get("ttc_prm", {}) if config.is_file() else {}
    if reading.get("kind") not in ("label", "token") or "step_tag" in reading:
        raise ConfigError(
            f"process_reward {name!r}: {folder} holds no model that scores steps; name a stage prm of this run, such "
            "as 2-prm, or the folder that one wrote"
        )
    return dict(reading)
