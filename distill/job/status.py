"""How far a job is, and where a training row came from: read from its folder, without loading a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distill.data.dataset import DATA, DECISIONS, FUNNEL, LINEAGE, TRAIN, read_json, read_lines, read_rows
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.job.manifest import RESULT
from distill.plan.lock import LOCK, read_lock
from train.base.stage import read_result
from train.recipe.run import stage_folders
from ttc.config.values import counted
from ttc.core import Usage
from ttc.errors import ConfigError
from ttc.identity.digests import file_digest
from ttc.records import iterate


def status_lines(folder: Path) -> list[str]:
    """What was asked and what is done; raises ConfigError when `folder` is no job."""
    lock = read_lock(folder)
    lines = [f"{lock['spec']['name']}: {lock['about']}"]
    if (folder / LEDGER).is_file():
        with AnswerLedger(folder / LEDGER) as ledger:
            totals = ledger.totals()
        num_tokens = sum(Usage(**usage).tokens for usage in totals["usage"].values())
        lines.append(
            f"answers: {counted(totals['done'], 'row')} of {counted(lock['units'], 'answer')} asked for, "
            f"{totals['cut']:,} cut, {totals['failed']:,} failed, {counted(num_tokens, 'token')}"
        )
    funnel = folder / DATA / FUNNEL
    if funnel.is_file():
        lines.append(f"data: {counted(read_json(funnel, 'rows')['rows'], 'row')}")
    for run in sorted((folder / "train").glob("*/run.json")):
        for stage in stage_folders(run.parent):
            progress = "done" if read_result(stage) is not None else f"step {_step(stage)}"
            lines.append(f"training {run.parent.name}, {stage.name}: {progress}")
    return [*lines, _end(folder)]


def _end(folder: Path) -> str:
    """Whether the job of the lock is finished and promoted; results of an earlier run do not count."""
    path, pointer = folder / RESULT, folder / "promoted"
    if not path.is_file():
        return "not finished"
    result = read_json(path, "checks")
    lock = file_digest(folder / LOCK)
    if result.get("lock", lock) != lock:  # older results lack it
        return f"not finished; model, {path.name} and report are of an earlier run of this job"
    if not pointer.is_symlink():
        return "finished, not promoted"
    if result["checks"] and all(check["passed"] for check in result["checks"]):
        return "finished, promoted"
    return f"finished, not promoted; {pointer.name} is still the student of an earlier run, {pointer.readlink()}"


def _step(stage: Path) -> int:
    path = stage / "metrics.jsonl"
    rows = [row for _, row in iterate(path)] if path.is_file() else []
    return int(rows[-1]["step"]) if rows else 0


def trace_row(folder: Path, what: str) -> Iterator[str]:
    """The story of a row (its number from 0) or of an answer (its key); raises ConfigError where there is none yet."""
    lock = read_lock(folder)
    if not (folder / DATA / FUNNEL).is_file():
        raise ConfigError(f"{folder / DATA} holds no rows yet; run the job first")
    counts = read_json(folder / DATA / FUNNEL, "answers", "rows")
    lineage = read_rows(folder / DATA / LINEAGE, counts["rows"])
    if what.isdecimal() and int(what) < len(lineage):
        row = lineage[int(what)]
        text = read_rows(folder / DATA / TRAIN, counts["rows"])[int(what)]
        yield f"row {what}: prompt {row['prompt']}, mode {text['mode']}, weight {text.get('weight', 1.0)}"
        yield from (f"  {key}: {value}" for key, value in row.items() if key not in ("row", "prompt", "parents"))
        yield f"  {text.get('thinking') or ''}{text['completion']}"
        parents = row["parents"]
    else:
        parents = [what]
    filters = [stage["name"] for stage in counts["answers"]]
    dropped = {line["key"]: line for line in read_lines(folder / DATA / DECISIONS)}
    teachers = {digest: name for name, digest in lock["fixed"]["teachers"].items()}
    with AnswerLedger(folder / LEDGER) as ledger:
        for key in parents:
            story = ledger.story(key)
            if not story and parents == [what]:
                raise ConfigError(f"{folder} has no row and no answer {what!r}; it has {counted(len(lineage), 'row')}")
            if not story:
                yield f"  from {key}"
            for line in story:
                who = teachers.get(line.teacher, "student")
                yield f"answer {key}: teacher {who}, draw {line.sample}, seed {line.seed}"
                length = counted(line.tokens, "token")
                yield f"  cap {line.max_tokens}: {line.state}, {line.finish_reason or line.error}, {length}"
                yield from (f"  {verifier}: {status}" for verifier, status in line.verdicts)
            if key in dropped:
                yield f"  dropped by {dropped[key]['stage']}: {dropped[key]['reason']}"
            elif story:
                rows = [str(row["row"]) for row in lineage if key in row["parents"]]
                yield f"  passed {', '.join(filters)}; in row {', '.join(rows) or 'none'}"
