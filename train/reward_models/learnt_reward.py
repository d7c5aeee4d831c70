"""A trained reward model, or several, as the reward of reinforcement learning.

Beside a verifier or in its place (InstructGPT, Ouyang et al. 2022, arXiv:2203.02155). With several models the reward is
their mean, or their worst case, which is harder to fool (Coste et al. 2024, arXiv:2310.02743); how much they disagree
is logged as `reward_model_spread`, which grows where the policy leaves what they were trained on. Reward models must
have the policy's tokenizer: they read the ids that were sampled. Cost: a forward pass per model and rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from train.base.models import load_tokenizer
from train.base.rollout import Rollout
from train.base.stage import Setting
from train.examples.examples import Example
from train.reward_models.reward_models import How, RewardEnsemble, load_reward_model
from ttc.errors import ConfigError

__all__ = ["LearntReward", "RewardSource", "beside", "model_folder", "reward_folders", "same_tokenizer"]


class LearntReward:
    """Scores rollouts by an ensemble; see `train.rollouts.rewards.Learnt`."""

    total = "reward_model"

    def __init__(self, ensemble: RewardEnsemble, weight: float) -> None:
        self._ensemble, self._weight = ensemble, weight

    def __call__(self, rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[float]]:
        """Weighted rewards, and the members' spread where there are several."""
        examples = [Example(rollout.problem_id, rollout.prompt_ids, rollout.token_ids) for rollout in rollouts]
        members = self._ensemble.members(examples)
        found = {self.total: (self._weight * self._ensemble.joined(members)).tolist()}
        if len(members) > 1:
            found["reward_model_spread"] = members.std(0).tolist()
        return found


@dataclass(frozen=True, slots=True)
class RewardSource:
    """Which reward models, how they are joined, and their weight."""

    names: tuple[str, ...]
    how: How
    weight: float

    def __post_init__(self) -> None:
        """Refuse no name, or a weight that adds nothing."""
        if not self.names or not self.weight:
            raise ConfigError("reward_model: needs a name, and a reward_weight that is not 0")

    def load(self, setting: Setting, source: Path) -> LearntReward:
        """Load the models; `source` is the policy's folder.

        Raises:
            ConfigError: a name that is no reward model, or one with another tokenizer.
        """
        folders = [folder for name in self.names for folder in reward_folders(name, setting)]
        for folder in folders:
            same_tokenizer("reward_model", folder, source)
        models = [load_reward_model(folder, setting.device) for folder in folders]
        pad_id = int(load_tokenizer(source).pad_token_id)
        return LearntReward(RewardEnsemble(models, pad_id, self.how), self.weight)


def reward_folders(name: str, setting: Setting) -> list[Path]:
    """The reward models that `name` means: all of a stage of this run, such as 2-reward_model, or a folder.

    Raises:
        ConfigError: there is none.
    """
    place = beside(name, setting)
    if (place / "config.json").is_file():
        return [place]
    members = [path for path in place.glob("reward_model*") if (path / "config.json").is_file()]
    if not members:
        raise ConfigError(f"reward_model {name!r}: {place} holds none; name a stage of that kind, or a folder")
    return sorted(members, key=lambda path: int(path.name.rpartition("-")[2]) if "-" in path.name else 0)


def model_folder(field: str, name: str, setting: Setting) -> Path:
    """The model that `name` means: the one a stage of this run made, such as 1-sft, or a folder."""
    place = beside(name, setting)
    found = place if (place / "config.json").is_file() else place / "model"
    if not (found / "config.json").is_file():
        raise ConfigError(f"{field} {name!r}: {place} holds no model; name a stage of this run, or a model folder")
    return found


def same_tokenizer(field: str, folder: Path, source: Path) -> None:
    """Raise ConfigError unless the model in `folder` reads the ids of the model in `source`."""
    if load_tokenizer(folder).get_vocab() != load_tokenizer(source).get_vocab():
        raise ConfigError(f"{field} {folder}: its tokenizer is not the one of {source}; both must read the same ids")


def beside(name: str, setting: Setting) -> Path:
    """The folder of the stage of this run that is called `name`, or a folder of that name."""
    stage = setting.folder.parent / name
    return stage if stage.is_dir() else Path(name).expanduser()
