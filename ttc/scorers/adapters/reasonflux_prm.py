"""ReasonFlux-PRM-7B: scores long trajectories; Qwen2.5-Math-PRM's head and tag, without its system message.

Zou et al. 2025, "ReasonFlux-PRM: Trajectory-Aware PRMs for Long Chain-of-Thought Reasoning in LLMs" (arXiv 2506.18896).
Format of the model card (huggingface.co/Gen-Verse/ReasonFlux-PRM-7B). Its architecture is Qwen2.5-Math-PRM's, so it is
recognised by name. Left out: ReasonFlux-PRM-1.5B, whose scalar head is in a checkpoint of the authors' own layout.
"""

from __future__ import annotations

from functools import partial

from ttc.scorers.adapters._base import Adapter
from ttc.scorers.adapters.qwen_prm import TAG, render


def reasonflux_prm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="reasonflux_prm",
        render=partial(render, system=None, name="reasonflux_prm"),
        names=("reasonflux-prm-7b",),
        tag=TAG,
        aggregation="mean",
    )
