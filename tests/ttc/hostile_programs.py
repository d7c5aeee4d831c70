"""Hostile programs: attempts to get out of a sandbox, to exhaust it, and to forge the verdict on themselves.

`ESCAPES` are scripts. Each attempt that succeeds prints a line that begins with ESCAPED; one that is held prints HELD.
`EXHAUSTIONS` are scripts that take all they can get; they must be ended by a limit or fail, and change nothing.
`FORGERIES` are answers to `TARGET`: none computes what it asks for, so none may be correct.
The programs stand in tests/ttc/data/hostile_programs/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "data" / "hostile_programs"

HELPERS = '''
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *args):
    """A raw system call by its number on x86_64; OSError when it fails."""
    if not getattr(sys.implementation, "_multiarch", "").startswith("x86_64"):
        raise OSError("another architecture")
    args = [a if isinstance(a, (bytes, ctypes._SimpleCData, ctypes.Array)) else ctypes.c_long(a) for a in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), "call")
    return result
def attempt(work):
    try:
        result = work()
    except BaseException as exc:
        print("HELD", type(exc).__name__, flush=True)
    else:
        print("ESCAPED", repr(result)[:80], flush=True)
'''
_FRAME = '''
import os, struct
def frame(kind, data):
    """What the process with the program sends to the host."""
    return struct.pack(">cI", kind, len(data)) + data
'''

TARGET: Mapping[str, object] = {
    "entry_point": "double",
    "tests": ["assert double(3) == 6", "assert double(-1) == -2", "for n in range(4):\n    assert double(n) == n + n"],
    "cases": [{"args": [10], "expected": 20}, {"args": ["ab"], "expected": "abab"}],
    "random": {
        "reference": "def double(x):\n    return x + x",
        "arguments": [{"type": "int", "min": -99, "max": 99}],
        "seed": 7,
        "count": 5,
    },
}
"""What the forgeries pretend to answer."""


def _read(name: str) -> dict[str, str]:
    """The programs of a file; each follows a line `#: name`."""
    _, *pieces = re.split(r"^#: (\w+)\n", (_FOLDER / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        title: source.strip("\n").replace("<NUL>", "\0")
        for title, source in zip(pieces[::2], pieces[1::2], strict=True)
    }


ESCAPES: Mapping[str, str] = {name: f"{HELPERS}\n{source}\n" for name, source in _read("escapes.txt").items()}
EXHAUSTIONS: Mapping[str, str] = _read("exhaustions.txt")
FORGERIES: Mapping[str, str] = {
    name: f"```python\n{_FRAME}\n{source}\n```" for name, source in _read("forgeries.txt").items()
}
