"""Learnt rewards: a language model with one linear output, read at the last token, and ensembles of them.

The mean of an ensemble is less noisy; the worst case is harder to fool, since a flaw must be shared by all members
(Coste et al. 2024, arXiv:2310.02743). A reward model is a folder of the sequence-classifier form, which the scorer
`orm` reads too. Positions come from lengths, never from a padding id. Cost: a forward pass per member.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from train.examples.examples import Example
from train.update.batch import pad
from ttc.errors import ConfigError

__all__ = ["How", "RewardEnsemble", "load_reward_model", "new_reward_model", "rewards_of"]

How = Literal["mean", "worst"]
_ROWS = 32


def new_reward_model(policy: Path, seed: int, device: str) -> Any:
    """A reward model whose body is the policy's and whose head is random from `seed`; fp32."""
    from transformers import AutoModelForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1, dtype=torch.float32)
    return model.to(device)


def load_reward_model(folder: Path, device: str) -> Any:
    """Load a folder; raises ConfigError when it is no reward model."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    names = AutoConfig.from_pretrained(folder).architectures or ()
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise ConfigError(f"{folder} is no reward model: it is {', '.join(names) or 'unnamed'}")
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).to(device).eval()


def rewards_of(model: Any, examples: Sequence[Example], pad_id: int) -> torch.Tensor:
    """The reward of each prompt with its completion, read at its last token: (R,), with the gradient."""
    device = next(model.parameters()).device
    rows = [(*example.prompt_ids, *example.token_ids) for example in examples]
    hidden = model.base_model(input_ids=pad(rows, pad_id).to(device), use_cache=False).last_hidden_state
    last = torch.tensor([len(row) - 1 for row in rows], device=device)
    scores: torch.Tensor = model.score(hidden[torch.arange(len(rows), device=device), last])
    return scores[:, 0].float()


class RewardEnsemble:
    """One or more reward models that speak with one voice."""

    def __init__(self, models: Sequence[Any], pad_id: int, how: How = "mean") -> None:
        """`how` is mean, or worst for the lowest reward of any member; raises ConfigError without a member."""
        if not models:
            raise ConfigError("a reward ensemble needs at least one model")
        self._models, self._pad_id, self._how = tuple(models), pad_id, how

    def score(self, examples: Sequence[Example]) -> torch.Tensor:
        """Rewards (R,); the scale is that of the members' training and has no zero of its own."""
        return self.joined(self.members(examples))

    def joined(self, members: torch.Tensor) -> torch.Tensor:
        """One voice of the members' rewards: (members, R) -> (R,)."""
        return members.mean(0) if self._how == "mean" else members.amin(0)

    @torch.no_grad()
    def members(self, examples: Sequence[Example]) -> torch.Tensor:
        """Rewards by each member: (members, R)."""
        columns = []
        for model in self._models:
            model.eval()
            parts = [examples[i : i + _ROWS] for i in range(0, len(examples), _ROWS)]
            columns.append(torch.cat([rewards_of(model, part, self._pad_id) for part in parts]))
        return torch.stack(columns)
