"""DAPO's soft overlong punishment: a penalty that grows over the last tokens before the limit.

Yu et al. 2025 (arXiv:2503.14476), equation 13. A hard cut punishes sound reasoning as if it were wrong; here the policy
is warned before the cut.
"""

from __future__ import annotations

from train.rollouts.rewards import Shaping, of_each
from ttc.errors import ConfigError


def overlong(*, max_tokens: int, buffer: int) -> Shaping:
    """0 up to max_tokens - buffer tokens, then falling linearly to -1 at max_tokens.

    Args:
        max_tokens: the rollout's limit.
        buffer: tokens before the limit over which the penalty grows.
    """
    if not 0 < buffer <= max_tokens:
        raise ConfigError(f"shaping overlong: needs 0 < buffer <= max_tokens, got {buffer} and {max_tokens}")
    free = max_tokens - buffer
    return of_each(lambda rollout: -min(max(len(rollout.token_ids) - free, 0) / buffer, 1.0))
