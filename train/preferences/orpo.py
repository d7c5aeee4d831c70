"""ORPO: fine-tuning on the chosen answer with a penalty on the odds of the rejected one; no reference model.

Hong et al. 2024 (arXiv:2403.07691). Log-probabilities are per token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from train.examples.pairs import PairLoss, Pairs, Ranking, ranks_by
from ttc.config.values import at_least, finite


def orpo(*, beta: float = 0.1) -> PairLoss:
    """Negative log-likelihood of the chosen one per token, plus beta times the odds-ratio term.

    Args:
        beta: weight of the odds ratio; at least 0.
    """
    at_least("orpo", 0, beta=beta)
    finite("orpo", beta=beta)

    ranking = Ranking(over_reference=False, per_token=True)

    @ranks_by(ranking)
    def loss(pairs: Pairs) -> torch.Tensor:
        chosen, rejected = pairs.ranked("orpo", ranking)
        odds = (chosen - rejected) - (_log1mexp(chosen) - _log1mexp(rejected))
        return pairs.weighted(-chosen - beta * F.logsigmoid(odds))

    return loss


def _log1mexp(x: torch.Tensor) -> torch.Tensor:
    """log(1 - e^x) for x < 0, without cancellation at either end."""
    x = x.clamp(max=-1e-7)
    return torch.where(x > -0.693, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))
