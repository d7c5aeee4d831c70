"""What a job leaves: its manifest, the model card of its student, and what is read off its folder, done or not.

The manifest holds digests of all that went in and of all that came out, and versions. No date, no duration and no path
is in it: two runs of one job give the same manifest on the same machine, whatever killed them in between.
`verify_manifest` compares the files on the disk with it. The card, written into the model folder, says who taught the
student, on what, and what that brought. How far a job is, and where a training row came from, is read off its folder:
nothing is computed and nothing loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ttc
from distill.data.dataset import DATA, DECISIONS, FUNNEL, LINEAGE, PROMPTS, TRAIN, read_lines, write_json
from distill.generation.generate import verifier_label, verifier_of
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.measure.evaluate import HEAD, Measured, compared
from distill.plan.resolve import JobPlan, read_lock
from evals.numbers.gates import GateCheck
from train.base.stage import read_result
from train.recipe.run import stage_folders
from ttc.config.recipes import dump
from ttc.core import Usage
from ttc.durable import replace_text
from ttc.errors import ConfigError, RecordError
from ttc.identity.digests import file_digest, model_digests
from ttc.records import iterate

MANIFEST = "manifest.json"
SCHEMA = 2
"""Since 2, one digest per role of a model folder, of 64 hex digits."""
_FILES = (PROMPTS, DECISIONS, TRAIN, LINEAGE)
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "vllm", "sglang", "openai", "ray")


def write_manifest(plan: JobPlan, ledger: AnswerLedger, model: Path, training: str) -> dict[str, Any]:
    """Write and return the manifest of a finished job; `training` is the digest its training is named by."""
    job, spec = plan.job, plan.spec
    data = job.folder / DATA
    manifest = {
        "schema": SCHEMA,
        "name": spec.name,
        "method": spec.method,
        "about": plan.method.about(job),
        "seed": spec.seed,
        "in": dict(plan.digests),
        "teachers": {
            teacher.name: {
                "digest": teacher.digest,
                "model": dict(teacher.digests),
                "engine": teacher.engine.name,
                "strategy": teacher.strategy.label,
                "scorer": teacher.scorer.label if teacher.scorer else None,
            }
            for teacher in job.teachers
        },
        "verifiers": _verifiers(plan),
        "sampling": {domain.name: dump(job.sampling(domain)) for domain in job.domains},
        "thinking": dump(spec.thinking),
        "filters": list(plan.filters),
        "select": {"rule": plan.selection.rule, "per_prompt": plan.selection.per_prompt},
        "out": {
            "ledger": ledger.digest(),
            **{name: file_digest(data / name) for name in _FILES if (data / name).is_file()},
            "training": training,
            "model": model_digests(model),
        },
        "versions": {"ttckit": ttc.__version__, "python": platform.python_version(), **_versions()},
        "hardware": {"machine": platform.machine(), "system": platform.system(), "device": spec.device},
    }
    write_json(job.folder / MANIFEST, manifest)
    return manifest


def verify_manifest(folder: Path) -> list[str]:
    """What on the disk is not as the manifest says; raises ConfigError (not finished) or RecordError (broken)."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} has no {MANIFEST}: the job is not finished")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        out = manifest["out"]
    except (ValueError, KeyError, TypeError) as exc:
        raise RecordError(f"{path}: not a manifest ({exc!r})") from exc
    if manifest.get("schema") != SCHEMA:
        raise RecordError(
            f"{path} is of an older version, which digested models in another way: nothing can be compared with it"
        )
    wrong = [
        f"{DATA}/{name} has changed"
        for name in _FILES
        if name in out and (not (folder / DATA / name).is_file() or file_digest(folder / DATA / name) != out[name])
    ]
    if model_digests(folder / "model") != out["model"]:
        wrong.append("model has changed")
    with AnswerLedger(folder / LEDGER) as ledger:
        if ledger.digest() != out["ledger"]:
            wrong.append(f"{LEDGER} has changed")
    return wrong


