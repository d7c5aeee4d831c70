"""The verdict on each claim of `PLAN.md`, from the saved results of the stages.

    python -m benchmarks.chain.claims --part test --seed 1

Differences are paired by problem, with 95 % intervals over problems. The search arm, and the threshold of the adaptive
vote, were chosen once, on dev with seed 1, and are used for all seeds.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.chain.__main__ import KEPT
from benchmarks.chain.stages import MAX_TOKENS, STUDENT_SECOND
from evals.numbers.metrics import Vote
from evals.numbers.statistics import Interval, mean_interval, paired_interval
from evals.numbers.summary import curve_values

SEARCHES = ("best_of_n", "beam", "dvts", "particle", "auto")
SHORT_CAP, LONG_CAP = 64, 256
CHOSEN_BY = 1
"""The seed whose figures of dev choose."""
_DRAWS = 2000

Arm = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """The numbers that the stages of one seed left."""

    folder: Path
    seed: int

    def arms(self, stage: str, part: str, seed: int | None = None) -> Mapping[str, Arm]:
        """The evaluations of a stage on a part, by default of this seed."""
        path = self.folder / f"{stage}-{part}-{seed or self.seed}.json"
        return dict(json.loads(path.read_text())["arms"])

    def chosen(self) -> str:
        """The search that was best on dev."""
        arms = self.arms("search", "dev", CHOSEN_BY)
        return max(SEARCHES, key=lambda name: fmean(arms[name]["right"]))


def values(arm: Arm, names: Sequence[str]) -> list[float]:
    """1 or 0 for each of these problems; one that failed counts as wrong."""
    right = dict(zip(arm["problems"], arm["right"], strict=True))
    return [float(right.get(name, 0)) for name in names]


def vote(key: int | None, right: int, score: float | None) -> Vote:
    """A candidate of a pool as it was kept: the number of its answer, its verdict, its score."""
    return Vote(None if key is None else str(key), bool(right), score)


def majority(pool: Arm, k: int, names: Sequence[str]) -> list[float]:
    """The expected accuracy of a vote of k draws, exactly, from the pool."""
    drawn = [[vote(*candidate) for candidate in one] for one in pool["pool"]]
    known = dict(zip(pool["problems"], curve_values(drawn, "majority", k, 0), strict=True))
    return [known.get(name, 0.0) for name in names]


def _if_kept(kept: Kept, stage: str, part: str) -> Mapping[str, Arm]:
    try:
        return kept.arms(stage, part)
    except FileNotFoundError:
        return {}


def _covers(pool: Sequence[Sequence[Any]]) -> bool:
    """Whether any candidate is right."""
    return any(right for _, right, _ in pool)


def starts(kept: Kept, part: str) -> Interval:
    """The start less the public model in its better prompt form."""
    arms = kept.arms("probe", part)
    names = arms["sft"]["problems"]
    public = max((values(arms[name], names) for name in ("public", "public, tags")), key=sum)
    return paired_interval(public, values(arms["sft"], names), names, seed=0)


def searches(kept: Kept, part: str) -> Interval:
    """The chosen search less the greedy answer."""
    greedy, found = kept.arms("probe", part)["sft"], kept.arms("search", part)[kept.chosen()]
    names = greedy["problems"]
    return paired_interval(values(greedy, names), values(found, names), names, seed=0)


def beats_votes(kept: Kept, part: str) -> Interval:
    """The chosen search less a vote of as many draws as cost the same FLOPs."""
    arms, pool = kept.arms("search", part), kept.arms("pools", part)["pool"]
    found, names = arms[kept.chosen()], arms["majority"]["problems"]
    ratio = fmean(found["flops"]) / fmean(arms["majority"]["flops"])
    k = min(max(round(16 * ratio), 1), min(map(len, pool["pool"])))
    return paired_interval(majority(pool, k, names), values(found, names), names, seed=0)


def beats_votes_second(kept: Kept, part: str) -> Interval:
    """The adaptive vote that is best on dev less a plain one of as many tokens, both from one pool."""
    tried = kept.arms("search-second", "dev", CHOSEN_BY)
    best = max(tried, key=lambda name: (fmean(tried[name]["right"]), -fmean(tried[name]["generated"])))
    found, pool = kept.arms("search-second", part)[best], kept.arms("pools", part)["pool"]
    size, names = min(map(len, pool["pool"])), pool["problems"]
    k = min(math.ceil(size * fmean(found["generated"]) / fmean(pool["generated"])), size)
    return paired_interval(majority(pool, k, names), values(found, names), names, seed=0)


def rewards(kept: Kept, part: str, policy: str = "grpo") -> Interval:
    """The policy after GRPO less its start, greedily."""
    arms = kept.arms("probe", part)
    names = arms["sft"]["problems"]
    return paired_interval(values(arms["sft"], names), values(arms[policy], names), names, seed=0)


def recovered(kept: Kept, part: str, student: str = "distil-search") -> Interval:
    """The share of the search's gain over the greedy answer that the distilled student has, greedily."""
    arms, names = kept.arms("probe", part), kept.arms("probe", part)["sft"]["problems"]
    rows = [
        np.array(values(arm, names)) for arm in (arms["sft"], arms[student], kept.arms("search", part)[kept.chosen()])
    ]
    rng = np.random.default_rng(0)

    def share(index: Any) -> float:
        greedy, taught, found = (float(row[index].mean()) for row in rows)
        return (taught - greedy) / (found - greedy) if found > greedy else -1.0

    everyone = np.arange(len(names))
    shares = [share(rng.integers(0, len(names), len(names))) for _ in range(_DRAWS)]
    low, high = np.quantile(shares, [0.025, 0.975])
    return Interval(share(everyone), float(low), float(high))


