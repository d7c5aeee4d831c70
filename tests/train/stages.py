"""Stages made of flat fields, as a recipe makes them, where they run, and what they leave behind."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from train.base.stage import Setting
from train.registries import STAGES


def make_stage(kind: str, **fields: Any) -> Any:
    """The stage of that kind."""
    supply = {"health": fields.pop("health")} if "health" in fields else {}
    return STAGES.create(kind, fields, supply=supply)


def setting(folder: Path, model: Path | None, seed: int = 1, log: Callable[[str], None] = lambda text: None) -> Setting:
    """A place to run a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    return Setting(folder, model, seed, "cpu", 1, log)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a stage's metrics."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """The file, with these rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