def _verifiers(plan: JobPlan) -> dict[str, str]:
    labels: dict[str, str] = {}
    for domain in plan.job.domains:
        choice = verifier_of(domain.task, plan.spec.verifier)
        verifier = choice.create_verifier()
        labels[domain.name] = verifier_label(choice, verifier)
        asyncio.run(verifier.close())
    return labels


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def write_card(
    plan: JobPlan,
    model: Path,
    manifest: Mapping[str, Any],
    funnel: Mapping[str, Any],
    models: Mapping[str, Measured],
    checks: Sequence[GateCheck],
) -> Path:
    """Write README.md into the model folder; `measured` by who: start, student, and teachers by name."""
    spec = plan.spec
    lines = compared(models, spec.seed)
    taught = [
        f"- {teacher.name}: engine {teacher.engine.name}, strategy {teacher.strategy.label}, digest {teacher.digest}"
        for teacher in plan.job.teachers
    ]
    rows = [f"{stage['name']}: {stage['kept']} of {stage['came']}" for stage in funnel.get("answers", ())]
    parts = [
        "---\npipeline_tag: text-generation\ntags: [distillation]\n---",
        f"# {spec.name}",
        f"Made by `ttc distill run`, method `{spec.method}`: {manifest['about']}.",
        "## Teachers\n\n" + ("\n".join(taught) or "- the student itself"),
        "## Data\n\n"
        + "\n".join(f"- {domain.name}: {domain.task}" for domain in spec.domains)
        + (f"\n- {funnel['rows']} rows; {'; '.join(rows)}" if funnel else "\n- drawn while training"),
        "## Before and after\n\n" + _table(lines),
        "## Gates\n\n"
        + ("\n".join(f"- {'pass' if c.passed else 'FAIL'}: {c.text}" for c in checks) or "None declared."),
        "## Digests\n\n" + "\n".join(f"- {name}: {value}" for name, value in _flat(manifest["out"])),
        "Limits: measured on the tasks above only. Who publishes this model answers for the licences of its teachers' "
        "output and of the data.",
    ]
    path = model / "README.md"
    replace_text(path, "\n\n".join(parts) + "\n")
    return path


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


def _flat(out: Mapping[str, Any]) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in out.items():
        if isinstance(value, Mapping):
            flat += [(f"{name}, {part}", str(digest)) for part, digest in value.items()]
        else:
            flat.append((name, str(value)))
    return flat


def status_lines(folder: Path) -> list[str]:
    """What was asked and what is there; raises ConfigError when `folder` is no job."""
    lock = read_lock(folder)
    lines = [f"{lock['spec']['name']}: {lock['about']}"]
    if (folder / LEDGER).is_file():
        with AnswerLedger(folder / LEDGER) as ledger:
            totals = ledger.totals()
        num_tokens = sum(Usage(**usage).tokens for usage in totals["usage"].values())
        lines.append(
            f"answers: {totals['done']:,} rows of {lock['units']:,} answers asked for, {totals['cut']:,} cut, "
            f"{totals['failed']:,} failed, {num_tokens:,} tokens"
        )
    funnel = folder / DATA / FUNNEL
    if funnel.is_file():
        lines.append(f"data: {json.loads(funnel.read_text())['rows']:,} rows")
    for run in sorted((folder / "train").glob("*/run.json")):
        for stage in stage_folders(run.parent):
            progress = "done" if read_result(stage) is not None else f"step {_step(stage)}"
            lines.append(f"training {run.parent.name}, {stage.name}: {progress}")
    finished = (folder / MANIFEST).is_file()
    promoted = (folder / "promoted").is_symlink()
    lines.append("finished" + (", promoted" if promoted else ", not promoted") if finished else "not finished")
    return lines


def _step(stage: Path) -> int:
    path = stage / "metrics.jsonl"
    rows = [row for _, row in iterate(path)] if path.is_file() else []
    return int(rows[-1]["step"]) if rows else 0


def trace_row(folder: Path, what: str) -> Iterator[str]:
    """The story of a row (its number from 0) or of an answer (its key); raises ConfigError where there is none yet."""
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
    counts = json.loads((folder / DATA / FUNNEL).read_text(encoding="utf-8"))
    filters = [stage["name"] for stage in counts["answers"]]
    dropped = {line["key"]: line for line in read_lines(folder / DATA / DECISIONS)}
    teachers = {digest: name for name, digest in lock["fixed"]["teachers"].items()}
    with AnswerLedger(folder / LEDGER) as ledger:
        for key in parents:
            story = ledger.story(key)
            if not story and parents == [what]:
                raise ConfigError(f"{folder} has no row and no answer {what!r}; it has {len(lineage)} rows")
            if not story:
                yield f"  from {key}"
            for line in story:
                who = teachers.get(line.teacher, "student")
                yield f"answer {key}: teacher {who}, draw {line.sample}, seed {line.seed}"
                yield f"  cap {line.max_tokens}: {line.state}, {line.finish_reason or line.error}, {line.tokens} tokens"
                yield from (f"  {verifier}: {status}" for verifier, status in line.verdicts)
            if key in dropped:
                yield f"  dropped by {dropped[key]['stage']}: {dropped[key]['reason']}"
            elif story:
                rows = [str(row["row"]) for row in lineage if key in row["parents"]]
                yield f"  passed {', '.join(filters)}; in row {', '.join(rows) or 'none'}"
