"""Random models as Hugging Face folders: 2 layers, a byte-level tokenizer, think markers, a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
VOCAB = 256 + len(SPECIAL)
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
_DELTA: dict[str, Any] = {
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16, **_DELTA},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2, **_MAMBA},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "mamba": {},
}
"""Families with a state: gated DeltaNet, convolutions, Mamba 2; Mamba 1, whose states take one token at a time."""


def build(folder: Path, family: str = "qwen3", **changes: Any) -> Path:
    """Write a model folder; `changes` go to the configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM

    return _write(folder, AutoModelForCausalLM, AutoConfig.for_model(family, **{**SMALL, **changes}))


def build_seeing(folder: Path, family: str, text_family: str, vision: dict[str, Any]) -> Path:
    """Write the folder of a model that also reads images; `vision` configures what reads them."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = AutoConfig.for_model(text_family, **SMALL)
    config = AutoConfig.for_model(family, text_config=text.to_dict(), vision_config=vision)
    return _write(folder, AutoModelForImageTextToText, config)


def _write(folder: Path, kind: Any, config: Any) -> Path:
    import torch

    torch.manual_seed(7)
    model = kind.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id = 258
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    """Byte-level tokenizer: one id per byte, then the special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=text.startswith("<|"), normalized=False) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
