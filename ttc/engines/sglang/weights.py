"""New weights as a model folder for a server to read: safetensors beside the configuration and tokenizer it had.

The tensors are written with their own types and in one file; the folder is removed when the server has read it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["handed_over"]

_KEPT = ("*.json", "*.jinja", "*.txt", "*.model")


@contextmanager
def handed_over(state: Mapping[str, Any], source: Path, where: Path | None) -> Iterator[Path]:
    """Give a model folder under `where` (None: the temporary folder) with `state` and the other files of `source`."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory(prefix="ttc-weights-", dir=where) as name:
        folder = Path(name)
        for pattern in _KEPT:
            for file in source.glob(pattern):
                if not file.name.endswith(".index.json"):  # it lists the files of the old weights
                    shutil.copy(file, folder / file.name)
        save_file(_apart(state), folder / "model.safetensors", metadata={"format": "pt"})
        folder.chmod(0o755)  # the server may run as another user
        yield folder


def _apart(state: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors on the CPU, contiguous, none sharing memory with another (tied heads), as safetensors wants them."""
    seen: set[int] = set()
    apart: dict[str, Any] = {}
    for name, value in state.items():
        tensor = value.detach().to("cpu").contiguous()
        if tensor.data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.data_ptr())
        apart[name] = tensor
    return apart
