"""RLHFlow's Llama3.1-8B-PRM (Deepseek-Data, Mistral-Data): a chat in which the assistant judges one step per turn.

Dong et al. 2024, "RLHF Workflow" (arXiv 2405.07863); Xiong et al. 2024, "An Implementation of Generative PRM". Format
of github.com/RLHFlow/RLHF-Reward-Modeling, math-rm/prm_evaluate.py: each step is a user turn, the first one after the
question, and each is answered by `+`; the score is softmax(`+`, `-`) of the logits that predict that answer, at the
start of the assistant's turn. The authors average the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.core import Message
from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, question_of

GOOD = "+"


def _render(chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str]) -> list[TextSegment]:
    turns: list[Message] = []
    text, marks = "", []
    for number, step in enumerate(steps):
        turns.append(Message("user", step if number else f"{question_of(messages)} {step}"))
        opened = chat.apply(turns, generation=True)
        if not opened.startswith(text):
            raise ConfigError("adapter rlhflow_prm: the chat template does not keep earlier turns as they were")
        text = opened
        marks.append(len(text))
        turns.append(Message("assistant", GOOD))
    return [TextSegment(text, tuple(marks))]


def rlhflow_prm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="rlhflow_prm",
        render=_render,
        names=("llama3.1-8b-prm",),
        families=("llama",),
        kind="token",
        aggregation="mean",
    )
