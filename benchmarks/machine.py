"""Where and when a figure was measured."""

from __future__ import annotations

import datetime
import os
import platform
import re
import resource
import subprocess
from pathlib import Path
from typing import Any


def machine() -> str:
    """The processor's name, if the system reports it, and the number of cores."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.exists() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def stamp() -> dict[str, Any]:
    """When, of which commit and at what cost in processor time so far, for a saved result."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "cpu_seconds": round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 1),
    }
