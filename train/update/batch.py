"""A batch of the one update rule: ids, and three weights per token.

    loss = sum over tokens of   pg * policy-gradient term   (GRPO, PPO, RLOO, ...)
                              + ce * -log p(token)          (SFT, rejection sampling, thinking fusion)
                              + kl * divergence estimate    (a reference or a teacher)

The weights carry the normaliser (`train.update.normalise`), so micro-batches add up. Masks come from lengths, never
from a padding id: a policy may well sample that id. Shapes: R rows, L ids padded on the right, T = L - 1 target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from train.base.rollout import Rollout

__all__ = ["Batch", "pad", "rollout_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one update; every field has R rows.

    `ids` (R, L); `mask` (R, T) True at trained tokens; `advantages`, `pg`, `ce`, `kl` (R, T); `engine` (R, T) the
    sampling engine's log-probabilities, NaN where unknown; `reference` (R, T) those of the reference, 0 where `kl` is
    0.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    pg: torch.Tensor
    ce: torch.Tensor
    kl: torch.Tensor
    engine: torch.Tensor
    reference: torch.Tensor

    def __len__(self) -> int:
        return self.ids.shape[0]

    def rows(self, index: torch.Tensor) -> Batch:
        """The rows of `index`, cut to their longest."""
        picked = {field.name: getattr(self, field.name)[index] for field in fields(self)}
        used = (picked["mask"].any(0).nonzero().max().item() + 1) if picked["mask"].any() else 1
        cut = {name: tensor[:, : used + 1] if name == "ids" else tensor[:, :used] for name, tensor in picked.items()}
        return Batch(**cut)

    def to(self, device: Any) -> Batch:
        """The batch on another device."""
        return Batch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def rollout_batch(rollouts: Sequence[Rollout], pad_id: int, *, mask_truncated: bool = False) -> Batch:
    """Lay rollouts out; all weights 0 yet. Trained tokens are the sampled ones of rollouts that have a reward.

    With `mask_truncated` a rollout that was cut is not trained on (DAPO's overlong filtering); its reward still counts
    in the means of its group.
    """
    rows = [(*rollout.prompt_ids, *rollout.token_ids) for rollout in rollouts]
    ids = pad(rows, pad_id)
    width = ids.shape[1] - 1
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    engine = torch.full((len(rows), width), float("nan"))
    for i, rollout in enumerate(rollouts):
        first = len(rollout.prompt_ids) - 1
        span = slice(first, first + len(rollout.token_ids))
        if rollout.reward is not None and not (mask_truncated and rollout.truncated):
            mask[i, span] = torch.tensor(rollout.sampled, dtype=torch.bool)
        engine[i, span] = torch.tensor([float("nan") if value is None else value for value in rollout.logprobs])
    zero = torch.zeros(len(rows), width)
    return Batch(ids, mask, zero, zero, zero, zero, engine, zero)


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Right-pad rows of ids: (R, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *([pad_id] * (longest - len(row)))] for row in rows], dtype=torch.long)
