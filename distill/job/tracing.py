"""Where a training row came from: teacher, draw, seed, verdict, filters passed; or why an answer is in no row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from distill.generation.ledger import Ledger
from distill.data.dataset import DATA, DECISIONS, FUNNEL, LINEAGE, TRAIN, read_lines
from distill.job.manifest import LEDGER
from distill.plan.lock import read_lock
from ttc.errors import ConfigError

__all__ = ["trace_row"]


def trace_row(folder: Path, what: str) -> Iterator[str]:
    """Tell the story of a row (its number from 0) or of an answer (its key), line by line.

    Raises:
        ConfigError: no such row or answer, or the job has not come so far.
    """
    lock = read_lock(folder)
    lineage = read_lines(folder / DATA / LINEAGE)
    if what.isdecimal() and int(what) < len(lineage):
        row = lineage[int(what)]
        text = read_lines(folder / DATA / TRAIN)[int(what)]
        yield f"row {what}: prompt {row['prompt']}, mode {text['mode']}, weight {text.get('weight', 1.0)}"
        yield from (f"  {key}: {value}" for key, value in row.items() if key not in ("row", "prompt", "parents"))
        yield f"  {text.get('thinking') or ''}{text['completion']}"
        parents = row["parents"]
    else:
        parents = [what]
    filters = _funnel(folder)
    dropped = {line["key"]: line for line in read_lines(folder / DATA / DECISIONS)}
    teachers = {digest: name for name, digest in lock["fixed"]["teachers"].items()}
    with Ledger(folder / LEDGER) as ledger:
        for key in parents:
            found = ledger.story(key)
            if not found and parents == [what]:
                raise ConfigError(f"{folder} has no row and no answer {what!r}; it has {len(lineage)} rows")
            if not found:
                yield f"  from {key}"
            for line in found:
                who = teachers.get(line.teacher, "student")
                yield f"answer {key}: teacher {who}, draw {line.sample}, seed {line.seed}"
                yield f"  cap {line.max_tokens}: {line.state}, {line.finish_reason or line.error}, {line.tokens} tokens"
                yield from (f"  {verifier}: {status}" for verifier, status in line.verdicts)
            if key in dropped:
                yield f"  dropped by {dropped[key]['stage']}: {dropped[key]['reason']}"
            elif found:
                rows = [str(row["row"]) for row in lineage if key in row["parents"]]
                yield f"  passed {', '.join(filters)}; in row {', '.join(rows) or 'none'}"


def _funnel(folder: Path) -> list[str]:
    data = json.loads((folder / DATA / FUNNEL).read_text(encoding="utf-8"))
    return [stage["name"] for stage in data["answers"]]
