"""Rollouts on disk: one JSON line each, readable at any moment, enough to repeat an update or judge again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from train.base.rollout import Rollout
from ttc.errors import ConfigError, RecordError
from ttc.records import LineFile, decode, encode, iterate

__all__ = ["RolloutFile", "read_rollouts"]


class RolloutFile:
    """Appends the rollouts of each step; a step is synced to disk as a whole."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)

    def append(self, rollouts: Iterable[Rollout]) -> None:
        """Write one step."""
        rows = list(rollouts)
        for number, rollout in enumerate(rows):
            self._file.write(encode(rollout), sync=number == len(rows) - 1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rollouts(path: Path, step: int | None = None) -> Iterator[Rollout]:
    """Yield the rollouts of `path`, of one step or all; a step written twice (a resumed run) counts as last written.

    Raises:
        ConfigError: no such file.
        RecordError: a broken line; names file, line and field.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; a run writes it when rollouts are recorded")
    found: dict[tuple[int, int, str, tuple[int, ...]], Rollout] = {}
    for number, data in iterate(path):
        if step is not None and isinstance(data, dict) and data.get("step") != step:
            continue
        try:
            rollout = decode(Rollout, data)
        except RecordError as exc:
            raise RecordError(f"{path}, line {number}: {exc}") from exc
        found[rollout.step, rollout.group, rollout.problem_id, rollout.path] = rollout
    yield from found.values()
