"""The lock of a job: what was resolved, with digests, so that a folder is only ever one job.

n, limit, max_tokens, filters, selection, mixing, training, measuring and gates may change from run to run: the ledger
pays for the difference only, and what follows is made anew. Another method, student, seed, task or teacher is another
job; max_tokens may not fall, since answers that are longer are already there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ttc
from distill.dataset import write_json
from distill.resolve import Plan
from ttc.config import dump
from ttc.durable import is_scratch
from ttc.errors import ConfigError, RecordError

__all__ = ["LOCK", "claim", "read_lock"]

LOCK = "lock.json"


def claim(plan: Plan) -> None:
    """Write the lock of a plan, or compare it with what the folder was made for.

    Raises:
        ConfigError: the folder holds another job, or something else; names what differs.
    """
    folder, wanted = plan.job.folder, _lock_of(plan)
    if not (folder / LOCK).is_file():
        if folder.is_dir() and not all(map(is_scratch, folder.iterdir())):
            raise ConfigError(f"{folder} is not empty and holds no job; give another --out")
        folder.mkdir(parents=True, exist_ok=True)
    else:
        stored = read_lock(folder)
        for name, there in stored["fixed"].items():
            here = json.loads(json.dumps(wanted["fixed"].get(name)))
            if there != here:
                raise ConfigError(
                    f"{folder} holds another job: {name} is {there} there and {here} here; give another --out"
                )
        for name, cap in stored["max_tokens"].items():
            if wanted["max_tokens"].get(name, cap) < cap:
                raise ConfigError(
                    f"sampling.max_tokens may not fall: {folder} has answers of domain {name} made with {cap}; "
                    "give another --out"
                )
    write_json(folder / LOCK, wanted)


def read_lock(folder: Path) -> dict[str, Any]:
    """The lock of a job folder; raises ConfigError when it is none."""
    path = folder / LOCK
    if not path.is_file():
        raise ConfigError(f"{folder} is not a distillation job: it has no {LOCK}")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise RecordError(f"{path}: not JSON ({exc})") from exc
    return found


def _lock_of(plan: Plan) -> dict[str, Any]:
    spec = plan.spec
    fixed = {
        "method": spec.method,
        "seed": spec.seed,
        "student": plan.digests["student"],
        "teachers": plan.digests["teachers"],
        "tasks": {domain.name: domain.task for domain in spec.domains},
    }
    return {
        "fixed": fixed,
        "max_tokens": {domain.name: plan.job.sampling(domain).max_tokens for domain in plan.job.domains},
        "digests": dict(plan.digests),
        "units": plan.num_units,
        "about": plan.method.about(plan.job),
        "spec": dump(spec),
        "version": ttc.__version__,
    }
