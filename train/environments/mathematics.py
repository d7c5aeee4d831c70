r"""Mathematics with Python at hand, for models with a chat template: reason, compute, reason, box the answer.

After ToRL (Li et al. 2025, arXiv:2503.23383) and ReTool (Feng et al. 2025, arXiv:2504.11536). Any task whose answers a
verifier can check will do. Programs run in the sandbox of `ttc.sandbox`.
"""

from __future__ import annotations

from train.rollouts.environment import Environment
from ttc.agents.markup import MarkupName


def mathematics(
    *, task: str = "gsm8k:split=train", held_out: str = "gsm8k", max_calls: int = 4, markup: MarkupName = "hermes"
) -> Environment:
    """Return the environment.

    Args:
        task: the training problems, NAME or NAME:KEY=VALUE,...
        held_out: the problems it is measured on.
        max_calls: most programs of an episode.
        markup: how calls are written; hermes is that of Qwen 2.5 and 3.
    """
    parts = ("calls:weight=0", "failed_calls:weight=-0.05")
    return Environment(task, held_out, ("python",), markup, max_calls=max_calls, shaping=parts)
