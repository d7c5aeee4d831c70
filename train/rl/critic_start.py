"""Where PPO's critic starts: as a copy of the policy, as a head on the policy itself, or as a reward model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.models import load_model
from train.base.optimiser import Optimiser, Schedule
from train.base.stage import Setting
from train.reward_models.reward_models import load_reward_model, reward_folders, same_tokenizer
from train.update.critic import Critic, ValueFit, ValueHead

__all__ = ["CriticStart"]


@dataclass(frozen=True, slots=True)
class CriticStart:
    """`start` is copy, head, or a reward model (a stage of the run, or a folder); see `train.update.critic`."""

    start: str
    schedule: Schedule
    fit: ValueFit

    @property
    def names(self) -> tuple[str, ...]:
        """The reward model that it starts from, if it does."""
        return () if self.start in _STARTS else (self.start,)

    def check(self, source: Path, setting: Setting) -> None:
        """Raise ConfigError when it cannot start like this; `source` is the policy's folder."""
        for name in self.names:
            same_tokenizer("critic", reward_folders(name, setting)[0], source)

    def make(self, model: Any, source: Path, setting: Setting) -> Critic:
        """The critic of the policy `model`, loaded from `source`."""
        make = _STARTS.get(self.start)
        module = _reward_model(self.start, setting) if make is None else make(model, source, setting.device)
        optimiser = Optimiser(module.to(setting.device), self.schedule, world=setting.world)
        return Critic(module, optimiser, self.fit, setting.world)


def _copy(model: Any, source: Path, device: str) -> ValueHead:
    return ValueHead(load_model(source, device).base_model, model.config.hidden_size, shared=False)


def _head(model: Any, source: Path, device: str) -> ValueHead:
    return ValueHead(model.base_model, model.config.hidden_size, shared=True)


_STARTS: Mapping[str, Callable[[Any, Path, str], ValueHead]] = {"copy": _copy, "head": _head}


def _reward_model(name: str, setting: Setting) -> ValueHead:
    """The reward model's body and head: its reward at the last token is the value to begin with."""
    model = load_reward_model(reward_folders(name, setting)[0], setting.device)
    module = ValueHead(model.base_model, model.config.hidden_size, shared=False)
    with torch.no_grad():
        module.head.weight.copy_(model.score.weight)
    return module
