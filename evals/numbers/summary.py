"""One run as numbers: the entry of `summary.json` that tables, reports and comparisons read.

Accuracy is over all problems: a problem that failed, or got no verdict, is not right, and both are counted beside it.
The records are read once, for the sums and the few numbers per problem that intervals need (`RunTotals`): about a
hundred bytes a problem, whatever its record holds, so a run of any length fits into memory.

A problem's candidates are a pool that can be sub-sampled when they are draws of one prompt (paths of length one), so
that any k of them are what a run with n = k would have drawn. The leaves of a tree are not, nor are samples whose
number or length depended on their content (a stopping rule, aborted traces, a budget): there only their union counts.
Where they are, `curve` holds the expected accuracy at every smaller k from the same pool, with clustered intervals, by
kind:

    pass        any of k is right: needs the answer key, so it is a ceiling and not a strategy
    majority    the vote among k; costs the generated tokens only
    best_of_n   the best-scored of k; weighted: the score-weighted vote; both cost the scorer's tokens as well

The cost at k is k/n of what the draws of the pool took: exact for generated tokens, and for a scorer but for the prompt
it reads once. What a strategy asked beside its draws (the matches of `knockout`) is not part of it. FLOPs of draws
cannot be separated from those of a scorer, a judge or such questions, and are null there, as they are for an endpoint.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evals.numbers.metrics import Vote, best_at_k, majority_at_k, pass_at_k, powers_of_two, weighted_at_k
from evals.numbers.statistics import (
    METHOD,
    Interval,
    mean_interval,
    mean_intervals,
    minimum_detectable,
    standard_error,
)
from ttc.answers.keys import classes
from ttc.answers.kinds import key as answer_key
from ttc.config.values import natural
from ttc.core import Answer, Prices, Record, Usage
from ttc.durable import alone_in, replace_text
from ttc.errors import ConfigError, RecordError
from ttc.seeds import derive


@dataclass(slots=True)
class RunTotals:
    """See the module docstring. `right`, `clusters` and `difficulties` have one entry per problem, in order."""

    right: list[float] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    difficulties: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    verdicts: Counter[str] = field(default_factory=Counter)
    stop_causes: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    truncated: int = 0
    no_answer: int = 0
    covered: int = 0
    """Problems with a right candidate."""
    solved: int = 0
    """Problems with an answer."""
    candidates: int = 0
    beside: int = 0
    """Tokens that were generated beside the draws of candidates."""
    fewest: int | None = None
    """Candidates of the solved problem that has the fewest; `most` of the one that has the most."""
    most: int | None = None
    lowest: float | None = None
    """The lowest score of any candidate; None without scores."""
    independent: bool = True
    """Whether the candidates of every problem may be sub-sampled."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the strategy settled on by the model."""
    ends: dict[int, float] = field(default_factory=dict)
    """Seconds at which the last record of each session was written."""

    @property
    def problems(self) -> int:
        """How many there are."""
        return len(self.right)

    @property
    def pool_size(self) -> int:
        """The largest k that every solved problem has; 0 where sub-sampling would not equal a smaller run."""
        return self.fewest or 0 if self.independent and self.candidates else 0

    @property
    def seconds(self) -> float:
        """The time of all sessions, without the breaks between them."""
        return sum(self.ends.values())

    def add(self, record: Record) -> None:
        """Count one record in."""
        self.right.append(float(is_correct(record)))
        self.clusters.append(cluster_of(record))
        self.difficulties.append(str(record.provenance.get("difficulty") or UNTOLD))
        self.usage += usage_of(record)
        self.errors += record.error is not None
        self.independent = self.independent and independent(record)
        if record.verdict is not None:
            self.verdicts[record.verdict.status] += 1
        if record.answer is not None:
            self._add_answer(record.answer)
            self.covered += any(verdict.correct for verdict in record.verdicts)
        session = int(record.provenance.get("session", 1))
        self.ends[session] = max(self.ends.get(session, 0.0), float(record.provenance.get("at_s", 0.0)))

    def _add_answer(self, answer: Answer) -> None:
        self.solved += 1
        self.stop_causes[answer.stop_cause] += 1
        self.truncated += answer.finish_reason == "length"
        self.no_answer += answer.final is None
        if not self.settings:
            events = (event for event in answer.trace if event.kind == "setting")
            self.settings = {name: value for event in events for name, value in event.data.items()}
        count = len(answer.candidates)
        self.candidates += count
        self.beside += generated_beside(answer)
        self.fewest = count if self.fewest is None else min(self.fewest, count)
        self.most = count if self.most is None else max(self.most, count)
        scores = [candidate.score for candidate in answer.candidates if candidate.score is not None]
        if scores:
            self.lowest = min(scores) if self.lowest is None else min(self.lowest, *scores)


