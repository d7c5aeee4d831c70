"""A process reward model as the step rewards of reinforcement learning.

Wang et al. 2024, "Math-Shepherd" (arXiv:2312.08935); Shao et al. 2024 (arXiv:2402.03300), section 4.1.3. Every step
of a rollout is worth the model's probability that the path is right so far; the advantage `steps` makes token weights
of it. The model must be one that the stage `prm` wrote, with the policy's tokenizer: it reads the ids that were
sampled, and steps end where they ended in its training. The mean over a rollout's steps is logged as the part
`process`. A step that a limit cut has no reward. Cost: a forward pass per rollout. Left out: models that read their own
format (search can use them), and a reward for how much a step raised the probability.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from train.base.models import load_tokenizer
from train.base.rollout import Rollout
from train.base.stage import Setting
from train.examples.step_rows import StepRow, Steps
from train.reward_models.learnt_reward import beside, same_tokenizer
from train.reward_models.step_model import StepModel, new_step_model
from ttc.core import Prompt
from ttc.errors import ConfigError

__all__ = ["ProcessReward", "ProcessSource"]

FOLDER = "prm"
"""What the stage `prm` calls the folder of its model."""


class ProcessReward:
    """Scores the steps of rollouts; see `train.rollouts.rewards.Process`."""

    def __init__(self, model: StepModel, steps: Steps, pad_id: int, end: int) -> None:
        self._model, self._steps, self._pad_id, self._end = model, steps, pad_id, end

    def __call__(self, rollouts: Sequence[Rollout]) -> list[tuple[tuple[int, float], ...]]:
        """(place of its last token in `token_ids`, probability) of every step of every rollout."""
        rows = [self._row(rollout) for rollout in rollouts]
        found = []
        for row, rollout, judged in zip(rows, rollouts, self._model.judged(rows, self._pad_id), strict=True):
            places = [read - len(rollout.prompt_ids) for read in row.reads]
            if places and not rollout.truncated:
                places[-1] = len(rollout.token_ids) - 1  # to end where it ended is a part of the last step
            found.append(tuple(zip(places, judged.scores or (), strict=True)))
        return found

    def _row(self, rollout: Rollout) -> StepRow:
        """The rollout as the model was trained to read it: without the end of the turn."""
        drawn = rollout.token_ids[:-1] if rollout.token_ids[-1:] == (self._end,) else rollout.token_ids
        ids = (*rollout.prompt_ids, *drawn)
        reads = self._steps.reads(Prompt("", ids, rendered_len=len(rollout.prompt_ids)))
        if rollout.truncated and reads and reads[-1] == len(ids) - 1:
            reads = reads[:-1]
        return StepRow(rollout.problem_id, ids, reads, (1.0,) * len(reads))


@dataclass(frozen=True, slots=True)
class ProcessSource:
    """Which process reward model: a stage of this run, such as 2-prm, or a folder."""

    name: str

    def load(self, setting: Setting, source: Path) -> ProcessReward:
        """Load it; `source` is the policy's folder.

        Raises:
            ConfigError: a name that is no process reward model, or one with another tokenizer.
        """
        place = beside(self.name, setting)
        folder = place / FOLDER if (place / FOLDER).is_dir() else place
        reading = _reading(folder, self.name)
        same_tokenizer("process_reward", folder, source)
        words = (str(reading["good"]), str(reading["bad"])) if reading["kind"] == "token" else None
        delimiter = str(reading["step_delimiter"])
        model = new_step_model(folder, "token" if words else "label", delimiter, words, 0, setting.device)
        tokenizer = load_tokenizer(source)
        return ProcessReward(model, Steps(folder, delimiter), int(tokenizer.pad_token_id), int(tokenizer.eos_token_id))


def _reading(folder: Path, name: str) -> Mapping[str, object]:
    """How the model in `folder` says that it is read."""
    config = folder / "config.json"
    found = json.loads(config.read_text()).get("ttc_prm", {}) if config.is_file() else {}
    if found.get("kind") not in ("label", "token") or "step_tag" in found:
        raise ConfigError(
            f"process_reward {name!r}: {folder} holds no model that scores steps; name a stage prm of this run, such "
            "as 2-prm, or the folder that one wrote"
        )
    return dict(found)
