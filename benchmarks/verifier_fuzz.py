"""Hostile inputs against every registered verifier: no exception may escape, no verdict may exceed its time limit.

    python -m benchmarks.verifier_fuzz [--inputs 200000] [--seed 0] [--only NAME] [--save FILE.json]

Inputs are mutations of the hostile texts of the tests and of each verifier's known cases: cut, doubled, spliced, filled
with invisible and bidirectional marks, wrapped in boxes, tags, thinking and fences, and with the expected answer
injected; one in thirty has a hostile target too. The verifier with the least time so far gets the next input, up to a
cap each, so slow verifiers get fewer. Times are wall times, so a busy machine makes some verdicts slow: one beyond the
card's limit is repeated alone, three times, and counts as late if it is late each time (`num_slow` counts the first).
Afterwards every verifier must still pass its known cases, and no process may be left.

Judge runs on the scripted engine, composite joins two others; the rest have their defaults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ttc.any_verifier import make
from tests.ttc.hostile import hostile_texts
from ttc.config.registry import VERIFIERS
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.errors import ConfigError, MissingExtra
from ttc.verifiers.service.service import quantiles
from ttc.verifiers.shared.contract import Card, card_of

BATCH, IN_FLIGHT, CAP_SHARES, FLOOR, RETRIES = 100, 4, 9, 4000, 3
MARKS = [
    "\u202e",
    "\u202d",
    "\u2066",
    "\u2069",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u0301",
    "\u0323",
    "\x00",
    "\ud800",
    "\r",
    "\t",
]
MARKS += [
    "🙂",
    "ﷺ",
    "½",
    "⁹",
    "Ⅷ",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "\\boxed{",
    "}",
    "####",
    "```",
    "$",
    "^",
    "!",
]
BIG = 20_000
"""Characters from which a text is drawn rarely."""


@dataclass
class Subject:
    """A verifier under test and what it has shown so far."""

    name: str
    verifier: Verifier
    card: Card
    seconds: float = 0.0
    slow: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    raised: list[dict[str, Any]] = field(default_factory=list)


def mutated(rng: random.Random, texts: Sequence[str], big: Sequence[str], expected: str) -> str:
    """One hostile text."""
    text = rng.choice(big if rng.random() < 0.004 else texts)
    for _ in range(rng.randrange(4)):
        text = rng.choice(_MUTATIONS)(rng, text, rng.choice(texts), expected)
    return text


def _cut(rng: random.Random, text: str, other: str, expected: str) -> str:
    start = rng.randrange(len(text) + 1)
    return text[start : start + rng.randrange(1, 5000)]


def _splice(rng: random.Random, text: str, other: str, expected: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + other[: rng.randrange(1, 3000)] + text[at:]


def _double(rng: random.Random, text: str, other: str, expected: str) -> str:
    return text * rng.randrange(2, 40) if len(text) < 500 else text


def _mark(rng: random.Random, text: str, other: str, expected: str) -> str:
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(MARKS) * rng.choice((1, 1, 2, 50)) + text[at:]
    return text


def _inject(rng: random.Random, text: str, other: str, expected: str) -> str:
    shapes = [
        expected,
        f"\\boxed{{{expected}}}",
        f"<answer>{expected}</answer>",
        f"The answer is {expected}",
        f"#### {expected}",
    ]
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(shapes) + text[at:]


def _wrap(rng: random.Random, text: str, other: str, expected: str) -> str:
    before, after = rng.choice(
        [
            ("\\boxed{", "}"),
            ("<answer>", "</answer>"),
            ("<think>", "</think>"),
            ("```python\n", "\n```"),
            ("```json\n", "\n```"),
            ("$$", "$$"),
            ("(", ")"),
            ("\u202e", "\u202c"),
            ("The answer is ", "."),
            ('{"answer": "', '"}'),
        ]
    )
    return before + text + after


_MUTATIONS: list[Callable[[random.Random, str, str, str], str]] = [_cut, _splice, _double, _mark, _inject, _wrap]
HOSTILE_TARGETS: list[TargetLike] = [
    None,
    "",
    "x" * 5000,
    5,
    -1.5,
    True,
    [],
    {},
    {"answer": None},
    {"answer": ["1"]},
    [[[[1]]]],
]
HOSTILE_TARGETS += [
    {"no": {"such": "field"}},
    "\ud800",
    "9" * 3000,
    "\\boxed{" * 100,
    {"tests": 5},
    {"instruction_id_list": "x"},
]


async def one(subject: Subject, target: TargetLike, submission: Submission) -> Verdict | BaseException:
    """One verdict, or what was raised."""
    try:
        return await subject.verifier.verify(target, submission)
    except Exception as exc:
        return exc


async def batch(subject: Subject, rng: random.Random, texts: Sequence[str], big: Sequence[str], size: int) -> None:
    """Ask `size` times, a few at once, and note what happened."""
    asked: list[tuple[TargetLike, Submission]] = []
    for _ in range(size):
        canary = rng.choice(subject.card.canaries)
        target = rng.choice(HOSTILE_TARGETS) if rng.random() < 1 / 30 else canary.target
        pool = [canary.text, *texts] if rng.random() < 0.5 else [canary.text, canary.text, str(target)]
        thinking = rng.choice(texts)[:2000] if rng.random() < 0.1 else canary.thinking
        finish = "stop" if rng.random() < 0.95 else rng.choice(("length", "abort"))
        text = mutated(rng, pool, big, str(canary.target)[:200])
        asked.append((target, Submission(text, thinking, finish)))  # type: ignore[arg-type]
    began = time.perf_counter()
    for start in range(0, size, IN_FLIGHT):
        part = asked[start : start + IN_FLIGHT]
        for (target, submission), found in zip(
            part, await asyncio.gather(*(one(subject, *each) for each in part)), strict=True
        ):
            await _note(subject, target, submission, found)
    subject.seconds += time.perf_counter() - began


async def _note(subject: Subject, target: TargetLike, submission: Submission, found: Verdict | BaseException) -> None:
    shown = {"target": str(target)[:200], "text": submission.text[:200], "length": len(submission.text)}
    if not isinstance(found, Verdict):
        subject.raised.append({**shown, "error": f"{type(found).__name__}: {found}"[:300]})
        return
    subject.statuses[found.status] += 1
    subject.times.append(found.seconds)
    if found.seconds > subject.card.max_s:
        subject.slow += 1
        again = [await one(subject, target, submission) for _ in range(RETRIES)]
        best = min(each.seconds if isinstance(each, Verdict) else math.inf for each in again)
        if best > subject.card.max_s:
            subject.late.append({**shown, "seconds": round(best, 3), "limit": subject.card.max_s})


async def fuzz(names: Sequence[str], inputs: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run everything; returns what is saved."""
    subjects, skipped = [], {}
    for name in names:
        try:
            verifier = make(name, folder)
        except (ConfigError, MissingExtra) as exc:
            skipped[name] = str(exc)[:200]
            continue
        card = card_of(verifier)
        if card is None:
            raise SystemExit(f"{name} declares no card")
        subjects.append(Subject(name, verifier, card))
    everything = list(hostile_texts().values())
    texts = [text for text in everything if len(text) < BIG] + ["", " ", "a" + "\u0301\u0323" * 5000]
    big = [text for text in everything if len(text) >= BIG] + ["\\boxed{" + "a\u0301\u0323" * 30_000 + "}"]
    rng = random.Random(seed)
    cap = -(-inputs * CAP_SHARES // (5 * len(subjects)))
    done = 0
    while done < inputs:
        open_ones = [s for s in subjects if sum(s.statuses.values()) + len(s.raised) < cap]
        starved = [s for s in open_ones if sum(s.statuses.values()) < FLOOR]
        subject = min(starved or open_ones, key=lambda s: s.seconds)
        await batch(subject, rng, texts, big, BATCH)
        done += BATCH
    results = {subject.name: await _result(subject) for subject in subjects}
    return {"inputs": done, "seed": seed, "skipped": skipped, "verifiers": results, "processes_left": _children()}


async def _result(subject: Subject) -> dict[str, Any]:
    healthy = []
    for canary in subject.card.canaries:
        found = await one(subject, canary.target, canary.submission)
        healthy.append(isinstance(found, Verdict) and found.status == canary.status)
    await subject.verifier.close()
    times = quantiles(subject.times)
    return {
        "version": subject.card.version,
        "inputs": sum(subject.statuses.values()) + len(subject.raised),
        "statuses": dict(sorted(subject.statuses.items())),
        "limit_s": subject.card.max_s,
        "p50_ms": round(1000 * times.p50, 3),
        "p99_ms": round(1000 * times.p99, 3),
        "max_s": round(times.max, 3),
        "raised": subject.raised[:20],
        "num_raised": len(subject.raised),
        "late": subject.late[:20],
        "num_slow": subject.slow,
        "num_late": len(subject.late),
        "canaries_after": f"{sum(healthy)} of {len(healthy)}",
    }


def _children() -> int:
    """Processes of this one that are still there."""
    me = os.getpid()
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        count += int(fields[1]) == me
    return count


def main() -> None:
    """Fuzz, print a table, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(fuzz(args.only or VERIFIERS.names(), args.inputs, args.seed, Path(folder)))
    found["seconds"] = round(time.perf_counter() - began)
    for name, row in found["verifiers"].items():
        print(
            f"{name:<14} {row['inputs']:>7,} inputs  p50 {row['p50_ms']:>8.2f} ms  p99 {row['p99_ms']:>8.1f} ms  "
            f"max {row['max_s']:.2f} of {row['limit_s']:g} s  raised {row['num_raised']}  late {row['num_late']}  "
            f"canaries {row['canaries_after']}  {row['statuses']}"
        )
        for bad in row["raised"][:3] + row["late"][:3]:
            print("    ", json.dumps(bad))
    print(f"{found['inputs']:,} inputs in {found['seconds']} s, skipped {found['skipped']}")
    print(f"{found['processes_left']} processes left")
    if args.save:
        args.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
