"""Shapes of the family, and how its folders are written and read.

All are Qwen3 (grouped queries, q/k norms, tied embeddings, heads of 64), so that transformers, vLLM and the embedded
engine load them unchanged; weights are saved in bf16.
"""

import copy
from pathlib import Path
from typing import Any

import torch

from train.base.models import Shape, new_model
from train.nano import tokenizer as tokens
from train.nano.traces import HANDOVER
from ttc.core import Sampling
from ttc.durable import replaced_folder

VOCABULARY = 384
TEACHER = Shape(hidden=192, layers=4, heads=4, kv_heads=2, head_dim=64, mlp=512)
PRM = Shape(hidden=192, layers=6, heads=4, kv_heads=2, head_dim=64, mlp=512)
STUDENT = Shape(hidden=128, layers=2, heads=2, kv_heads=1, head_dim=64, mlp=256)


def build(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """Return a causal language model with random weights from `seed`, in fp32.

    Attention is written out: at these lengths it trains a third faster than the fused kernel on a CPU.
    """
    network = new_model(shape, tokenizer, seed, VOCABULARY)
    network.config.ttc = {"handover": HANDOVER}
    return network


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
                temperature=Sampling().temperature,
            ).save_pretrained(fresh)
        for file in fresh.iterdir():
            file.chmod(0o644)
