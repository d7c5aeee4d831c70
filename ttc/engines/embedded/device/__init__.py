"""A decoding step that stays on the GPU: fused kernels, a sampler inside the captured graph, several tokens per look.

Reading order: `shape` (the model's dimensions and weights), `buffers` (the graph's buffers), `rows` (the host's record
of a row), `step` (the step and its graphs), `graphs` (capture), then the kernels, one file each: `embed`, `project`,
`activate`, `norm`, `survey` and `draw`; `tests/ttc/device_reference.py` has the same in plain torch.

A layer is eight graph nodes: the product of q, k and v; `project`; attention's two (passed in); the output product with
the residual; the product of gate and up; `activate`; the last product with the residual. Norm weights are folded into
the matrices that follow, and the factor of each row, 1 / rms, is applied after the product. Not in fp16, whose range a
residual without norm exceeds, and not in families with norms after their products (Gemma 3): there a layer is ten
nodes.

Needs Triton (Tillet et al. 2019). Left out: tensor parallelism, mixtures of experts, quantised weights.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ttc.errors import ConfigError, pip

if importlib.util.find_spec("triton") is None:
    raise ConfigError(f"the step on a GPU needs triton, which is not installed; run: {pip('install')} triton")

__all__ = ["compile_cases"]


def compile_cases() -> list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """The cases for an ahead-of-time compiler: (name, kernel, signature, constexprs, options) of each."""
    from ttc.engines.embedded.device.cases import KERNELS

    return KERNELS
