"""Merge adapters, on any machine, into the weights that they were trained from.

    merge_adapter(base, run / "model" / "adapter", out)        `train.base.weights.save_adapter` wrote it

An adapter holds the digest of its base weights; a merge into others is refused. Hu et al. 2021 (arXiv:2106.09685): a
merged layer is W + (alpha / rank) B A. It is computed in fp64 from the stored numbers, where products of bf16 are
exact, and rounded once to the type of the base: so the merged weights are the same bits on every machine, and a chain
of adapters can be continued anywhere. Cost: the weights are read, hashed and written once. Left out: several adapters
in one model at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train.base.models import load_model, loaded, stored_type
from train.base.weights import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_ORIGIN,
    ADAPTER_WEIGHTS,
    DOWN,
    PREFIX,
    UP,
    weights_digest,
)
from ttc.durable import replaced_folder
from ttc.errors import ConfigError

_HEADS = {"TOKEN_CLS": ("AutoModelForTokenClassification", 2), "SEQ_CLS": ("AutoModelForSequenceClassification", 1)}
"""Classes of transformers for models with a head of their own, and the labels of that."""


def merge_adapter(base: Path, adapter: Path, out: Path) -> str:
    """Write to `out` the model of `base` with `adapter` merged; returns the digest of its weights.

    Everything but the weights is the base's: tokenizer, template, markers, stop tokens.

    Raises:
        ConfigError: `adapter` holds no adapter, or one of another model; or `out` exists.
    """
    config, origin, tensors = _read(adapter)
    if out.exists():
        raise ConfigError(f"--out {out} exists; choose another folder")
    task = str(config["task_type"])
    model = load_model(base, "cpu") if task == "CAUSAL_LM" else _classifier(base, task)
    weights = dict(model.named_parameters())
    added = {name.removeprefix(PREFIX) for name in tensors if not name.endswith((DOWN, UP))}
    actual = weights_digest((name, tensor) for name, tensor in weights.items() if name not in added)
    if origin["base"] != actual:
        raise ConfigError(
            f"{adapter} belongs to weights {origin['base'][:16]}, and {base} holds {actual[:16]}: give the "
            "model that it was trained from"
        )
    scale = float(config["lora_alpha"]) / int(config["r"])
    dtype = stored_type(base)
    with torch.no_grad():
        for name, tensor in weights.items():
            layer = f"{PREFIX}{name.removesuffix('.weight')}"
            if name in added:
                tensor.copy_(tensors[PREFIX + name])
            elif layer + DOWN in tensors:
                low = tensors[layer + UP].double() @ tensors[layer + DOWN].double()
                tensor.copy_((tensor.double() + scale * low).to(dtype))
    if "ttc_prm" in origin:
        model.config.ttc_prm = origin["ttc_prm"]
    _write(model.to(dtype), base, out)
    return weights_digest(model.named_parameters())


_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")
"""Files that hold the weights of the base, or say in which file each of them lies: the merged ones lie elsewhere."""


def _write(model: Any, base: Path, out: Path) -> None:
    with replaced_folder(out) as fresh:
        model.save_pretrained(fresh)
        made = {path.name for path in fresh.iterdir()}
        for path in base.iterdir():
            if path.is_file() and path.name not in made and not any(map(path.match, _WEIGHTS)):
                shutil.copyfile(path.resolve(), fresh / path.name)


def _classifier(base: Path, task: str) -> Any:
    if task not in _HEADS:
        raise ConfigError(f"an adapter of task {task!r} is not one of {', '.join(('CAUSAL_LM', *_HEADS))}")
    kind, labels = _HEADS[task]
    return loaded(kind, base, new_head=True, num_labels=labels, dtype=torch.float32)


def _read(adapter: Path) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, torch.Tensor]]:
    from safetensors.torch import load_file

    folder = adapter / ADAPTER if (adapter / ADAPTER).is_dir() else adapter
    missing = [name for name in (ADAPTER_CONFIG, ADAPTER_ORIGIN, ADAPTER_WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{adapter} holds no adapter of `ttc train`: {', '.join(missing)} missing")
    config, origin = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in (ADAPTER_CONFIG, ADAPTER_ORIGIN)
    )
    return config, origin, load_file(str(folder / ADAPTER_WEIGHTS))
