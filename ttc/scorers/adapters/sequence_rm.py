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
    "arcee": "Arcee", "axk1": "AXK1", "axk2": "AXK2", "biogpt": "BioGpt", "bloom": "Bloom", "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3", "diffllama": "DiffLlama", "doge": "Doge", "exaone4": "Exaone4", "falcon": "Falcon",
    "gemma": "Gemma", "gemma2": "Gemma2", "gemma3": "Gemma3", "gemma3_text": "Gemma3Text", "glm": "Glm", "glm4": "Glm4",
    "gpt2": "GPT2", "gpt_bigcode": "GPTBigCode", "gpt_neo": "GPTNeo", "gpt_neox": "GPTNeoX", "gpt_oss": "GptOss",
    "gptj": "GPTJ", "helium": "Helium", "hunyuan_v1_dense": "HunYuanDenseV1", "hunyuan_v1_moe": "HunYuanMoEV1",
    "jamba": "Jamba", "jetmoe": "JetMoe", "llama": "Llama", "minicpm3": "MiniCPM3", "minimax": "MiniMax",
    "ministral": "Ministral", "ministral3": "Ministral3", "mistral": "Mistral", "mixtral": "Mixtral", "mpt": "Mpt",
    "nemotron": "Nemotron", "olmo": "Olmo", "olmo2": "Olmo2", "olmo3": "Olmo3", "openai-gpt": "OpenAIGPT", "opt": "OPT",
    "persimmon": "Persimmon", "phi": "Phi", "phi3": "Phi3", "qwen2": "Qwen2", "qwen2_moe": "Qwen2Moe", "qwen3": "Qwen3",
    "qwen3_5": "Qwen3_5", "qwen3_5_text": "Qwen3_5Text", "qwen3_moe": "Qwen3Moe", "qwen3_next": "Qwen3Next",
    "seed_oss": "SeedOss", "smollm3": "SmolLM3", "stablelm": "StableLm", "starcoder2": "Starcoder2", "zamba": "Zamba",
    "zamba2": "Zamba2",
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