def tally(records: Iterable[Record]) -> RunTotals:
    """Read every record once."""
    totals = RunTotals()
    for record in records:
        totals.add(record)
    return totals


def is_correct(record: Record) -> bool:
    """Whether the chosen answer is right; a failed problem is not."""
    return record.verdict is not None and record.verdict.correct


def cluster_of(record: Record) -> str:
    """Return the name of what is weighed together with the problem: its cluster, by default itself."""
    return str(record.provenance.get("cluster") or record.problem.id)


def usage_of(record: Record) -> Usage:
    """Return what one problem cost, with attempts that failed before; a failed one carries it in its provenance."""
    before = Usage(**record.provenance.get("spent_before", {}))
    own = record.answer.usage if record.answer is not None else Usage(**record.provenance.get("spent", {}))
    return own + before


def votes(record: Record) -> list[Vote]:
    """Return the candidates as voting sees them; one without a final answer abstains and its score is void.

    The verifier decides what is right, as it does for the chosen answer: one that reads whole texts needs no final.
    """
    if record.answer is None:
        return []
    finals = {candidate.final for candidate in record.answer.candidates if candidate.final is not None}
    keys = {final: answer_key(final, record.problem.kind) for final in sorted(finals)}
    class_of = classes(keys.values())
    return [
        Vote(
            key=None if candidate.final is None else class_of[keys[candidate.final]],
            correct=verdict.correct,
            score=None if candidate.final is None else candidate.score,
        )
        for candidate, verdict in zip(record.answer.candidates, record.verdicts, strict=True)
    ]


def exchangeable(records: Sequence[Record]) -> bool:
    """Whether there are candidates, each of them a draw of its problem's own prompt, and none was stopped."""
    return all(map(independent, records)) and any(record.answer and record.answer.candidates for record in records)


def independent(record: Record) -> bool:
    """Whether all candidates are draws of the problem's own prompt that nothing stopped; also where there is none."""
    answer = record.answer
    if answer is None:
        return True
    is_whole = answer.stop_cause == "done" and all(event.kind != "prune" for event in answer.trace)
    return is_whole and all(len(one.path) == 1 for one in answer.candidates)


def generated_beside(answer: Answer) -> int:
    """Return the tokens of requests beside the candidates' own draws, according to the trace."""
    draws = {candidate.path for candidate in answer.candidates}
    questions = (event for event in answer.trace if event.kind == "generate" and event.path not in draws)
    return sum(int(event.data.get("num_tokens") or 0) for event in questions)


SUMMARY = "summary.json"
UNTOLD = "not told"
"""The difficulty of a problem that has none, where others have one."""

IDENTITY = (
    "strategy", "params", "settings", "engine", "engine_params", "model", "scorer", "scorer_params", "task", "level",
    "seed", "problems_seed", "sampling", "thinking", "budget", "version", "counting",
)  # fmt: skip
"""Keys of a run's configuration that its summary repeats."""


