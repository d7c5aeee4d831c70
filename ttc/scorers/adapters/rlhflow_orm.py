"""RLHFlow's Llama3.1-8B-ORM (Deepseek-Data, Mistral-Data): a chat in which the assistant judges the whole answer.

Format of github.com/RLHFlow/RLHF-Reward-Modeling, math-rm/orm_evaluate.py: question, a space and the answer are one
user turn, answered by `+`; the score is softmax(`+`, `-`) of the logits that predict that answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, question_of


def _render(chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str]) -> list[TextSegment]:
    text = chat.apply([Message("user", f"{question_of(messages)} {steps[-1]}")], generation=True)
    return [TextSegment(text, (len(text),))]


def rlhflow_orm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="rlhflow_orm", render=_render, names=("llama3.1-8b-orm",), families=("llama",), kind="token", outcome=True
    )
