"""Which processes stand below this one."""

from __future__ import annotations

import os
from pathlib import Path


def descendants() -> set[int]:
    """The processes below this one, zombies left out."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}
