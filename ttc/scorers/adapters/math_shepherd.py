"""Math-Shepherd (Mistral 7B): a language model that answers `+` or `-` at a tag after every step.

Wang et al. 2024, "Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations" (arXiv 2312.08935).
Format of the model card (huggingface.co/peiyi9979/math-shepherd-mistral-7b-prm): question, a space, and steps that each
end with ` ки`, one per line; the score is softmax(`+`, `-`) of the logits at that token. The paper takes the minimum.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, question_of

TAG = "ки"


def _render(chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str]) -> list[TextSegment]:
    text, marks = question_of(messages) + " ", []
    for number, step in enumerate(steps):
        text += ("\n" if number else "") + f"{step} {TAG}"
        marks.append(len(text))
    return [TextSegment(text, tuple(marks), special=True)]


def math_shepherd() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="math_shepherd",
        render=_render,
        names=("math-shepherd",),
        families=("mistral", "llama"),
        kind="token",
        tag=TAG,
        aggregation="min",
    )
