"""The machine on which a figure was measured."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    """The processor's name, if the system reports it, and the number of cores."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.exists() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"