def summarise(records: Sequence[Record], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary entry of one run; `config` is its run.json configuration and gives the seed of the intervals.

    The records are read once, and once more where there is a curve.
    """
    seed = derive(int(config["seed"]), "summary")
    totals = tally(records)
    accuracy = mean_interval(totals.right, totals.clusters, seed=seed)
    usage, count, seconds = totals.usage, max(totals.problems, 1), totals.seconds
    curve = _curve(records, totals, seed)
    coverage = totals.covered / count
    error = 2**0.5 * standard_error(totals.right, totals.clusters)
    return {
        **{name: config.get(name) for name in IDENTITY},
        **({"settings": {**(config.get("settings") or {}), **totals.settings}} if totals.settings else {}),
        "n": _width(totals, config),
        "problems": totals.problems,
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "intervals": METHOD,
        "coverage": coverage,
        "selection_regret": coverage - accuracy.value,
        **{name: _by_k(curve, kind) for name, kind in _AT_K.items()},
        "truncated": totals.truncated / count,
        "no_answer": totals.no_answer / count,
        "errors": totals.errors,
        "verdicts": dict(totals.verdicts),
        "stop_causes": dict(totals.stop_causes),
        "tokens_per_problem": usage.tokens / count,
        "flops_per_problem": usage.flops / count if usage.flops else None,
        "usage": dataclasses.asdict(usage),
        "seconds": seconds,
        "seconds_per_problem": seconds / count,
        "tokens_per_second": usage.tokens / seconds if seconds else None,
        "curve": curve,
        "by_difficulty": _by_difficulty(totals, seed),
        "temperature": config.get("sampling", {}).get("temperature"),
        "mde": minimum_detectable(error) if error > 0 else None,  # where nothing differs the spread is unknown
    }


_AT_K = {"pass_at_k": "pass", "maj_at_k": "majority", "best_of_k": "best_of_n", "weighted_at_k": "weighted"}


def total_usage(records: Sequence[Record]) -> Usage:
    """Return the sum of what all problems cost, the failed ones too."""
    return sum(map(usage_of, records), Usage())


def curve_values(pools: Sequence[Sequence[Vote]], kind: str, k: int, seed: int) -> list[float]:
    """Return per problem the expected accuracy of `kind` with k of its candidates; without any it is 0."""
    return [_KINDS[kind](pool, k, seed) if pool else 0.0 for pool in pools]


_KINDS: Mapping[str, Callable[[Sequence[Vote], int, int], float]] = {
    "pass": lambda pool, k, seed: pass_at_k(len(pool), sum(vote.correct for vote in pool), k),
    "majority": lambda pool, k, seed: majority_at_k(pool, k),
    "best_of_n": lambda pool, k, seed: best_at_k(pool, k),
    "weighted": lambda pool, k, seed: weighted_at_k(pool, k, np.random.default_rng(seed))[0],
}


def _width(totals: RunTotals, config: Mapping[str, Any]) -> int:
    """Return the strategy's n, or where it has none the most candidates that a problem had."""
    n = (config.get("params") or {}).get("n")
    if n is not None:
        return int(n)
    return 1 if totals.most is None else totals.most


def _curve(records: Sequence[Record], totals: RunTotals, seed: int) -> list[dict[str, Any]]:
    ladder = powers_of_two(totals.pool_size)
    if len(ladder) < 2:
        return []
    kinds = _kinds_of(totals)
    grid = [(kind, k) for kind in kinds for k in ladder]
    values = np.zeros((len(grid), totals.problems))
    for column, record in enumerate(records):
        pool, own_seed = votes(record), derive(seed, record.problem.id)  # so the order of the records is of no effect
        for row, (kind, k) in enumerate(grid):
            values[row, column] = _KINDS[kind](pool, k, own_seed) if pool else 0.0
    points = []
    for start, kind in zip(range(0, len(grid), len(ladder)), kinds, strict=True):
        intervals = mean_intervals(values[start : start + len(ladder)].T, totals.clusters, seed=seed)
        points += [_point(kind, k, interval, totals) for k, interval in zip(ladder, intervals, strict=True)]
    return points


def _kinds_of(totals: RunTotals) -> tuple[str, ...]:
    if totals.lowest is None:
        return ("pass", "majority")
    return ("pass", "majority", "best_of_n") if totals.lowest < 0 else ("pass", "majority", "best_of_n", "weighted")


def _point(kind: str, k: int, interval: Interval, totals: RunTotals) -> dict[str, Any]:
    usage, blind = totals.usage, kind in ("pass", "majority")
    part = k * totals.solved / (totals.candidates * totals.problems)  # over all draws, as a problem may have failed
    is_mixed = totals.beside or (blind and (usage.scored or usage.judged))
    return {
        "kind": kind,
        "k": k,
        "accuracy": interval.value,
        "low": interval.low,
        "high": interval.high,
        "tokens": ((usage.generated if blind else usage.tokens) - totals.beside) * part,
        "flops": None if is_mixed or not usage.flops else usage.flops * part,
    }


def _by_k(curve: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float]:
    return {str(point["k"]): point["accuracy"] for point in curve if point["kind"] == kind}


def _by_difficulty(totals: RunTotals, seed: int) -> dict[str, dict[str, Any]]:
    """Return accuracy per difficulty; empty where there are fewer than two."""
    groups: dict[str, tuple[list[float], list[str]]] = {}
    for right, cluster, name in zip(totals.right, totals.clusters, totals.difficulties, strict=True):
        rights, clusters = groups.setdefault(name, ([], []))
        rights.append(right)
        clusters.append(cluster)
    if len(groups) < 2:
        return {}
    accuracy: dict[str, dict[str, Any]] = {}
    for name, (rights, clusters) in sorted(groups.items(), key=lambda group: natural(group[0])):
        value, low, high = dataclasses.astuple(mean_interval(rights, clusters, seed=seed))
        accuracy[name] = {"problems": len(rights), "accuracy": value, "low": low, "high": high}
    return accuracy


def with_dollars(entry: Mapping[str, Any], prices: Prices | None) -> dict[str, Any]:
    """Return a summary entry with the run's dollars in all and per problem; unchanged without prices."""
    if prices is None:
        return dict(entry)
    total = prices.cost(Usage(**entry["usage"]))
    listed = {"prices": {"in": prices.prompt, "out": prices.generated}}
    return {**entry, **listed, "dollars": total, "dollars_per_problem": total / max(int(entry["problems"]), 1)}


def write_summary(folder: Path, entries: Sequence[Mapping[str, Any]]) -> Path:
    """Write `summary.json` into `folder`: {"schema", "runs": [entry, ...]}, replacing it in one step."""
    path = folder / SUMMARY
    replace_text(path, json.dumps({"schema": 1, "runs": _finite(list(entries))}, indent=2) + "\n")
    return path


def put_summary(folder: Path, entry: Mapping[str, Any]) -> None:
    """Write the entry of the run in `folder` itself; the entries of runs below it stay."""
    with alone_in(folder):  # a run below it may be writing its own
        others = read_summary(folder) if (folder / SUMMARY).is_file() else []
        write_summary(folder, [*(other for other in others if other.get("records") != "."), entry])


_ANEW = "delete it, and ttc eval writes it again from the records"


def read_summary(folder: Path) -> list[dict[str, Any]]:
    """Read the entries of `folder`; raises ConfigError without a summary and RecordError for a broken one.

    Each entry's `records` names its run folder relative to `folder` ("." for the same one).
    """
    path = folder / SUMMARY
    if not path.is_file():
        raise ConfigError(f"{folder} has no {SUMMARY}; give the command that began the run again")
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except (ValueError, KeyError, TypeError) as exc:
        raise RecordError(f"{path}: {type(exc).__name__}: {exc}; {_ANEW}") from exc
    if not isinstance(runs, list) or not all(isinstance(entry, dict) for entry in runs):
        raise RecordError(f"{path}: runs: expected a list of objects; {_ANEW}")
    for number, entry in enumerate(runs):
        if not isinstance(entry.get("strategy"), str):
            raise RecordError(f"{path}: runs[{number}].strategy: expected a name; {_ANEW}")
    return runs


def counted_apart(entries: Sequence[Mapping[str, Any]]) -> str:
    """Warn if these runs count FLOPs in different ways; empty if they do not, or have no FLOPs."""
    ways = {entry.get("counting") for entry in entries if (entry.get("usage") or {}).get("flops")}
    if len(ways) < 2:
        return ""
    return "these runs count FLOPs in different ways (counting in run.json): compare their tokens, not their FLOPs"


def _finite(value: Any) -> Any:
    """Replace what JSON cannot hold (a figure without data) by null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