def saved(kept: Kept, part: str) -> Interval:
    """The student's tokens a problem as a share of the search's; no interval, since tokens are counted."""
    student = kept.arms("probe", part)["distil-search"]["generated"]
    ratio = fmean(student) / fmean(kept.arms("search", part)[kept.chosen()]["generated"])
    return Interval(ratio, ratio, ratio)


def thinks(kept: Kept, part: str) -> Interval:
    """256 thinking tokens less 64, both handed over."""
    arms = kept.arms("curve", part)
    short, long = arms[f"handover {SHORT_CAP}"], arms[f"handover {LONG_CAP}"]
    return paired_interval(values(short, short["problems"]), values(long, short["problems"]), short["problems"], seed=0)


def hands_over(kept: Kept, part: str) -> Interval:
    """Hand-over less truncation, the mean over the caps."""
    arms = kept.arms("curve", part)
    names = arms[f"handover {SHORT_CAP}"]["problems"]
    cut, handed = (
        np.mean([values(arm, names) for name, arm in arms.items() if name.startswith(kind)], axis=0).tolist()
        for kind in ("stop", "handover")
    )
    return paired_interval(cut, handed, names, seed=0)


CLAIMS: Mapping[str, tuple[Callable[[Kept, str], Interval], Callable[[Interval], bool]]] = {
    "the start beats the public model": (starts, lambda gap: gap.low > 0),
    "search at n = 16 beats greedy by 8 points": (searches, lambda gap: gap.low >= 0.08),
    "it beats a vote at equal FLOPs": (beats_votes, lambda gap: gap.low > 0),
    "second try: an adaptive vote at equal tokens": (beats_votes_second, lambda gap: gap.low > 0),
    "GRPO beats its start": (rewards, lambda gap: gap.low > 0),
    "GRPO, second try: twice the steps": (partial(rewards, policy="grpo-second"), lambda gap: gap.low > 0),
    "the student has half of the search's gain": (recovered, lambda share: share.low >= 0.5),
    "the student, second try: the shortest draws, from the start": (
        partial(recovered, student=STUDENT_SECOND),
        lambda share: share.low >= 0.5,
    ),
    "at a tenth of its tokens": (saved, lambda share: share.value <= 0.1),
    "four times the thinking tokens buy accuracy": (thinks, lambda gap: gap.low > 0),
    "hand-over is above truncation": (hands_over, lambda gap: gap.low > 0),
}
"""In the words of `PLAN.md`, with the second try that it allows a failed one: the figure, and when it holds."""


def _levels(kept: Kept, part: str) -> Iterator[str]:
    """A line for each model decoded greedily and for each search: its accuracy, and how far it is above the start."""
    start = kept.arms("probe", part)["sft"]
    for name, arm in kept.arms("probe", part).items():
        level = mean_interval([float(x) for x in arm["right"]], arm["problems"], seed=0)
        ended = [right for right, tokens in zip(arm["right"], arm["generated"], strict=True) if tokens < MAX_TOKENS]
        ending = f"of {len(ended)} that ended before the cap {sum(ended)} are right"
        yield f"{name:20} {percent(level)} %; {percent(_above(start, arm), '+')} above the start; {ending}"
    for stage in ("search", "pools", "search-second"):
        for name, arm in _if_kept(kept, stage, part).items():
            tokens = f"{100 * fmean(arm['right']):5.1f} %, {fmean(arm['generated']):,.0f} tokens"
            covered = (
                f"; a right one among its draws: {100 * fmean(map(_covers, arm['pool'])):.1f} %"
                if "pool" in arm
                else ""
            )
            yield f"{name:20} {tokens}; {percent(_above(start, arm), '+')} above the start{covered}"


def _above(start: Arm, arm: Arm) -> Interval:
    names = start["problems"]
    return paired_interval(values(start, names), values(arm, names), names, seed=0)


def percent(interval: Interval, sign: str = "") -> str:
    """In points, with the ends of 95 %."""
    value, low, high = (format(100 * x, f"{sign}.1f") for x in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def main() -> None:
    """Print every claim with its figure, and write them where there is something to write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["dev", "test"], default="test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=KEPT)
    options = parser.parse_args()
    kept, rows = Kept(options.kept, options.seed), []
    for claim, (figure, holds) in CLAIMS.items():
        try:
            gap = figure(kept, options.part)
        except (OSError, KeyError) as exc:
            print(f"{claim:60} not measured yet ({exc})")
            continue
        rows.append({"claim": claim, "holds": holds(gap), "value": gap.value, "low": gap.low, "high": gap.high})
        print(f"{claim:60} {'held' if holds(gap) else 'FAILED':7} {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})")
    for line in _levels(kept, options.part):
        print(line)
    path = options.kept / f"claims-{options.part}-{options.seed}.json"
    path.write_text(json.dumps({"claims": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
