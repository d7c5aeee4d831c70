"""On-policy distillation against imitation of verified traces, at the same trained tokens.

Both arms start from one student, which has imitated one verified answer to each of 64 problems. With few problems, both
arms see only these 64. More epochs on the same answers gain imitation nothing; on-policy learns from the student's own
text, whose mistakes lead to facts and corrections that no right answer contains. The negative control has unlimited
problems, none seen twice: on-policy samples one completion to each of 15,360, imitation learns one verified answer to
each of as many. Those contain every fact many times, so imitation lacks no data. Reverse KL sharpens the distribution,
which raises sampled accuracy, so greedy accuracy is reported, too. The rule `train_above_held_out` only warns here:
with few problems every arm memorises them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.distill.place import FEWER, Answers, Place, gap, told
from benchmarks.distill.stock import rows_of, stopped, teacher, trained_tokens, warmed
from distill.data.dataset import DATA, LINEAGE, read_lines

ROWS = 64
TRACE = 46
"""Tokens of an answer without a mistake: six steps of seven, the two marks of thinking, the answer, the end."""
FEW: Mapping[str, object] = {"task": "chain:split=train,count=64", "smoke_failures": 4}
_KNOWN_BY_HEART = {"train_above_held_out": {"action": "warn"}}
_FAIR: Mapping[str, object] = {"train.rows": ROWS, "train.lr": 3e-3, "train.warmup": 10}
_FEW: Mapping[str, Mapping[str, object]] = {"on_policy": FEW, "imitation": {**FEW, "n": 4, "train.held_out_share": 0.1}}
_UNLIMITED: Mapping[str, Mapping[str, object]] = {
    "on_policy": {
        "task": "chain:split=train,count=16000", "train.prompts": 64, "train.n": 1, "train.sampler": "fresh",
    },
    "imitation": {
        "task": "chain:split=train,count=22000", "n": 1, "smoke_failures": 6, "train.held_out_share": 0.01,
    },
}  # fmt: skip
"""The settings that differ; a teacher that is right in seven answers of ten leaves imitation enough of them."""


def measure(place: Place) -> dict[str, Any]:
    """The two arms on 64 problems."""
    return _arms(place, warmed(place, FEW), "few", _FEW)


def control(place: Place) -> dict[str, Any]:
    """The two arms on problems that are never seen twice."""
    return _arms(place, warmed(place, FEW), "unlimited", _UNLIMITED)


def _arms(place: Place, start: Path, label: str, own: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    names = {"on_policy": f"on_policy_{label}", "imitation": f"imitation_{label}"}
    who: dict[str, object] = {"student": str(start), "teacher": str(teacher(place))}
    settings = {**who, **own["on_policy"], "train.health": _KNOWN_BY_HEART}
    supervised = place.distill(names["on_policy"], "on_policy", settings)
    tokens = trained_tokens(place.folder / names["on_policy"])
    steps = math.ceil(tokens / (ROWS * TRACE))
    imitated = place.distill(
        names["imitation"], "rejection", {**who, **_FAIR, **own["imitation"], "train.steps": steps}
    )
    answers: dict[str, Answers] = {
        "start": place.answers(start, FEWER),
        "imitation": place.answers(imitated),
        "on_policy": place.answers(supervised),
    }
    return {
        **{key: told(found, place.seed) for key, found in answers.items()},
        "lead": gap(answers["imitation"], answers["on_policy"], place.seed),
        "stopped": stopped(place.folder / names["on_policy"]),
        "trained_tokens": {"on_policy": tokens, "imitation": steps * ROWS * TRACE},
        "problems": _problems(place, names),
        "imitated_rows": steps * ROWS,
        "cpu_seconds": {arm: place.spent(name) for arm, name in names.items()},
    }


def _problems(place: Place, names: Mapping[str, str]) -> dict[str, int]:
    """Different problems that an arm had to learn from; imitation holds its `held_out_share` of them out."""
    written = {row["problem_id"] for row in rows_of(place.folder / names["on_policy"], "rollouts.jsonl")}
    imitated = {row["prompt"] for row in read_lines(place.folder / names["imitation"] / DATA / LINEAGE)}
    return {"on_policy": len(written), "imitation": len(imitated)}
