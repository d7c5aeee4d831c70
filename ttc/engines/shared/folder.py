"""Resolve a model's name to a folder on disk, and write weights to one.

A path is used as it is, a hub id is downloaded or found in the cache. An invalid folder is refused before torch is
imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttc.engines.shared.shape import read_config
from ttc.errors import ConfigError
from ttc.identity.digests import ModelFolder
from ttc.nano import path as packaged


def generator_folder(model: str | None) -> Path:
    """Return the folder of a generator; None is the packaged teacher. Raises like `resolve`."""
    return packaged("teacher") if model is None else resolve(model)


def reads_generator(*, model: str | None, **_: object) -> list[ModelFolder]:
    """What an in-process engine reads (`ttc.identity.digests`): its whole model folder."""
    return [ModelFolder(generator_folder(model))]


def check_name(model: str) -> None:
    """Raise ConfigError if `model`, which is not a folder here, is a broken link or not a valid hub id."""
    path = Path(model).expanduser()
    if path.is_symlink():
        raise ConfigError(f"model {model!r} is a link to {path.readlink()}, where no folder is; name the folder itself")
    if path.suffix == ".gguf" and path.is_file():
        raise ConfigError(
            f"model {model!r} is a file of llama.cpp's: serve it (`llama-server -m {model}`) and name the address: "
            "--base-url http://127.0.0.1:8080/v1"
        )
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ConfigError(f"model {model!r} is neither a folder nor a hub id such as Qwen/Qwen3-0.6B")


def resolve(model: str) -> Path:
    """Return the folder of `model`, a local path or a hub id such as `Qwen/Qwen3-0.6B`.

    Raises:
        ConfigError: neither a folder nor available from the hub; the message says what was tried.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    check_name(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as exc:
        raise ConfigError(f"model {model!r} is no folder here and could not be fetched from the hub: {exc}") from exc


def check_model(model: str | None) -> None:
    """Raise ConfigError for a model that is neither a model folder nor a hub id; makes no request to the hub."""
    if model is None:
        return
    folder = Path(model).expanduser()
    if folder.is_dir():
        read_config(folder)
    else:
        check_name(model)


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder as transformers chooses them: model.safetensors, else the files in the index.

    Without either, all safetensors files. Raises ConfigError for an invalid index.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    return _shards(index) if index.is_file() else sorted(folder.glob("*.safetensors"))


def _shards(index: Path) -> list[Path]:
    """The files listed in an index."""
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return sorted({index.parent / name for name in names.values()})
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{index} is no index of weights (weight_map: tensor to file): {exc}") from exc


def save_weights(state: Mapping[str, Any], path: Path) -> None:
    """Write tensors to one safetensors file: on the CPU, contiguous, without shared memory (tied heads are copied)."""
    from safetensors.torch import save_file

    places: set[int] = set()
    tensors: dict[str, Any] = {}
    for name, value in state.items():
        tensor = value.detach().to("cpu").contiguous()
        if tensor.untyped_storage().data_ptr() in places:
            tensor = tensor.clone()
        places.add(tensor.untyped_storage().data_ptr())
        tensors[name] = tensor
    save_file(tensors, path, metadata={"format": "pt"})
