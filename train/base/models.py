"""Model folders: made from nothing, loaded for training, written so that every engine can read them.

A folder is a Hugging Face folder (config, safetensors, tokenizer with its chat template, generation config). Training
keeps fp32 weights; a folder may be written in another type. Nothing from a folder is ever executed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.lora import merged_state
from train.base.sharding import inner
from ttc.durable import replaced_folder
from ttc.errors import ConfigError

__all__ = ["Shape", "load_model", "load_tokenizer", "new_model", "num_parameters", "save_model"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a new Qwen3 model; `head_dim` 64 is the smallest that vLLM runs on a CPU."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    mlp: int = 192

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "mlp"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ConfigError(f"model.heads ({self.heads}) must be a multiple of model.kv_heads ({self.kv_heads})")


def new_model(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """Return a causal language model with random fp32 weights from `seed`; embeddings are tied."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        tie_word_embeddings=True,
        max_position_embeddings=tokenizer.model_max_length,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def load_model(folder: Path, device: str, *, checkpointing: bool = False) -> Any:
    """Load a folder for training, in fp32; raises ConfigError naming the folder when it cannot be read."""
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager" if device == "cpu" else "sdpa"
    )
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.to(device)


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def save_model(
    model: Any, tokenizer: Any, folder: Path, dtype: torch.dtype = torch.float32, *, writes: bool = True
) -> None:
    """Write weights (adapters merged), configuration, tokenizer and the stop tokens that end a turn of its template.

    All processes of a model with split weights must call; without `writes` this one only helps to gather them.
    """
    from transformers import GenerationConfig

    state, model = merged_state(model), inner(model)
    if not writes:
        return
    copied = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    stop = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    with replaced_folder(folder) as fresh:
        copied.save_pretrained(fresh, state_dict={name: tensor.to(dtype) for name, tensor in state.items()})
        tokenizer.save_pretrained(fresh)
        stop.save_pretrained(fresh)


def num_parameters(model: Any) -> int:
    """Count the parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
