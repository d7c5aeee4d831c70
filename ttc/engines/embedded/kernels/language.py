"""Triton, or the error that says how to install it; and whether kernels are interpreted (TRITON_INTERPRET=1)."""

from __future__ import annotations

from ttc.errors import ConfigError, pip

__all__ = ["INTERPRETED", "tl", "triton"]

try:
    import triton
    import triton.language as tl
except ImportError as exc:
    raise ConfigError(
        f"the kernels for GPUs need triton, which is not installed; run: {pip('install')} triton"
    ) from exc

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Fixed when this module is first imported, as Triton fixes it for each kernel when it is decorated."""
