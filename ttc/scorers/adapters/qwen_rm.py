"""Qwen2.5-Math-RM-72B: an outcome reward model, read at the last token of the whole conversation.

Yang et al. 2024, "Qwen2.5-Math Technical Report" (arXiv 2409.12122). Format of the model card
(huggingface.co/Qwen/Qwen2.5-Math-RM-72B): the system message of the family, question and answer through the chat
template; a head of two layers with one output, here through a sigmoid, which changes no ranking.
"""

from __future__ import annotations

from functools import partial

from ttc.scorers.adapters._base import Adapter
from ttc.scorers.adapters.qwen_prm import SYSTEM
from ttc.scorers.adapters.sequence_rm import render


def qwen_rm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="qwen_rm",
        render=partial(render, system=SYSTEM),
        names=("qwen2.5-math-rm", "qwen2-math-rm"),
        architectures=("Qwen2ForRewardModel",),
        activation="sigmoid",
        positive_label=0,
        outcome=True,
    )
