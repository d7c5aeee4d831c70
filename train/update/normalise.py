"""From a loss per token to one number: the weight of each token, fixed over the whole update.

The weights are computed once from the mask of the whole batch; a micro-batch then adds up loss times weight, so the
result does not depend on how the batch is cut, on padding, or on the number of devices.

    token       mean over all tokens: long rollouts count more (DAPO)
    sequence    mean per rollout, then over rollouts: a long rollout's tokens count less (GRPO)
    constant    sum divided by rollouts x most tokens: no length bias (Dr. GRPO)
    rollout     sum per rollout, mean over rollouts (Kimi k1.5; the likelihood of whole sequences)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import torch

from ttc.errors import ConfigError

__all__ = ["NORMALISERS", "Normaliser", "token_weights"]

Normaliser: TypeAlias = Literal["token", "sequence", "constant", "rollout"]


def _token(mask: torch.Tensor, rows: int, most: int) -> torch.Tensor:
    return mask / mask.sum().clamp(min=1)


def _sequence(mask: torch.Tensor, rows: int, most: int) -> torch.Tensor:
    return mask / (mask.sum(1, keepdim=True).clamp(min=1) * max(rows, 1))


def _constant(mask: torch.Tensor, rows: int, most: int) -> torch.Tensor:
    return mask / (max(rows, 1) * most)


def _rollout(mask: torch.Tensor, rows: int, most: int) -> torch.Tensor:
    return mask / max(rows, 1)


NORMALISERS: Mapping[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "token": _token,
    "sequence": _sequence,
    "constant": _constant,
    "rollout": _rollout,
}


def token_weights(mask: torch.Tensor, how: Normaliser, max_tokens: int) -> torch.Tensor:
    """Return the weight of every token: mask (R, T) -> (R, T).

    Args:
        mask: True at tokens that are trained on.
        how: see the module.
        max_tokens: the cap of a rollout, for `constant`.

    Raises:
        ConfigError: max_tokens < 1.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, got {max_tokens}")
    return NORMALISERS[how](mask.float(), mask.shape[0], max_tokens)
