"""Procedural problems of reasoning-gym behind a safe adapter: endless fresh problems, answers never run as code.

Stojanovski et al. 2025, arXiv:2505.24760; the package is optional (extra `procedural`). `problems` makes them; a target
is the address of one, {"task", "seed", "index", "config", "digest"}, and its "answer". The final answer is found like
any other (tag, box, ####, phrase, or the only line) and is right or wrong: most tasks need the stored answer itself, as
the package's own partial credit also pays for a text that merely contains it. Where many answers are right, a scorer
written here decides, or the package's own, in a killable worker that cannot run code while it scores. The tables, with
the tasks that are refused and why, are in `procedural/methods`. Cost: 0.05 ms a verdict, 1 ms and more in the worker.
Left out: curricula, the 9 refused tasks, and the package's partial credit.

Args:
    timeout_s: Limit of one verdict in the worker, in seconds that it runs; it may have to make the problem again first.
    workers: Worker processes, started when first needed.
    allow_truncated: Whether a text that was cut may have an answer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError, MissingExtra, UnknownName, VerifierError
from ttc.verifiers.procedural.methods import REFUSED, needs_worker, same
from ttc.verifiers.shared.contract import (
    ALL_OR_NOTHING,
    Canary,
    Card,
    Clock,
    TargetVerifier,
    decided,
    jsonable,
    known_fields,
    library,
    read_answer,
)
from ttc.verifiers.workers.pool import Pool, without_reply

VERSION = "1"
MEMORY_MB = 2048
MAX_INDEX = 10_000
GENERATE_S = 60.0
"""Seconds that a batch of problems may take; the slowest tasks take 0.4 s a problem."""
BATCH = 20
_WORKER = ("-m", "ttc.verifiers.procedural.worker")
_FIELDS: Mapping[str, type] = {
    "task": str, "answer": str, "seed": int, "index": int, "config": dict, "digest": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """One problem: what is asked, and the target of this verifier."""

    question: str
    target: Mapping[str, Any]


def gym_pool(workers: int = 1, timeout_s: float = GENERATE_S) -> Pool:
    """A pool of workers that hold reasoning-gym; nothing starts before the first request."""
    return Pool(workers=workers, timeout_s=timeout_s, memory_mb=MEMORY_MB, program=_WORKER)


def problems(
    task: str, *, seed: int, count: int, config: Mapping[str, Any] | None = None, pool: Pool | None = None
) -> Iterator[Drawn]:
    """Yield the first `count` problems of a task; problem i of a seed is the same whatever the count.

    They are made by `pool` (see `gym_pool`), or by one that lives as long as the iteration.

    Raises:
        MissingExtra: reasoning-gym is not installed.
        UnknownName: no such task, or one that is refused.
        ConfigError: a configuration that the task does not take, or more problems than there are.
    """
    if task in REFUSED:
        raise ConfigError(f"reasoning-gym task {task!r} is refused: {REFUSED[task]}")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtra("reasoning-gym", "procedural")
    if count > MAX_INDEX:
        raise ConfigError(f"reasoning-gym: at most {MAX_INDEX} problems of one seed, got {count}")
    worker_pool = pool or gym_pool()
    base = {"task": task, "seed": seed, "config": dict(config or {})}
    try:
        for first in range(0, count, BATCH):
            request = {"call": "generate", **base, "first": first, "count": min(BATCH, count - first)}
            for i, row in enumerate(_made(worker_pool, request)):
                target = {**base, "index": first + i, "answer": row["answer"], "digest": row["digest"]}
                yield Drawn(row["question"], target)
    finally:
        if pool is None:
            worker_pool.close()


def _made(pool: Pool, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    reply = pool.submit(request).result()
    if reply.status != "ok":
        raise VerifierError(f"reasoning-gym task {request['task']!r}: {reply.data.get('reason', reply.status)}")
    if "unknown" in reply.data:
        raise UnknownName("reasoning-gym task", request["task"], reply.data["unknown"])
    if "bad_config" in reply.data:
        raise ConfigError(f"reasoning-gym task {request['task']!r}: config: {reply.data['bad_config']}")
    rows: list[dict[str, Any]] = reply.data["problems"]
    return rows


def procedural(*, timeout_s: float = 10.0, workers: int = 1, allow_truncated: bool = False) -> ProceduralVerifier:
    """Return the verifier of reasoning-gym's problems."""
    return ProceduralVerifier(gym_pool(workers, timeout_s), allow_truncated)


