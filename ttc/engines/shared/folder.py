"""From a model's name to a folder on disk: a path is taken as it is, a hub id is downloaded or found in the cache."""

from __future__ import annotations

from pathlib import Path

from ttc import nano
from ttc.errors import ConfigError
from ttc.identity.reads import ModelFolder

__all__ = ["generator_folder", "reads_generator", "resolve"]


def generator_folder(model: str | None) -> Path:
    """Return the folder of a generator; None is the packaged teacher. Raises like `resolve`."""
    return nano.path("teacher") if model is None else resolve(model)


def reads_generator(*, model: str | None, **_: object) -> list[ModelFolder]:
    """What an engine in this process reads (`ttc.identity.reads`): its whole model folder."""
    return [ModelFolder(generator_folder(model))]


def check_name(model: str) -> None:
    """Raise ConfigError where `model`, which is no folder here, cannot be a hub id."""
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ConfigError(f"model {model!r} is neither a folder nor a hub id such as Qwen/Qwen3-0.6B")


def resolve(model: str) -> Path:
    """Return the folder of `model`, a local path or a hub id such as `Qwen/Qwen3-0.6B`.

    Raises:
        ConfigError: neither a folder nor something the hub can give; says what was tried.
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
