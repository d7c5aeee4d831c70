"""The manifest of a job: digests of all that went in and of all that came out, and versions.

No date, no duration and no path is in it: two runs of one job give the same manifest on the same machine, whatever
killed them in between. `verify` compares the files on the disk with it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import ttc
from distill.generation.judging import verifier_label, verifier_of
from distill.generation.ledger import Ledger
from distill.job.dataset import DATA, DECISIONS, LINEAGE, PROMPTS, TRAIN, write_json
from distill.plan.resolve import Plan
from ttc.config.recipes import dump
from ttc.errors import ConfigError, RecordError
from ttc.identity.digests import file_digest, model_digests

__all__ = ["LEDGER", "MANIFEST", "verify_manifest", "write_manifest"]

MANIFEST, LEDGER = "manifest.json", "ledger.sqlite"
SCHEMA = 2
"""Since 2, one digest per role of a model folder, of 64 hex digits."""
_FILES = (PROMPTS, DECISIONS, TRAIN, LINEAGE)
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "vllm", "sglang", "openai", "ray")


def write_manifest(plan: Plan, ledger: Ledger, model: Path, training: str) -> dict[str, Any]:
    """Write and return the manifest of a finished job; `training` is the digest its training is named by."""
    job, spec = plan.job, plan.spec
    data = job.folder / DATA
    found = {
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
    write_json(job.folder / MANIFEST, found)
    return found


def verify_manifest(folder: Path) -> list[str]:
    """What on the disk is not what the manifest says; empty when all is as it was.

    Raises:
        ConfigError: the job is not finished.
        RecordError: the manifest is broken.
    """
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
    with Ledger(folder / LEDGER) as ledger:
        if ledger.digest() != out["ledger"]:
            wrong.append(f"{LEDGER} has changed")
    return wrong


def _verifiers(plan: Plan) -> dict[str, str]:
    labels: dict[str, str] = {}
    for domain in plan.job.domains:
        choice = verifier_of(domain.task, plan.spec.verifier)
        verifier = choice.create_verifier()
        labels[domain.name] = verifier_label(choice, verifier)
        asyncio.run(verifier.close())
    return labels


def _versions() -> dict[str, str]:
    return {name: version for name in _PACKAGES if (version := _version(name))}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
