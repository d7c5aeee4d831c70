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


def commit() -> str:
    """The short hash of this checkout's commit; empty outside one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def stamp() -> dict[str, Any]:
    """When, of which commit and at what cost in processor time so far, for a saved result."""
    used = round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 1)
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "cpu_seconds": used}


def occasion() -> dict[str, Any]:
    """When, of which commit and on what kind of machine, for a saved result."""
    system = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": system}
