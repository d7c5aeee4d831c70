"""Import Triton, or raise the error with the install command; `INTERPRETED` reflects TRITON_INTERPRET=1."""

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
"""Constant from the first import on, as Triton decides it for each kernel when it is decorated."""
