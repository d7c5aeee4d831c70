"""One line of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "State"]

State = Literal["ok", "ready", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """`state` is ok (tried), ready (there, needs something of yours), missing or broken; `command` is what to do."""

    group: str
    name: str
    state: State
    detail: str
    command: str | None = None
