"""What decides a job, by content, as its lock holds it: models, user files and code, problems.

`models` are the student and the teachers: another one is another job. `files` are named by settings that may change
from run to run (a filter, a verifier, rows that are mixed in), so a name that is gone or new is no difference; another
content under the same name is. `problems` are those of every task, at the limit of then: a job that asks for more of
them is the same job while the first ones are the same. Cost: each model's files once, about a second per gigabyte, then
remembered; every task's problems once more.

Left out: what a teacher's server says of its model, and what a user's own code opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.generation.judging import verifier_of
from distill.spec.spec import JobSpec
from distill.spec.teacher import Teacher
from evals.runs.contents import problems_digest
from evals.task import Task
from train.recipe.contents import path_contents
from ttc.identity.contents import code_digests, part_contents, texts_in
from ttc.identity.digests import differing, model_digests, named

__all__ = ["Asked", "Contents", "job_contents"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A task, the most problems that are taken of it (None: all), and their digest."""

    task: Task
    limit: int | None
    digest: str

    def at(self, limit: int | None) -> str:
        """The digest of its problems at another limit."""
        return self.digest if limit == self.limit else problems_digest(self.task.items(limit, 0))


@dataclass(frozen=True, slots=True)
class Contents:
    """Digests by name; `tasks` are the tasks of the job by the names that their problems have."""

    models: Mapping[str, str]
    files: Mapping[str, str]
    tasks: Mapping[str, Asked]

    def to_json(self) -> dict[str, Any]:
        """As the lock holds them."""
        problems = {owner: {"limit": asked.limit, "digest": asked.digest} for owner, asked in self.tasks.items()}
        return {"models": dict(self.models), "files": dict(self.files), "problems": problems}

    def changed(self, there: Mapping[str, Any]) -> list[str]:
        """The names of what is not as it was when the lock `there` was written."""
        files = [name for name, digest in there["files"].items() if self.files.get(name, digest) != digest]
        before = there["problems"]
        problems = [
            f"problems of {owner}"
            for owner, asked in self.tasks.items()
            if owner in before and asked.at(before[owner]["limit"]) != before[owner]["digest"]
        ]
        return [*differing(there["models"], self.models), *files, *problems]


def job_contents(spec: JobSpec, folder: Path, teachers: Sequence[Teacher], tasks: Mapping[str, Asked]) -> Contents:
    """The contents of a job in `folder`, which are not what it made itself; `tasks` by what people call them.

    Raises:
        ConfigError: a file cannot be read.
    """
    models = named(model_digests(Path(spec.student).expanduser()), after=" of the student")
    for teacher in teachers:
        models |= teacher.contents
    files = code_digests("method", spec.method)
    for owner, value in _named_settings(spec):
        for text in texts_in(value):
            files |= path_contents(owner, text, folder)
    for owner, asked in tasks.items():
        files |= named(part_contents(verifier_of(asked.task, spec.verifier)), after=f" of {owner}")
    return Contents(models, files, tasks)


def _named_settings(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    """Every setting that may name a file, by its place in the spec; gates are measured anew each time."""
    for domain in spec.domains:
        yield f"task of domain {domain.name}", domain.task
        yield f"held_out of domain {domain.name}", domain.held_out
    yield "eval.retention", spec.eval.retention
    yield "verifier", spec.verifier
    for name, table in spec.filters.items():
        yield "filters", name
        yield f"filters.{name}", table
    for place in ("select", "train", "options"):
        for key, value in getattr(spec, place).items():
            yield f"{spec.method if place == 'options' else place}.{key}", value
    yield "mix.data", spec.mix.data
