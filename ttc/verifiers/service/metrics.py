"""How a verification service is doing: verdicts by status, how long they took, how many had none.

Latency runs from the request to its verdict, waiting included; work is what the verifier reports. Quantiles are those
of the latest `KEPT` verdicts (nearest rank). What was remembered counts by status, but not in the times.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttc.core import Verdict

__all__ = ["Metrics", "Quantiles", "VerdictCounter"]

KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds; all 0 without any verdict."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot. Rates are shares of all verdicts, those remembered included; 0 without any."""

    count: int
    by_status: Mapping[str, int]
    remembered: int
    timeout_rate: float
    error_rate: float
    latency_s: Quantiles
    work_s: Quantiles


class VerdictCounter:
    """Counts verdicts; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_status: Counter[str] = Counter()
        self._remembered = 0
        self._latency: deque[float] = deque(maxlen=KEPT)
        self._work: deque[float] = deque(maxlen=KEPT)

    def add(self, verdict: Verdict, latency_s: float, *, remembered: bool) -> None:
        """Count one verdict."""
        with self._lock:
            self._by_status[verdict.status] += 1
            self._remembered += remembered
            if not remembered:
                self._latency.append(latency_s)
                self._work.append(verdict.seconds)

    def snapshot(self) -> Metrics:
        """Return the figures as they are now."""
        with self._lock:
            by_status = dict(sorted(self._by_status.items()))
            remembered, latency, work = self._remembered, list(self._latency), list(self._work)
        count = sum(by_status.values())
        return Metrics(
            count,
            by_status,
            remembered,
            by_status.get("timeout", 0) / max(count, 1),
            by_status.get("error", 0) / max(count, 1),
            quantiles(latency),
            quantiles(work),
        )


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return the nearest-rank quantiles of `values`."""
    if not values:
        return Quantiles(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    return Quantiles(*(ordered[max(math.ceil(share * len(ordered)), 1) - 1] for share in (0.5, 0.9, 0.99, 1.0)))
