"""The lock of a job: its resolved parts with digests, so that a folder only ever holds one job.

n, limit, max_tokens, filters, selection, mixing, training, measuring and gates may change from run to run: the ledger
pays only for the difference, and what follows is made again. Another method, student, seed, task or teacher is another
job, and so are other models, files or problems under the same names (`distill.plan.resolve.Contents`); max_tokens may
not be lowered once there are answers, since these may be longer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ttc
from distill.data.dataset import DATA, SAMPLES, write_json
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.plan.resolve import START, JobPlan
from ttc.config.recipes import dump
from ttc.durable import check_link, is_scratch
from ttc.errors import ConfigError, RecordError
from ttc.records import LineFile

LOCK, LOG = "lock.json", "log.jsonl"
_SETTINGS, _MODELS = ("method", "seed", "tasks"), ("student", "teachers")


def check_lock(plan: JobPlan) -> None:
    """Compare a plan with its folder's lock, if there is one; raises ConfigError that names what differs."""
    folder = plan.job.folder
    if (folder / LOCK).is_file():
        _check_ledger(folder)
        _compare(plan, read_lock(folder), _lock_of(plan))
    else:
        check_place(folder)


def check_place(folder: Path) -> None:
    """Refuse a folder with content that is not a job, before anything is written there; raises ConfigError."""
    if (folder / LOCK).is_file() or not folder.is_dir():
        return
    if (folder / LEDGER).is_file():
        raise ConfigError(f"{folder} holds answers and no {LOCK}: put it back, or {_over(folder)}")
    if not all(is_scratch(path) or path.name in (START, LOG) for path in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty and holds no job; give another --out")


def _check_ledger(folder: Path) -> None:
    """Refuse a ledger that lost its answers, as after a copy to a full disk: they would be paid for again."""
    path, samples = folder / LEDGER, folder / DATA / SAMPLES
    if path.is_file() and samples.is_file() and samples.stat().st_size and not _has_answers(folder):
        raise ConfigError(
            f"{path} holds no answer, but {folder / DATA} was made of its answers: put back a copy, or delete "
            "it to make all of them again"
        )


def _over(folder: Path) -> str:
    """The advice on how not to pay again for existing answers."""
    return f"give another --out and ledgers = ['{folder}'], which takes over the answers that are the same"


@contextmanager
def claim(plan: JobPlan) -> Iterator[LineFile]:
    """Hold a plan's folder against other processes, write its lock and open its log; raises like `check_lock`."""
    plan.job.folder.mkdir(parents=True, exist_ok=True)
    for name in ("model", "promoted"):
        check_link(plan.job.folder / name)
    with LineFile(plan.job.folder / LOG) as log:
        check_lock(plan)  # by now another process may have put another job there
        write_json(plan.job.folder / LOCK, _lock_of(plan))
        yield log


def _compare(plan: JobPlan, stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Refuse a folder of another job: compare settings first, then contents, since another file has other contents."""
    folder = plan.job.folder
    if "contents" not in stored:
        raise ConfigError(
            f"{folder} holds a job of an older version, whose {LOCK} keeps no digests of user files and problems, so "
            f"nobody can tell whether they are still the same; {_over(folder)}"
        )
    for name in _SETTINGS:
        there, here = stored["fixed"].get(name), json.loads(json.dumps(fresh["fixed"][name]))
        if there != here:
            raise ConfigError(
                f"{folder} holds another job: {name} is {there} there and {here} here; give another --out"
            )
    changed = plan.contents.changed(stored["contents"])
    if changed:
        raise ConfigError(
            f"{folder} holds a job that was made with other contents: {', '.join(changed)}; put back what it was made "
            "with, give a changed file another name in the spec where the setting may change, or give another --out"
        )
    for name in _MODELS:
        if stored["fixed"][name] != fresh["fixed"][name]:
            raise ConfigError(
                f"{folder} holds another job: its {name} ran with other settings, or in an older version; give another "
                "--out"
            )
    for name, cap in stored["max_tokens"].items():
        if fresh["max_tokens"].get(name, cap) < cap and _has_answers(folder):
            raise ConfigError(
                f"sampling.max_tokens cannot be lowered: {folder} has answers of domain {name} made with {cap}; "
                "give another --out"
            )


def _has_answers(folder: Path) -> bool:
    if not (folder / LEDGER).is_file():
        return False
    with AnswerLedger(folder / LEDGER) as ledger:
        return bool(ledger.totals()["done"])


def read_lock(folder: Path) -> dict[str, Any]:
    """The lock of a job folder; raises ConfigError when it is none."""
    path = folder / LOCK
    if not path.is_file():
        raise ConfigError(f"{folder} is not a distillation job: it has no {LOCK}")
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
        return {**lock, "fixed": dict(lock["fixed"]), "spec": dict(lock["spec"])}
    except (ValueError, KeyError, TypeError) as exc:
        raise RecordError(f"{path}: not the lock of a job ({exc!r}): put it back, or {_over(folder)}") from exc


def _lock_of(plan: JobPlan) -> dict[str, Any]:
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
        "contents": plan.contents.to_json(),
        "digests": dict(plan.digests),
        "units": plan.num_units,
        "about": plan.method.about(plan.job),
        "spec": dump(spec),
        "version": ttc.__version__,
    }
