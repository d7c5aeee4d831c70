"""Outcome reward models that are sequence classifiers (`*ForSequenceClassification`), read at the last token.

The common form of public reward models (Skywork-Reward, RLHFlow's and others): the conversation through the model's own
chat template, one linear output at its last token; with one output its sigmoid is the score (Bradley-Terry), with two
it is label 1 of a softmax. The beginning-of-sequence token is left to the template.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, conversation

_FAMILIES = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
    "mixtral": "Mixtral", "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3Text", "phi3": "Phi3",
    "olmo2": "Olmo2", "smollm3": "SmolLM3", "stablelm": "StableLm", "starcoder2": "Starcoder2", "gpt_neox": "GPTNeoX",
    "gpt2": "GPT2", "falcon": "Falcon", "bloom": "Bloom", "opt": "OPT",
}  # fmt: skip
"""The model type in config.json, and the prefix of transformers' class names."""


def render(
    chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str], *, system: str | None
) -> list[TextSegment]:
    """Write the whole conversation; its last token is read."""
    text = chat.apply([*conversation(messages, system), Message("assistant", steps[-1])])
    return [TextSegment(text, (len(text),))]


def sequence_rm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="sequence_rm",
        render=partial(render, system=None),
        architectures=tuple(f"{name}ForSequenceClassification" for name in _FAMILIES.values()),
        families=tuple(_FAMILIES),
        outcome=True,
        vllm="/classify",
    )
