"""Outcome reward models that are sequence classifiers (`*ForSequenceClassification`), read at the last token.

The common form of public reward models (Skywork-Reward, RLHFlow's and others): the conversation through the model's
own chat template, one linear output at its last token; with one output its sigmoid is the score (Bradley-Terry), with
two label 1 of a softmax. The tokenizer's beginning of sequence is the template's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, conversation


def render(
    chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str], *, system: str | None
) -> list[TextSegment]:
    """Write the whole conversation; its last token is read."""
    text = chat.apply([*conversation(messages, system), Message("assistant", steps[-1])])
    return [TextSegment(text, (len(text),))]


def sequence_rm() -> Adapter:
    """Describe the family."""
    families = ("llama", "mistral", "qwen2", "qwen3")
    return Adapter(
        name="sequence_rm",
        render=partial(render, system=None),
        architectures=tuple(
            f"{name}ForSequenceClassification" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "GPTNeoX")
        ),
        families=(*families, "gemma2", "gpt_neox"),
        outcome=True,
        vllm="/classify",
    )
