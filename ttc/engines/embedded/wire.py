"""Messages between an engine and its replicas in other processes.

Messages are pickled, over a pipe between two processes of one program that nothing else can write to; tensors are sent
as plain bytes, since torch's shared memory needs a common parent process. The parent sends (number, call) pairs and
None at the end; a replica sends lists of (number, report) pairs.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

from ttc.core import Path, Prompt, Sampling, Usage


@dataclass(frozen=True, slots=True)
class Generate:
    """`Engine.generate`; if `streamed`, the tokens of its only draw are sent as they are sampled."""

    prompt: Prompt
    sampling: Sampling
    draws: range
    streamed: bool


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """`LogprobEngine.logprobs`, or with `k` `TopLogprobEngine.top_logprobs`."""

    ids: tuple[int, ...]
    start: int
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """`WeightSync.load_weights`; tensors on the CPU."""

    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the call with this number."""


@dataclass(frozen=True, slots=True)
class Drop:
    """`SearchAware.prune`, or `release` without a path; it has no answer."""

    problem_id: str
    path: Path | None


Call: TypeAlias = Generate | ScoreCall | Load | Abort | Drop


@dataclass(frozen=True, slots=True)
class UsageReport:
    """One usage report of a call."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class NewTokens:
    """New tokens of a streaming call."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call: its result or its exception; `how` is "cancelled" after an abort."""

    how: Literal["done", "failed", "cancelled"]
    value: Any = None


Report: TypeAlias = UsageReport | NewTokens | CallEnd


def send(connection: Connection, message: object) -> None:
    """Write one message."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Read one message; raises EOFError when the other side has closed."""
    return pickle.loads(connection.recv_bytes())
