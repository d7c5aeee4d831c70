"""Qwen2.5-Math-PRM-7B / 72B and Qwen2.5-Math-7B-PRM800K: a token classifier, read at a tag after every step.

Zhang et al. 2025, "The Lessons of Developing Process Reward Models in Mathematical Reasoning" (arXiv 2501.07301).
Format of the model card (huggingface.co/Qwen/Qwen2.5-Math-PRM-7B): the system message below, the question as the user,
and one answer whose steps each end with `<extra_0>`; the score is label 1 of a softmax over two labels at that token.
Steps are divided by blank lines. The paper ranks whole answers by the product of their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, conversation, marks_of

TAG = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def render(
    chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str], *, system: str | None, name: str
) -> list[TextSegment]:
    """Write one answer with a tag after every step, cut after the last tag."""
    answer = Message("assistant", "".join(step + TAG for step in steps))
    text = chat.apply([*conversation(messages, system), answer])
    marks = marks_of(text, TAG, len(steps), name)
    return [TextSegment(text[: marks[-1]], marks)]


def qwen_prm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="qwen_prm",
        render=partial(render, system=SYSTEM, name="qwen_prm"),
        names=("qwen2.5-math-prm", "qwen2.5-math-7b-prm800k"),
        architectures=("Qwen2ForProcessRewardModel",),
        tag=TAG,
        aggregation="prod",
    )
