"""Several tasks as one: problems of every domain, each verified as in its own task.

A domain is written NAME=TASK; a single task needs no name. Problems of named domains get the id NAME/ID, by which
teachers are routed, and a target that carries the domain to the verifier. Sampling is the first task's, with the
largest of their caps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evals.task import Item, Task
from train.registries import make_task, make_verifier
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.errors import ConfigError

_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.+)", re.DOTALL)


def parse_named(field: str, texts: str | Sequence[str]) -> dict[str, str]:
    """`SPEC`, or several `NAME=SPEC`, by name; a single one may have none (""). Raises ConfigError for equal names."""
    entries = [texts] if isinstance(texts, str) else list(texts)
    specs: dict[str, str] = {}
    for entry in entries:
        match = _NAMED.fullmatch(entry)
        name, spec = match.groups() if match else ("", entry)
        if name in specs or (not name and len(entries) > 1):
            raise ConfigError(f"{field}: {entry!r} needs a name of its own, NAME={spec}")
        specs[name] = spec
    if not specs:
        raise ConfigError(f"{field} is empty")
    return specs


def named(field: str, texts: str | Sequence[str]) -> dict[str, Task]:
    """The tasks of `NAME=TASK` by name."""
    return {name: make_task(spec) for name, spec in parse_named(field, texts).items()}


def joined(tasks: Mapping[str, Task]) -> Task:
    """One task of all domains; a single task without a name is that task itself. Limits hold per domain."""
    if tuple(tasks) == ("",):
        return tasks[""]
    first = next(iter(tasks.values()))

    def load(limit: int | None, seed: int) -> Iterator[Item]:
        for name, task in tasks.items():
            for item in task.items(limit, seed):
                problem = replace(item.problem, id=f"{name}/{item.problem.id}")
                yield replace(item, problem=problem, target={"domain": name, "target": item.target})

    most = max(task.sampling.max_tokens for task in tasks.values())
    return replace(
        first,
        name="+".join(tasks),
        load=load,
        sampling=replace(first.sampling, max_tokens=most),
        params={name: {"task": task.name, **task.params} for name, task in tasks.items()},
        note=" ".join(task.note for task in tasks.values() if task.note),
        num_parts=len(tasks),
    )


class DomainVerifier:
    """Verifies every problem as in its own domain."""

    name = "by_domain"

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._verifiers: dict[str, Verifier] = {name: make_verifier(task) for name, task in tasks.items()}
        self.version = "+".join(f"{name}:{verifier.version}" for name, verifier in self._verifiers.items())

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """See `ttc.core.Verifier`."""
        verifier, own = self._own(target)
        return await verifier.verify(own, submission)

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """See `ttc.core.Verifier`."""
        verifier, own = self._own(target)
        verifier.check_gold(own, item)

    async def close(self) -> None:
        """See `ttc.core.Verifier`."""
        for verifier in self._verifiers.values():
            await verifier.close()

    def _own(self, target: TargetLike) -> tuple[Verifier, TargetLike]:
        if tuple(self._verifiers) == ("",):
            return self._verifiers[""], target
        return self._verifiers[target["domain"]], target["target"]
