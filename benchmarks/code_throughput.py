"""Throughput of the program verifier, its verdicts on reference solutions, and its behaviour under sustained load.

    python -m benchmarks.code_throughput [--data DIR] [--only PART] [--save benchmarks/results/code_throughput.json]

`references`: all of HumanEval and of both subsets of MBPP, with the failures. Rates: first 1,000 programs, warm, two
workers: the references of HumanEval and sanitised MBPP from --data (TTC_DATA), or without it a small program with
thirteen checks, each under its own tests; and 1,000 script runs. Then 10,000 requests, half of them mathematics and
half programs, one in ten hostile, 64 in flight against both verifiers at once: no request may hang, none may take
longer than its card says, and no process, descriptor or file may be left. Seconds are those of the work itself, without
waiting for a worker. Other work on the machine lowers the rates: its load is saved with them, and so is the CPU time of
each program, from which the rate of an idle machine follows.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.sandbox_battery import FOLDERS
from evals.data.sources import json_lines
from evals.tasks.humaneval import humaneval
from evals.tasks.mbpp import mbpp
from tests.ttc.hostile import hostile_texts
from tests.ttc.hostile_programs import EXHAUSTIONS, FORGERIES, TARGET
from tests.ttc.processes import descendants
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.verifiers.code import code
from ttc.verifiers.math import math

NUM_PROGRAMS, NUM_MIXED, WORKERS = 1_000, 10_000, 2
IN_FLIGHT = 64
TIMEOUT_S = 2.0
"""Seconds of a program in the mixed run."""
Request = tuple[Verifier, TargetLike, str, bool]
HONEST = "```python\ndef double(x):\n    return x + x\n```"
SCRIPT = {"io": [{"input": "3 4", "output": "7"}]}
SUM = "```python\nprint(sum(map(int, input().split())))\n```"


def main() -> None:
    """Run the requested parts; saved results of the others are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("TTC_DATA"), metavar="DIR")
    parser.add_argument(
        "--only",
        choices=["references", "programs", "scripts", "mixed"],
        action="append",
        help="a part; several may be given",
    )
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "references": lambda: asyncio.run(all_references(args.data)),
        "programs": lambda: rate(references(args.data)),
        "scripts": lambda: rate(itertools.repeat((SCRIPT, SUM))),
        "mixed": mixed,
    }
    saved = Path(args.save) if args.save else None
    result = json.loads(saved.read_text(encoding="utf-8")) if saved and saved.exists() else {}
    for name, part in parts.items():
        if name in (args.only or parts):
            load = round(os.getloadavg()[0], 2)
            result[name] = {
                "date": datetime.now(UTC).date().isoformat(),
                "cores": os.cpu_count(),
                "workers": WORKERS,
                "load_before": load,
                **part(),
                "load_after": round(os.getloadavg()[0], 2),
            }
    print(json.dumps(result, indent=1))
    if saved:
        saved.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


# -- the rate ----------------------------------------------------------------------------------------------------------
def references(data: str | None) -> Iterator[tuple[TargetLike, str]]:
    """Targets and right answers, again and again."""
    if data is None:
        return itertools.repeat((TARGET, HONEST))
    human = {item.problem.id: item.target for item in humaneval(data=data).items(None, 0)}
    basic = {item.problem.id: item.target for item in mbpp(data=data, split="all").items(None, 0)}
    found = []
    for row, _, _ in json_lines(Path(data) / "humaneval.jsonl.gz"):
        found.append((human[row["id"]], row["prompt"] + row["canonical_solution"]))
    for row, _, _ in json_lines(Path(data) / "mbpp.jsonl.gz"):
        # One reference needs three seconds by itself; it would be most of what is measured.
        if row["id"] in basic and row["task_id"] != 123:
            found.append((basic[row["id"]], row["sanitized_code"]))
    return itertools.cycle([(target, f"```python\n{source}\n```") for target, source in found])


async def all_references(data: str | None) -> dict[str, Any]:
    """How many references of each dataset are correct, and why the others are not."""
    if data is None:
        return {}
    verifier = code(workers=WORKERS, timeout_s=120.0)
    result: dict[str, Any] = {"version": verifier.version}
    try:
        for name, task, column in (
            ("humaneval", humaneval(data=data), "canonical_solution"),
            ("mbpp sanitized", mbpp(data=data, split="all"), "sanitized_code"),
            ("mbpp full", mbpp(data=data, split="all", subset="full"), "code"),
        ):
            targets = {item.problem.id: item.target for item in task.items(None, 0)}
            sources = {
                row["id"]: row.get("prompt", "") * (name == "humaneval") + str(row[column])
                for row, _, _ in json_lines(Path(data) / f"{name.partition(' ')[0]}.jsonl.gz")
                if row["id"] in targets
            }
            texts = {key: Submission(f"```python\n{source}\n```") for key, source in sources.items()}
            verdicts = await asyncio.gather(*(verifier.verify(targets[key], text) for key, text in texts.items()))
            failed = {key: verdict.reason for key, verdict in zip(texts, verdicts, strict=True) if not verdict.correct}
            result[name] = {"num": len(texts), "correct": len(texts) - len(failed), "failed": failed}
    finally:
        await verifier.close()
    return result


