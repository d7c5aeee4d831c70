"""Throughput of the maths verifier behind the service, warm, on two workers.

    python -m benchmarks.verifier_throughput --data DIR [--save FILE.json]

Workloads from a folder of datasets: `natural`, the sampled solutions of gsm8k_model_outputs (numbers, decided in this
process); `rewritten`, the published answers of olympiadbench_math rewritten so that a comparison of spelling does not
suffice (2 becomes (2)+0, in every second row against the next row's answer); `worker`, those that only a worker can
decide, several times. Verdicts are not cached (memory=0); the canaries have warmed up the workers. Also: two verifiers,
and two settings of one, on the natural rows. `processor`: CPU milliseconds of each verdict in this process, which other
work on the machine does not change, on natural rows, and on those mixed with red-team pairs (seed 9) and rewritten
rows.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.verifier_redteam.__main__ import drawn
from benchmarks.verifier_redteam.pairs import read_golds
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.verifiers.exact import exact
from ttc.verifiers.math import math, quick
from ttc.verifiers.maths.comparing import EqualityPolicy
from ttc.verifiers.service.audit import Audit, read_audit, tally
from ttc.verifiers.service.service import Service

Case: TypeAlias = tuple[str, str]
REPEATS = 3


def rows(folder: Path, stem: str) -> list[dict[str, Any]]:
    """The lines of a gzipped dataset."""
    with gzip.open(folder / f"{stem}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def natural(folder: Path) -> tuple[list[Case], list[bool]]:
    """(target, text) of every sampled solution, and whether its publisher found it correct."""
    outputs = [(row["answer"], out) for row in rows(folder, "gsm8k_model_outputs") for out in row["outputs"]]
    return [(answer, out["text"]) for answer, out in outputs], [bool(out["is_correct"]) for _, out in outputs]


def rewritten(folder: Path) -> list[Case]:
    """Pairs of published answers whose spellings differ."""
    found = [row["answer"].strip("$ ") for row in rows(folder, "olympiadbench_math")]
    cases = [(one, one if at % 2 else other) for at, (one, other) in enumerate(itertools.pairwise(found))]
    return [(target, rf"\boxed{{({text})+0}}") for target, text in cases]


def for_worker(cases: Sequence[Case]) -> list[Case]:
    """The cases that this process leaves open."""
    return [
        (target, text) for target, text in cases if quick(target, text[len(r"\boxed{") : -1], EqualityPolicy()) is None
    ]


async def verdicts(
    verifier: Verifier, cases: Sequence[Case], audit: Audit | None = None
) -> tuple[list[Verdict], Service, float]:
    """All verdicts, the service (closed) and the seconds they took, its start left out."""
    service = Service(verifier, memory=0, audit=audit)
    await asyncio.to_thread(service.start)
    began = time.perf_counter()
    told = await asyncio.gather(*(service.verify(target, Submission(text)) for target, text in cases))
    seconds = time.perf_counter() - began
    await service.close()
    return list(told), service, seconds


async def speed(cases: Sequence[Case], kind: Any) -> dict[str, Any]:
    """The rate of the best of a few runs, and of all of them: the machine may be shared."""
    rates, works = [], []
    statuses: Counter[str] = Counter()
    for _ in range(REPEATS):
        told, service, seconds = await verdicts(math(kind=kind, workers=2), cases)
        rates.append(round(len(cases) / seconds, 1))
        works.append(asdict(service.metrics().work_s))
        statuses = Counter(verdict.status for verdict in told)
    ways = Counter(verdict.reason.split(":")[0] for verdict in told if verdict.correct)
    return {
        "verdicts": len(cases),
        "per_second": max(rates),
        "runs_per_second": rates,
        "work_s": works[rates.index(max(rates))],
        "statuses": dict(statuses),
        "decided_by": dict(ways),
    }


async def agreement(cases: Sequence[Case], published: Sequence[bool]) -> dict[str, Any]:
    """The natural rows under two verifiers, and their audit log under other settings."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "audit.jsonl"
        told, _, _ = await verdicts(math(kind="number"), cases, Audit(log))
        logged = [entry.verdict for entry in read_audit(log)]
        entries = [(entry.target, entry.submission.text) for entry in read_audit(log)]
    again, _, _ = await verdicts(math(kind="math", rounding=0), entries)
    other, _, _ = await verdicts(exact(), cases)
    same = sum(verdict.correct == right for verdict, right in zip(told, published, strict=True))
    return {
        "rows": len(cases),
        "same_as_published": same,
        "against_exact": _tallied(list(zip(told, other, strict=True))),
        "rescored_as_math_without_rounding": _tallied(list(zip(logged, again, strict=True))),
    }


def _tallied(pairs: Sequence[tuple[Verdict, Verdict]]) -> dict[str, Any]:
    found = tally(pairs)
    changes = {f"{first} -> {second}": count for (first, second), count in found.transitions.items()}
    return {**asdict(found), "transitions": changes, "differing": found.differing}


async def processor(folder: Path) -> dict[str, Any]:
    """Processor time of single verdicts, warm, one after the other."""
    golds = read_golds([folder / "gsm8k_test.jsonl.gz"])
    pairs = [pair for made in drawn(9, 3040, golds).values() for pair in made if pair.verifier == "math"]
    plain: list[tuple[TargetLike, str]] = list(natural(folder)[0][:3000])
    mixed = [*plain[:1000], *((pair.target, pair.text) for pair in pairs[:1000]), *rewritten(folder)[:400]]
    return {"natural": await _alone(plain), "mixed": await _alone(mixed)}


async def _alone(cases: Sequence[tuple[TargetLike, str]]) -> dict[str, Any]:
    verifier = math(workers=2)
    spent = []
    for target, text in (*cases[:50], *cases):
        began = time.process_time()
        await verifier.verify(target, Submission(text))
        spent.append(time.process_time() - began)
    await verifier.close()
    ordered = sorted(spent[50:])
    count = len(ordered)
    return {
        "verdicts": count,
        "p50_ms": round(1000 * ordered[count // 2], 3),
        "p99_ms": round(1000 * ordered[int(count * 0.99)], 3),
        "max_ms": round(1000 * ordered[-1], 1),
        "verdicts_per_processor_second": round(count / sum(ordered)),
    }


async def measure(folder: Path) -> dict[str, Any]:
    """Everything that is saved."""
    cases, published = natural(folder)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "workers": 2,
        "natural": await speed(cases, "number"),
        "rewritten": await speed(rewritten(folder), "math"),
        "worker": await speed(for_worker(rewritten(folder)) * REPEATS, "math"),
        "agreement": await agreement(cases, published),
        "processor": await processor(folder),
    }


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    found = asyncio.run(measure(args.data))
    print(json.dumps(found, indent=1))
    if args.save:
        args.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
