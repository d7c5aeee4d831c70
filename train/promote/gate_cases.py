"""Gates that look at single cases: traces that people reviewed, safety cases, and which of two answers is preferred.

A file of reviews has one line per trace that somebody read:

    {"id": "cipher-3-2/4", "model": "9f2c..", "accept": true, "by": "ada", "note": "the second step is a guess"}

`model` is the digest of the weights that were read (`gate.json` names the candidate's), so reviews of another model
are never counted. A safety case is a problem whose verifier says what is safe; all of them must be, greedily and in one
sample. Preferred is measured by trained reward models on a sampled answer of each of two models; ties count one half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.numbers.gates import GateCheck
from evals.numbers.statistics import mean_interval
from train.base.rollout import Rollout
from train.base.stage import Setting
from train.reward_models.learnt_reward import RewardSource
from ttc.errors import ConfigError, RecordError
from ttc.records import iterate

__all__ = ["digest", "preferred", "read_reviews", "reviewed", "safe"]

_FIELDS = {"id", "model", "accept", "by", "note"}


def digest(model: Path) -> str:
    """Name of a model folder's weights: the start of a hash over its safetensors files."""
    found = hashlib.sha256()
    for weights in sorted(model.glob("*.safetensors")):
        with weights.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]


def read_reviews(path: Path, model: str) -> list[tuple[str, bool]]:
    """(trace, accepted) of every review of the model with that digest, the last one of a reviewer counting.

    Raises:
        ConfigError: no such file.
        RecordError: a broken line; names file, line and field.
    """
    if not path.is_file():
        raise ConfigError(f"gates.reviews: {path} does not exist")
    found: dict[tuple[str, str], bool] = {}
    for number, row in iterate(path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or set(row) - _FIELDS:
            raise RecordError(f"{where}: must be an object with fields of {', '.join(sorted(_FIELDS))}")
        name, of, accept = row.get("id"), row.get("model"), row.get("accept")
        if not isinstance(name, str) or not isinstance(of, str) or not isinstance(accept, bool):
            raise RecordError(f"{where}: needs id and model as text and accept as true or false")
        if of == model:
            found[name, str(row.get("by", ""))] = accept
    return [(name, accept) for (name, _), accept in found.items()]


def reviewed(path: Path, candidate: Path, num: int, bound: float, seed: int) -> GateCheck:
    """At least `num` different traces were read, and the lower end of the share accepted is at least `bound`."""
    name = digest(candidate)
    rows = read_reviews(path, name)
    traces = [trace for trace, _ in rows]
    if len(set(traces)) < num:
        told = f"{len(set(traces))} traces of model {name} are reviewed, must be {num} or more"
        return GateCheck("reviews", False, float(len(set(traces))), float(num), told)
    share = mean_interval([float(accept) for _, accept in rows], traces, seed=seed)
    told = f"{len(rows)} reviews of model {name}: at least {share.low:.4g} accepted (95 %), must be {bound:g} or more"
    return GateCheck("reviews", share.low >= bound, share.low, bound, told)


def safe(name: str, answers: Sequence[Sequence[float]]) -> GateCheck:
    """Every answer to every safety case is right; `answers` are 1 or 0, per way of answering."""
    failed = [number for number, outcomes in enumerate(zip(*answers, strict=True)) if not all(outcomes)]
    num = len(answers[0])
    first = f", such as number {failed[0]}" if failed else ""
    return GateCheck(
        "safety", not failed, float(len(failed)), 0.0, f"{len(failed)} of {num} cases of {name} fail{first}"
    )


def preferred(
    rewards: tuple[str, ...], new: Sequence[Rollout], old: Sequence[Rollout], candidate: Path, bound: float,
    setting: Setting,
) -> GateCheck:  # fmt: skip
    """How often the candidate's answer has the higher reward than the start's to the same problem."""
    place = replace(setting, folder=setting.folder / "gate")  # stages of the run stand beside it
    scorer: Any = RewardSource(rewards, "mean", 1.0).load(place, candidate)
    ours, theirs = (scorer(answers)[scorer.total] for answers in (new, old))
    wins = [float(a > b) + 0.5 * float(a == b) for a, b in zip(ours, theirs, strict=True)]
    rate = mean_interval(wins, [rollout.problem_id for rollout in new], seed=setting.seed)
    told = f"preferred over the start: at least {rate.low:.4g} (95 %) of {len(wins)}, must be {bound:g} or more"
    return GateCheck("min_win_rate", rate.low >= bound, rate.low, bound, told)
