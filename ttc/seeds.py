"""Counter-based randomness: every random number is a pure function of what it is for.

The key is (run seed, problem id, path in the tree, absolute token position); the path ends in the number of the
draw. n, max_tokens and call order are not in the key, so raising them only adds draws, and any schedule gives
the same tree. Keys are derived with BLAKE2b; the per-token uniform is the SplitMix64 finaliser applied twice
(Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators"), which needs no state and vectorises.

Left out: cryptographic strength. There is no default seed: the start of a run states one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive(seed: int, *parts: int | str | Sequence[int]) -> int:
    """Hash `seed` and `parts` to a 64-bit key; equal inputs give equal keys on every machine.

    Parts are tagged by type and length, so ("ab", "c") and ("a", "bc") differ, and so do 1 and "1".
    """
    tagged = [b"i%d;" % seed]
    for part in parts:
        if isinstance(part, str):
            raw = part.encode("utf-8", "surrogatepass")
            tagged.append(b"s%d:" % len(raw) + raw)
        elif isinstance(part, int):
            tagged.append(b"i%d;" % part)
        else:
            tagged.append(b"t%d:" % len(part) + b"".join([b"%d," % item for item in part]))
    return int.from_bytes(hashlib.blake2b(b"".join(tagged), digest_size=8).digest(), "little")


def derive_draws(seed: int, path: Sequence[int], draws: range) -> tuple[int, ...]:
    """Return the keys of draws of the prompt at `path`: `derive(seed, (*path, draw))` for each."""
    head = b"i%d;t%d:" % (seed, len(path) + 1) + b"".join([b"%d," % item for item in path])
    digests = (hashlib.blake2b(head + b"%d," % draw, digest_size=8).digest() for draw in draws)
    return tuple(int.from_bytes(key, "little") for key in digests)


def uniform(key: int, position: int) -> float:
    """Return the uniform number in [0, 1) that belongs to token `position` of draw `key`."""
    value = (key + position * _GOLDEN) & _MASK
    for _ in (1, 2):
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return (value >> 11) * 2.0**-53


def uniforms(keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Vectorised `uniform`: keys (B,), positions (B,) -> (B,) in [0, 1), the scalar one bit for bit on all machines."""
    import numpy as np

    value = keys + positions * np.uint64(_GOLDEN)  # wraps modulo 2**64, as intended
    for _ in range(2):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value = value ^ (value >> np.uint64(31))
    return (value >> np.uint64(11)).astype(np.float64) * 2.0**-53
