"""Programs that must pass, each with its target: what ordinary tests of code do; and liars against such tests.

`HONEST` are answers that must be correct on every tier; those of `NEEDS_NUMPY` where numpy is installed for the
interpreter of the sandbox. `LIARS` are answers, none of which computes what its target asks for, that use what a test
may do with objects, functions, nodes and arrays. They stand in tests/ttc/data/hostile_programs/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "data" / "hostile_programs"


def _read(name: str) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Targets and programs of a file; each follows a line `#: name` and its target in JSON."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    _, *pieces = re.split(r"^#: (\w+)\n(.*)\n", text, flags=re.MULTILINE)
    rows = zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    return {title: (json.loads(target), source.strip("\n")) for title, target, source in rows}


HONEST: Mapping[str, tuple[Mapping[str, Any], str]] = _read("honest.txt")
LIARS: Mapping[str, tuple[Mapping[str, Any], str]] = _read("liars.txt")
NEEDS_NUMPY = frozenset(name for name, (_, source) in HONEST.items() if "numpy" in source)
