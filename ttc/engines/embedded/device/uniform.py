"""The uniform number of (draw key, absolute token position), identical to `ttc.seeds.uniforms` bit for bit."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(value):
    """The SplitMix64 finaliser on uint64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> 30)) * tl.full((1,), 0xBF58476D1CE4E5B9, tl.uint64)
    value = (value ^ (value >> 27)) * tl.full((1,), 0x94D049BB133111EB, tl.uint64)
    return value ^ (value >> 31)


@triton.jit
def uniform_of(words, position):
    """words: pointer to the key's two int32 words, the low one first -> fp64 (1) in [0, 1)."""
    one = tl.arange(0, 1)
    low = tl.load(words + one).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(words + 1 + one).to(tl.uint32, bitcast=True).to(tl.uint64)
    key = low | (high << 32)
    step = (position + one).to(tl.uint64) * tl.full((1,), 0x9E3779B97F4A7C15, tl.uint64)
    value = _mix(_mix(key + step))
    return (value >> 11).to(tl.float64) * 1.1102230246251565e-16
