"""Runs at the start of every Python process that has this folder on its path: lets SGLang sample by seeds on a CPU.

SGLang ties seeds to its deterministic mode, which it refuses with the plain torch attention backend and which swaps in
Triton kernels. Here that backend is allowed and no kernel is replaced: seeds key the sampling, as on a GPU, but
batching may still change a last bit.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


def _allow(module: Any) -> None:
    module.DETERMINISTIC_ATTENTION_BACKEND_CHOICES.append("torch_native")
    module.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND.append("torch_native")


def _keep_torch(module: Any) -> None:
    module.enable_batch_invariant_mode = lambda: None


AFTER: dict[str, Callable[[Any], None]] = {
    "sglang.srt.arg_groups.choices": _allow,
    "sglang.srt.batch_invariant_ops": _keep_torch,
}


class _Patcher(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            AFTER[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Patcher())
