"""How far a job is, read off its folder while it may still be running: nothing is computed and nothing loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distill.generation.ledger import Ledger
from distill.data.dataset import DATA, FUNNEL
from distill.job.manifest import LEDGER, MANIFEST
from distill.plan.lock import read_lock
from train.base.stage import read_result
from train.recipe.run import stage_folders
from ttc.records import iterate

__all__ = ["status_lines"]


def status_lines(folder: Path) -> list[str]:
    """What was asked and what is there; raises ConfigError when `folder` is no job."""
    lock = read_lock(folder)
    lines = [f"{lock['spec']['name']}: {lock['about']}"]
    if (folder / LEDGER).is_file():
        with Ledger(folder / LEDGER) as ledger:
            totals = ledger.totals()
        spent = sum(_tokens(usage) for usage in totals["usage"].values())
        lines.append(
            f"answers: {totals['done']:,} rows of {lock['units']:,} answers asked for, {totals['cut']:,} cut, "
            f"{totals['failed']:,} failed, {spent:,} tokens"
        )
    funnel = folder / DATA / FUNNEL
    if funnel.is_file():
        lines.append(f"data: {json.loads(funnel.read_text())['rows']:,} rows")
    for run in sorted((folder / "train").glob("*/run.json")):
        for stage in stage_folders(run.parent):
            done = "done" if read_result(stage) is not None else f"step {_step(stage)}"
            lines.append(f"training {run.parent.name}, {stage.name}: {done}")
    finished = (folder / MANIFEST).is_file()
    promoted = (folder / "promoted").is_symlink()
    lines.append("finished" + (", promoted" if promoted else ", not promoted") if finished else "not finished")
    return lines


def _step(stage: Path) -> int:
    path = stage / "metrics.jsonl"
    rows = [row for _, row in iterate(path)] if path.is_file() else []
    return int(rows[-1]["step"]) if rows else 0


def _tokens(usage: dict[str, Any]) -> int:
    return int(usage["generated"] + usage["judged"] + usage["scored"])
