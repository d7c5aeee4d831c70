"""Shapes of the family, and how its folders are written and read.

All are Qwen3 (grouped queries, q/k norms, tied embeddings, heads of 64), so that transformers, vLLM and
the embedded engine load them unchanged; weights are saved in bf16.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.nano import tokenizer as tokens
from train.nano.traces import HANDOVER
from ttc.durable import replaced_folder

VOCABULARY = 384


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Size of one model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int


TEACHER = NetworkShape(hidden=192, layers=4, heads=4, kv_heads=2, mlp=512)
PRM = NetworkShape(hidden=192, layers=6, heads=4, kv_heads=2, mlp=512)
STUDENT = NetworkShape(hidden=128, layers=2, heads=2, kv_heads=1, mlp=256)


def config(shape: NetworkShape, tokenizer: Any) -> Any:
    """Return the `Qwen3Config` of a shape."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=64,
        intermediate_size=shape.mlp,
        tie_word_embeddings=True,
        max_position_embeddings=tokens.CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


def build(shape: NetworkShape, tokenizer: Any, seed: int) -> Any:
    """Return a causal language model with random weights from `seed`, in fp32.

    Attention is written out: at these lengths it trains a third faster than the fused kernel on a CPU.
    """
    from transformers import AutoModelForCausalLM

    settings = config(shape, tokenizer)
    settings.ttc = {"handover": HANDOVER}
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(settings, attn_implementation="eager")


def save(model: Any, folder: Path) -> None:
    """Write a model in bf16 with the tokenizer, the chat template and the generation defaults."""
    from transformers import GenerationConfig

    with replaced_folder(folder) as fresh:
        tokenizer = tokens.save(fresh)
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(fresh)
        if model.can_generate():
            GenerationConfig(
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                do_sample=True,
                temperature=0.7,
            ).save_pretrained(fresh)
        for file in fresh.iterdir():
            file.chmod(0o644)


def parameters(model: Any) -> int:
    """Count the parameters, the tied embedding once."""
    return sum(parameter.numel() for parameter in model.parameters())
