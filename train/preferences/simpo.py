"""SimPO: mean log-probability as the reward, a margin, and no reference model.

Meng et al. 2024 (arXiv:2405.14734).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from train.examples.pairs import PairLoss, Pairs, Ranking, ranks_by
from ttc.config.values import at_least, finite
from ttc.errors import ConfigError


def simpo(*, beta: float = 2.0, gamma: float = 1.0) -> PairLoss:
    """Negative log-sigmoid of the scaled difference of mean log-probabilities, less a margin.

    Args:
        beta: scale; above 0.
        gamma: the margin that a pair must win by, in units of the scaled difference.
    """
    if not 0 < beta < math.inf:
        raise ConfigError(f"simpo.beta must be above 0 and finite, got {beta}")
    at_least("simpo", 0, gamma=gamma)
    finite("simpo", gamma=gamma)

    ranking = Ranking(over_reference=False, per_token=True)

    @ranks_by(ranking)
    def loss(pairs: Pairs) -> torch.Tensor:
        chosen, rejected = pairs.ranked("simpo", ranking)
        return pairs.weighted(-F.logsigmoid(beta * (chosen - rejected) - gamma))

    return loss
