"""DVTS, diverse verifier tree search: n/m independent subtrees, each of which grows m children of its best node.

Beeching, Tunstall, Rush 2024, "Scaling test-time compute with open models". Independence keeps diversity at large n and
needs no synchronisation between subtrees; weak at small n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.errors import ConfigError
from ttc.search.tree import Policy, keep_top


@dataclass(frozen=True, slots=True)
class Dvts(Policy):
    """See the module docstring."""

    beam_width: int

    def subtrees(self, n: int) -> tuple[int, ...]:
        """Subtrees of width m; a remainder makes one narrower subtree."""
        whole, rest = divmod(n, self.beam_width)
        return (self.beam_width,) * whole + ((rest,) if rest else ())

    def allocate(self, scores: Sequence[float], width: int) -> list[int]:
        """Give all children to the best node of the subtree."""
        return keep_top(scores, width, 1)


def dvts(*, beam_width: int = 4) -> Policy:
    """Make the policy.

    Args:
        beam_width: m, width of each subtree and children of its best node.
    """
    if beam_width < 1:
        raise ConfigError(f"beam_width must be >= 1, got {beam_width}")
    return Dvts(beam_width)
