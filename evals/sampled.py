"""Pools of recorded draws as calibration reads them: who is right, what a draw cost, and answers as names of classes.

A draw is a plain sample, or a subtree of a search that consists of independent ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.run import read_run
from ttc import answers
from ttc.aggregate import aggregate
from ttc.core import Candidate, Record
from ttc.errors import ConfigError
from ttc.replay import Draw, pool_of

__all__ = ["CLASSES", "Sampled", "named", "plain", "read_pools"]

CLASSES = "exact"
"""Answer kind of class names."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One problem's pool: its draws, each the places of its candidates and its cost in tokens; who of them is right.

    A plain sample is a draw of one candidate, a subtree one of its leaves. Finals are the names of their answer
    classes, so that a vote over them needs to read no answer again.
    """

    candidates: tuple[Candidate, ...]
    right: tuple[bool, ...]
    draws: tuple[tuple[int, ...], ...]
    tokens: tuple[float, ...]

    def of(self, taken: Sequence[int]) -> list[Candidate]:
        """The candidates of some draws."""
        return [self.candidates[i] for draw in taken for i in self.draws[draw]]


def plain(candidates: Sequence[Candidate], right: Sequence[bool], tokens: Sequence[float]) -> Sampled:
    """Return a pool of plain samples; finals are already names."""
    return Sampled(tuple(candidates), tuple(right), tuple((i,) for i in range(len(candidates))), tuple(tokens))


def read_pools(folder: Path) -> tuple[list[Sampled], int]:
    """Return the pools of a run folder and the width of their draws.

    Raises:
        ConfigError: its samples are no fair pool, or it is a search that does not consist of independent subtrees.
    """
    run = read_run(folder)
    records = [record for record in run.records if record.answer is not None]
    if not records:
        raise ConfigError(f"{folder} holds no solved problem, so there is nothing to calibrate on")
    policy = run.config["params"].get("policy")
    if policy is None:
        return [_samples(record) for record in records], 1
    width = int(run.config["params"]["beam_width"])
    cut = any(record.answer.stop_cause != "done" for record in records if record.answer is not None)
    if policy != "dvts" or int(run.config["params"]["n"]) % width or cut:
        raise ConfigError(
            f"{folder}: of searches, only tree with policy=dvts, n a multiple of beam_width and no budget can calibrate"
        )
    return [_subtrees(record, width) for record in records], width


def _samples(record: Record) -> Sampled:
    draws = pool_of(record)
    right = _verdicts(record)
    candidates = named([_scored(draw) for draw in draws.values()], record.problem.kind)
    return plain(
        candidates,
        [right[candidate.path] for candidate in candidates],
        [float(draw.num_tokens + draw.num_scored) for draw in draws.values()],
    )


def _subtrees(record: Record, width: int) -> Sampled:
    """The subtrees of a search as draws; scored tokens are shared out by generated ones."""
    answer = record.answer
    if answer is None:
        raise ConfigError(f"problem {record.problem.id!r} failed")
    grown: dict[int, float] = defaultdict(float)
    for event in answer.trace:
        if event.kind == "generate":
            grown[event.path[0] // width] += event.data["num_tokens"]
    each = answer.usage.tokens / max(sum(grown.values()), 1)
    places: dict[int, list[int]] = {number: [] for number in sorted(grown)}
    for at, candidate in enumerate(answer.candidates):
        places[candidate.path[0] // width].append(at)
    right = _verdicts(record)
    return Sampled(
        named(answer.candidates, record.problem.kind),
        tuple(right[candidate.path] for candidate in answer.candidates),
        tuple(tuple(found) for found in places.values()),
        tuple(each * grown[number] for number in places),
    )


def _verdicts(record: Record) -> dict[tuple[int, ...], bool]:
    candidates = () if record.answer is None else record.answer.candidates
    return {c.path: verdict.correct for c, verdict in zip(candidates, record.verdicts, strict=True)}


def _scored(draw: Draw) -> Candidate:
    """The candidate with the score that `auto` will see."""
    return replace(draw.candidate, score=None if draw.score is None else aggregate(draw.score))


def named(candidates: Sequence[Candidate], kind: str) -> tuple[Candidate, ...]:
    """Return the candidates with the names of their answer classes for their answers."""
    names: dict[str, str] = {}
    return tuple(
        c if c.final is None else replace(c, final=names.setdefault(answers.key(c.final, kind), f"class{len(names)}"))
        for c in candidates
    )
