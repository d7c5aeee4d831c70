"""What a finished job leaves: its manifest, and the model card of its student.

The manifest holds digests of all inputs and outputs, and versions. It has no date, duration or path: two runs of one
job give the same manifest on the same machine, even if they were killed in between. `verify_manifest` compares the
files on the disk with it. The card, written into the model folder, says who taught the student, on what data, and with
what effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ttc
from distill.data.dataset import DATA, DECISIONS, LINEAGE, PROMPTS, TRAIN, write_json
from distill.generation.judging import verifier_label, verifier_of
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.measure.measured import HEAD, Measured, compared
from distill.plan.resolve import JobPlan
from evals.numbers.gates import GateCheck
from ttc.config.recipes import dump
from ttc.config.values import counted
from ttc.durable import replace_text
from ttc.errors import ConfigError, RecordError
from ttc.identity.digests import file_digest, model_digests

MANIFEST, RESULT = "manifest.json", "result.json"
SCHEMA = 2
"""Since 2, one digest per role of a model folder, of 64 hex digits."""
_FILES = (PROMPTS, DECISIONS, TRAIN, LINEAGE)
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "vllm", "sglang", "openai", "ray")


def write_manifest(plan: JobPlan, ledger: AnswerLedger, model: Path, training: str) -> dict[str, Any]:
    """Write and return the manifest of a finished job; `training` is the digest that names its training."""
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
    """What on the disk differs from the manifest; raises ConfigError (not finished) or RecordError (broken)."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} has no {MANIFEST}: the job is not finished")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        out = manifest["out"]
    except (ValueError, KeyError, TypeError) as exc:
        raise RecordError(f"{path}: not a manifest ({exc!r}); run the job again, which rewrites it") from exc
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
    """Write README.md into the model folder; `measured` has the start, the student, and the teachers by name."""
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
        + (f"\n- {counted(funnel['rows'], 'row')}; {'; '.join(rows)}" if funnel else "\n- drawn while training"),
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
