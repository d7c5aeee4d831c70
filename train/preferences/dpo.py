"""DPO: the reward model is the policy's own log-ratio to a reference.

Rafailov et al. 2023 (arXiv:2305.18290); label smoothing as in cDPO (Mitchell 2023). `per_token` divides each log-ratio
by its length (Meng et al. 2024; the length-normalised DPO of Tülu 3, arXiv:2411.15124), so that a longer answer is not
preferred for its length. Watch for both log-probabilities falling together.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from train.examples.pairs import PairLoss, Pairs, Ranking, ranks_by
from ttc.errors import ConfigError


def dpo(*, beta: float = 0.1, per_token: bool = False, label_smoothing: float = 0.0) -> PairLoss:
    """Negative log-sigmoid of the scaled difference of log-ratios.

    Args:
        beta: inverse temperature of the implied reward; above 0.
        per_token: divide log-ratios by the number of tokens.
        label_smoothing: the share of labels believed to be wrong, in [0, 0.5).
    """
    if not 0 < beta < math.inf:
        raise ConfigError(f"dpo.beta must be above 0 and finite, got {beta}")
    if not 0 <= label_smoothing < 0.5:
        raise ConfigError(f"dpo.label_smoothing must be in [0, 0.5), got {label_smoothing}")

    ranking = Ranking(per_token=per_token)

    @ranks_by(ranking)
    def loss(pairs: Pairs) -> torch.Tensor:
        chosen, rejected = pairs.ranked("dpo", ranking)
        logits = beta * (chosen - rejected)
        right, wrong = -F.logsigmoid(logits), -F.logsigmoid(-logits)
        return pairs.weighted((1 - label_smoothing) * right + label_smoothing * wrong)

    return loss
