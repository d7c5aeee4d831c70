"""Bounds on wall time that hold on a busy machine too."""

from __future__ import annotations

import os


def patience() -> float:
    """By how much wall time may exceed what an idle machine takes: processes that want a core, per core; at least 1."""
    return max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