def rate(cases: Iterator[tuple[TargetLike, str]]) -> dict[str, Any]:
    """Judge `NUM_PROGRAMS` cases, all in flight; processor time is that of this process and all cells."""
    used = processor_s()
    result = asyncio.run(_rate(cases))
    each = (processor_s() - used) / result["num"]
    return {**result, "processor_ms_each": round(1000 * each, 1), "per_second_on_two_idle_cores": round(2 / each, 1)}


def processor_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def _rate(cases: Iterator[tuple[TargetLike, str]]) -> dict[str, Any]:
    verifier = code(workers=WORKERS, timeout_s=30.0)
    try:
        await asyncio.gather(*(verifier.verify(SCRIPT, Submission(SUM)) for _ in range(2 * WORKERS)))
        chosen = list(itertools.islice(cases, NUM_PROGRAMS))
        began = time.perf_counter()
        verdicts = await asyncio.gather(*(verifier.verify(target, Submission(text)) for target, text in chosen))
        seconds = time.perf_counter() - began
    finally:
        await verifier.close()
    return {
        "num": len(verdicts),
        "correct": sum(verdict.correct for verdict in verdicts),
        "per_second": round(len(verdicts) / seconds, 1),
        **quantiles(verdicts),
        "version": verifier.version,
    }


# -- the mixed run -----------------------------------------------------------------------------------------------------
def mixed() -> dict[str, Any]:
    """Run the mixed requests and count leaked processes, descriptors and files."""
    before, descriptors, files = descendants(), len(os.listdir("/proc/self/fd")), left_files()
    result = asyncio.run(_mixed())
    return {
        **result,
        "processes_left": len(descendants() - before),
        "descriptors_left": len(os.listdir("/proc/self/fd")) - descriptors,
        "files_left": len(left_files() - files),
    }


async def _mixed() -> dict[str, Any]:
    programs, maths = code(workers=WORKERS, timeout_s=TIMEOUT_S, memory_mb=256), math()
    requests = _requests(programs, maths)
    began = time.perf_counter()
    places = asyncio.Semaphore(IN_FLIGHT)

    async def verify(request: Request) -> Verdict:
        async with places:
            return await request[0].verify(request[1], Submission(request[2]))

    try:
        verdicts = await asyncio.gather(*map(verify, requests))
        seconds = time.perf_counter() - began
        again = await programs.verify(TARGET, Submission(HONEST)), await maths.verify("4", Submission(r"\boxed{4}"))
    finally:
        await programs.close()
        await maths.close()
    rows = list(zip(requests, verdicts, strict=True))
    result: dict[str, Any] = {"num": len(rows), "seconds": round(seconds, 1)}
    for verifier in (programs, maths):
        for hostile in (False, True):
            mine = [verdict for request, verdict in rows if request[0] is verifier and request[3] == hostile]
            result[f"{verifier.name} {'hostile' if hostile else 'honest'}"] = {
                "num": len(mine),
                "statuses": dict(sorted(Counter(verdict.status for verdict in mine).items())),
                **quantiles(mine),
                "limit_s": verifier.card.max_s,
                "beyond_the_limit": sum(verdict.seconds > verifier.card.max_s for verdict in mine),
            }
    wrong = [verdict for request, verdict in rows if not request[3] and not verdict.correct]
    result["honest_but_not_correct"] = dict(Counter(verdict.reason for verdict in wrong))
    result["healthy_after"] = all(verdict.correct for verdict in again)
    return result


def _requests(programs: Verifier, maths: Verifier) -> list[Request]:
    source = random.Random(7)
    bombs = [f"```python\n{text}\n```" for text in EXHAUSTIONS.values()]
    attacks = [*FORGERIES.values(), *bombs]
    texts = list(hostile_texts().values())
    requests: list[Request] = []
    for number in range(NUM_MIXED):
        hostile = number % 10 == 0
        if number % 20 < 10:
            text = source.choice(attacks) if hostile else HONEST
            requests.append((programs, TARGET, text, hostile))
        else:
            value = source.randint(2, 999)
            text = source.choice(texts) if hostile else rf"So it is \boxed{{\frac{{{2 * value}}}{{4}}}}."
            requests.append((maths, f"{value}/2", text, hostile))
    source.shuffle(requests)
    return requests


def quantiles(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Seconds of work: median, 99th percentile, most."""
    seconds = sorted(verdict.seconds for verdict in verdicts)
    return {
        "p50_s": round(seconds[len(seconds) // 2], 4),
        "p99_s": round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))], 4),
        "max_s": round(seconds[-1], 4),
    }


def left_files() -> set[str]:
    """Entries of the temporary folders that may be ours."""
    return {str(path) for folder in FOLDERS for path in Path(folder).glob("ttc-*")}


if __name__ == "__main__":
    main()
