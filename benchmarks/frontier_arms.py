"""The runs of `benchmarks.frontier` that cannot be computed from a pool of samples, and how they are read.

Searches and other strategies with many samples run at about 4 and 16 samples, the better searches also at 8; chains of
a single answer are greedy, which is better here than one sample for as many tokens. The scorer of a strategy, also the
judge of `knockout` and of `refine`, is the packaged reward model, since the packaged models cannot answer other
questions than their task's. `GROUPS` run on all problems; `SCREENED`, which are worse or take too long, on the first of
them. Left out: `tools`, as the models have never seen a call; gibbs at 4 samples, where each of its rounds is one path;
and 64 samples of these strategies, for the time they would take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frontier_points import ABSENT, Spot
from evals.numbers.summary import is_correct
from evals.run_folder import read_run

LIVE = 128
"""Completions that grow together, over all problems in flight; more take memory and no less time."""


@dataclass(frozen=True)
class Group:
    """Strategies that run one after another on models that are loaded once; `live` completions a problem at once."""

    name: str
    temperature: float
    live: int
    strategies: tuple[str, ...]

    @property
    def concurrency(self) -> int:
        """Problems in flight."""
        return LIVE // self.live


def _trees(n: int, *policies: str) -> tuple[str, ...]:
    return tuple(f"tree:n={n},policy={policy}" for policy in policies)


def _sized(n: int, *more: str) -> tuple[str, ...]:
    """Strategies that draw about n samples and fell behind the others."""
    cheap = max(n // 4, 2)
    return (
        f"confidence:n={n},warmup={cheap},group=16,chunk=16",
        f"first_finished:n={n},m={max(3 * n // 8, 1)},chunk=16",
        f"no_think_then_think:n={cheap},m={n - cheap}",
        f"knockout:n={n},trust=1e9",
        f"aggregate:n={n // 2},k={min(n // 2, 4)},rounds=1",
        *more,
    )


GROUPS = (
    Group(
        "greedy",
        0.0,
        4,
        (
            "direct",
            *(f"budget_forcing:max_thinking={cap}" for cap in (40, 56)),
            "budget_forcing:num_waits=1",
            "early_exit:rule=stable,chunk=16,repeats=2",
            "early_exit:rule=confidence,chunk=16",
            "refine:feedback=sums",
        ),
    ),
    Group("four", 0.8, 4, _trees(4, "beam", "entropic", "rebase")),
    Group("eight", 0.8, 8, _trees(8, "particle", "entropic", "rebase")),
    Group("sixteen", 0.8, 16, _trees(16, "entropic", "rebase", "gibbs")),
)
SCREENED = (
    Group("greedy", 0.0, 4, ("refine:feedback=scorer",)),
    Group("four", 0.8, 4, _sized(4)),
    Group("sixteen", 0.8, 16, _sized(16, *_trees(16, "beam"))),
    Group("in-turn", 0.8, 4, (*_trees(4, "puct"), *_trees(16, "puct"))),
)


def real_spots(folder: Path, names: Sequence[str]) -> list[Spot]:
    """What was run for real, by problem; runs that are not complete are left out."""
    spots = []
    for path in sorted(folder.glob("*/*/run.json")):
        run = read_run(path.parent)
        known = {record.problem.id: record for record in run.records if record.error is None}
        if len(known) < int(run.config["limit"]):
            continue
        right = [float(is_correct(known[name])) if name in known else ABSENT for name in names]
        here = [answer for name in names if name in known and (answer := known[name].answer) is not None]
        tokens = float(np.mean([answer.usage.tokens for answer in here]))
        spots.append(Spot(_series(run.config), path.parent.name, tokens, right, "run"))
    return spots


def _series(config: Mapping[str, Any]) -> str:
    policy = config["params"].get("policy")
    return str(config["strategy"]) if policy is None else f"{config['strategy']}, {policy}"
