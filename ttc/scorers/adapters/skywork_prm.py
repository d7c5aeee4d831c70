"""Skywork-o1-Open-PRM (Qwen2.5 1.5B and 7B): a value head, read at the line break after every line.

He et al. 2024, "Skywork-o1 Open Series". Format of github.com/SkyworkAI/skywork-o1-prm-inference (io_utils.py and
prm_model.py in model_utils): beginning of sequence, question and a line break; then every line tokenised separately,
followed by the token of a line break, at which the sigmoid of the value head `v_head.summary` is the score. Empty
lines, which the reference code counts as steps, are left out. vLLM does not support the head: run it in process.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, question_of

TAG = "\n"


def _render(chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str]) -> list[TextSegment]:
    head = TextSegment(chat.bos + question_of(messages) + "\n", special=True)
    return [head, *(part for step in steps for part in (TextSegment(step), TextSegment(TAG, (len(TAG),))))]


def skywork_prm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="skywork_prm",
        render=_render,
        names=("skywork-o1-open-prm",),
        architectures=("Qwen2ForPrmModel",),
        activation="sigmoid",
        positive_label=0,
        step_delimiter="\n",
        tag=TAG,
        aggregation="mean",
        vllm=None,
    )
