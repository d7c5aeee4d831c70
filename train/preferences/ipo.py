"""IPO: push the difference of log-ratios to a fixed margin instead of to infinity.

Azar et al. 2023 (arXiv:2310.12036). Log-ratios are per token, as in the authors' own experiments. Where every label
agrees, DPO's optimum is infinitely far from the reference; here it is 1 / (2 beta) away.
"""

from __future__ import annotations

import math

import torch

from train.examples.pairs import PairLoss, Pairs, Ranking, ranks_by
from ttc.errors import ConfigError


def ipo(*, beta: float = 0.1) -> PairLoss:
    """Squared distance of the per-token margin from 1 / (2 beta).

    Args:
        beta: strength of the pull to the reference; above 0.
    """
    if not 0 < beta < math.inf:
        raise ConfigError(f"ipo.beta must be above 0 and finite, got {beta}")

    ranking = Ranking(per_token=True)

    @ranks_by(ranking)
    def loss(pairs: Pairs) -> torch.Tensor:
        chosen, rejected = pairs.ranked("ipo", ranking)
        return pairs.weighted((chosen - rejected - 1 / (2 * beta)) ** 2)

    return loss
