"""KTO: single answers marked good or bad, valued as prospect theory values gains and losses.

Ethayarajh et al. 2024 (arXiv:2402.01306). The reference point is the divergence estimated on mismatched prompts and
answers, without a gradient. Weights should balance the two kinds: good x number of good about equal to bad x number of
bad.
"""

from __future__ import annotations

import math

import torch

from train.examples.pairs import LabelledBatch, LabelledLoss
from ttc.config.values import at_least, finite
from ttc.errors import ConfigError


def kto(*, beta: float = 0.1, good_weight: float = 1.0, bad_weight: float = 1.0) -> LabelledLoss:
    """One minus the value of each answer.

    Args:
        beta: inverse temperature; above 0.
        good_weight: weight of answers marked good.
        bad_weight: weight of answers marked bad.
    """
    if not 0 < beta < math.inf:
        raise ConfigError(f"kto.beta must be above 0 and finite, got {beta}")
    at_least("kto", 0, good_weight=good_weight, bad_weight=bad_weight)
    finite("kto", good_weight=good_weight, bad_weight=bad_weight)

    def loss(labelled: LabelledBatch) -> torch.Tensor:
        point = labelled.kl.detach().clamp(min=0)
        ratio = labelled.logprob - labelled.reference
        good = good_weight * (1 - torch.sigmoid(beta * (ratio - point)))
        bad = bad_weight * (1 - torch.sigmoid(beta * (point - ratio)))
        return torch.where(labelled.good, good, bad)

    return loss
