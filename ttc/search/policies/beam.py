"""Beam search over steps: keep the best width/m nodes, m children each, in one tree.

Snell et al. 2024, "Scaling LLM Test-Time Compute Optimally"; m is `beam_width`. Strong where the scorer is good and the
problem hard; at large n it loses diversity and exploits the scorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.errors import ConfigError
from ttc.search.tree import Policy, keep_top


@dataclass(frozen=True, slots=True)
class Beam(Policy):
    """See the module docstring."""

    beam_width: int

    def allocate(self, scores: Sequence[float], width: int) -> list[int]:
        """Keep ceil(width / m) nodes, so that a width not divisible by m is still used in full."""
        return keep_top(scores, width, -(-width // self.beam_width))


def beam(*, beam_width: int = 4) -> Policy:
    """Make the policy.

    Args:
        beam_width: m, children of each kept node.
    """
    if beam_width < 1:
        raise ConfigError(f"beam_width must be >= 1, got {beam_width}")
    return Beam(beam_width)