def read_address(target: TargetLike) -> dict[str, Any]:
    """Read a target; what leads back to the problem is needed only where the stored answer alone does not decide.

    Raises:
        ConfigError: naming the field that is missing, unknown or of the wrong type, or the task that is refused.
    """
    if not isinstance(target, Mapping):
        raise ConfigError(f"target must be an object with {', '.join(_FIELDS)}, got {target!r}"[:300])
    known_fields(target, tuple(_FIELDS))
    task = str(target.get("task"))
    needed = list(_FIELDS) if needs_worker(task) else ["task", "answer"]
    for name in needed:
        value = target.get(name)
        if not isinstance(value, _FIELDS[name]) or isinstance(value, bool) or value == "":
            raise ConfigError(f"target.{name} must be a {_FIELDS[name].__name__}, got {value!r}"[:300])
    jsonable("config", target.get("config"))
    if task in REFUSED:
        raise ConfigError(f"target.task {task!r} is refused: {REFUSED[task]}")
    return {name: target.get(name) for name in _FIELDS}


class ProceduralVerifier(TargetVerifier[dict[str, Any]]):
    """Compares with the stored answer, or asks a scorer; see the module."""

    name = "procedural"
    read = staticmethod(read_address)

    def __init__(self, pool: Pool, allow_truncated: bool) -> None:
        self._workers = pool
        self._pool, self._allow_truncated = pool, allow_truncated
        truncated = "-truncated" if allow_truncated else ""
        self.version = f"procedural-{VERSION}{truncated} {library('reasoning-gym')}"
        self.card = Card(
            self.name,
            self.version,
            inputs='target {"task", "answer", "seed", "index", "config", "digest"}; reads the final answer',
            max_s=pool.timeout_s + 0.5,
            limits=f"4096 characters of answer (limit), {pool.timeout_s:g} s in a worker (timeout), {MEMORY_MB} MB",
            partial_credit=ALL_OR_NOTHING,
            correct_when="the answer is the stored one, or gets the full score where many are right",
            weaknesses=(
                "where one answer is stored, an equal one in another form is wrong",
                "tasks scored by the package trust its scorers, which were audited at 0.1.25",
            ),
            canaries=(
                Canary({"task": "gcd", "answer": "7"}, "<answer>7.0</answer>", "correct"),
                Canary({"task": "gcd", "answer": "7"}, "<answer>The answer is 7</answer>", "incorrect"),
                Canary({"task": "ransom_note", "answer": "True"}, "<answer>true</answer>", "correct"),
                Canary({"task": "gcd", "answer": "7"}, "<answer></answer>", "no_answer"),
            ),
        )

    async def judge(self, goal: dict[str, Any], submission: Submission, clock: Clock) -> Verdict:
        """Compare the final answer with the stored one, or have it scored."""
        extraction = read_answer(submission, "exact", self._allow_truncated)
        if isinstance(extraction, Verdict):
            return extraction
        final = extraction.final or ""
        if not needs_worker(goal["task"]):
            right = same(final, goal["answer"])
            return decided(right, extraction, "same" if right else "different")
        if importlib.util.find_spec("reasoning_gym") is None:
            return Verdict("error", reason=str(MissingExtra("reasoning-gym", "procedural")))
        reply = await self._pool.run({"call": "score", **goal, "answer": final})
        clock.waited = reply.waited
        if reply.status != "ok":
            return without_reply(reply)
        if "drifted" in reply.data:
            return Verdict("error", reason="the installed reasoning-gym makes another problem of this target")
        return decided(bool(reply.data["right"]), extraction, str(reply.data.get("reason") or "scored"))
