"""Pools of recorded draws as calibration reads them: who is right, what a draw cost, and answers as names of classes.

A draw is a plain sample, or an island of a search that consists of independent ones (the subtrees of DVTS are such). A
run of one greedy answer a problem can open the pools of others: their draw 0 is then the greedy answer.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evals.run_folder import read_run
from ttc import answers
from ttc.allocation.table import DrawKind
from ttc.answers import kind_of
from ttc.choosing.selection import aggregate
from ttc.core import Candidate, Record
from ttc.errors import ConfigError
from ttc.replay import RecordedDraw, pool_of

CLASSES = kind_of("exact").key
"""Answer kind of class names."""


@dataclass(frozen=True, slots=True)
class DrawPool:
    """One problem's pool: its draws, each the places of its candidates and its cost in tokens; who of them is right.

    A plain sample is a draw of one candidate, an island one of its leaves. Finals are the names of their answer
    classes, so that a vote over them needs to read no answer again. Where the greedy answer opens, it is draw 0.
    """

    candidates: tuple[Candidate, ...]
    right: tuple[bool, ...]
    draws: tuple[tuple[int, ...], ...]
    tokens: tuple[float, ...]
    greedy: bool = False

    def of(self, taken: Sequence[int]) -> list[Candidate]:
        """The candidates of some draws."""
        return [self.candidates[i] for draw in taken for i in self.draws[draw]]

    def order(self, rng: np.random.Generator) -> list[int]:
        """A random order of the draws, as a run could have drawn them: the greedy answer stays first."""
        fixed = int(self.greedy)
        return [*range(fixed), *(fixed + int(i) for i in rng.permutation(len(self.draws) - fixed))]

    def cost(self, taken: Sequence[int]) -> float:
        """Tokens of some draws."""
        return sum(self.tokens[draw] for draw in taken)

    def first(self, n: int) -> DrawPool:
        """The pool of its first n draws."""
        return replace(self, draws=self.draws[:n], tokens=self.tokens[:n])


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of the problems of a run, by their ids; all draws are of one kind."""

    kind: DrawKind
    by_id: Mapping[str, DrawPool]

    def only(self, names: Sequence[str]) -> Pools:
        """The pools of some problems, in that order."""
        return replace(self, by_id={name: self.by_id[name] for name in names})

    def first(self, n: int) -> Pools:
        """The pools of the first n draws of each problem."""
        return replace(self, by_id={name: pool.first(n) for name, pool in self.by_id.items()})

    @property
    def depth(self) -> int:
        """Draws that every problem has."""
        return min(len(pool.draws) for pool in self.by_id.values())

    @property
    def spent(self) -> int:
        """Tokens that all draws took."""
        return round(sum(sum(pool.tokens) for pool in self.by_id.values()))


def plain(candidates: Sequence[Candidate], right: Sequence[bool], tokens: Sequence[float]) -> DrawPool:
    """Return a pool of plain samples; finals are already names."""
    return DrawPool(tuple(candidates), tuple(right), tuple((i,) for i in range(len(candidates))), tuple(tokens))


def read_pools(folder: Path) -> Pools:
    """Return the pools of a run folder.

    Raises:
        ConfigError: its samples are no fair pool, or it is a search that does not consist of independent islands.
    """
    run = read_run(folder)
    records = [record for record in run.records if record.answer is not None]
    if not records:
        raise ConfigError(f"{folder} holds no solved problem, so there is nothing to calibrate on")
    kind = _kind(folder, run.config, records)
    read: Callable[[Record], DrawPool] = _samples if not kind.search else lambda record: _islands(record, kind.width)
    return Pools(kind, {record.problem.id: read(record) for record in records})


def _kind(folder: Path, config: Mapping[str, Any], records: Sequence[Record]) -> DrawKind:
    """The kind of the draws of a run."""
    params = dict(config["params"])
    scored = config.get("scorer") is not None
    if config["strategy"] != "tree":
        cold = params.get("temperature", config["sampling"]["temperature"])
        cold = config["sampling"]["temperature"] if cold is None else cold
        return DrawKind(scored=scored, greedy=cold == 0)
    n, islands = int(params.pop("n")), int(params.pop("islands", 1))
    params.pop("select")
    if islands == 1 and params["policy"] == "dvts":
        islands, rest = divmod(n, int(params["beam_width"]))
        islands = 0 if rest else islands
    stopped_early = any(record.answer.stop_cause != "done" for record in records if record.answer is not None)
    if not islands or (islands == 1 and params["policy"] != "dvts") or stopped_early:
        raise ConfigError(
            f"{folder}: of searches, only tree with islands of its own (islands=4, or policy=dvts with n a multiple of "
            "beam_width) and no budget can calibrate"
        )
    return DrawKind(width=n // islands, scored=True, search=params)


def opened(greedy: Pools, pools: Pools) -> Pools:
    """Return the pools with the greedy answer of each problem as their draw 0; problems that have both.

    Raises:
        ConfigError: no problem is in both runs, or only one of them was scored.
    """
    shared = {name: pool for name, pool in pools.by_id.items() if name in greedy.by_id}
    if not shared or greedy.kind.scored != pools.kind.scored:
        raise ConfigError(
            "the run of greedy answers must hold the problems of the other runs, and a scorer where they have one: "
            "ttc eval --strategy best_of_n:n=1 --temperature 0"
        )
    by_id = {name: _before(greedy.by_id[name], pool) for name, pool in shared.items()}
    return Pools(replace(pools.kind, greedy=True), by_id)


def _before(opening: DrawPool, pool: DrawPool) -> DrawPool:
    """One problem's greedy answer, then its draws."""
    moved = tuple(tuple(i + 1 for i in draw) for draw in pool.draws)
    first = replace(opening.candidates[0], path=(-1,))
    return DrawPool(
        (first, *pool.candidates),
        (opening.right[0], *pool.right),
        ((0,), *moved),
        (opening.tokens[0], *pool.tokens),
        greedy=True,
    )


def unscored(pools: Pools) -> Pools:
    """Return the pools of plain samples as they are without their scorer: cheaper, and only voted on."""
    return Pools(replace(pools.kind, scored=False), {name: _unscored(pool) for name, pool in pools.by_id.items()})


def _unscored(pool: DrawPool) -> DrawPool:
    return replace(
        pool,
        candidates=tuple(replace(c, score=None) for c in pool.candidates),
        tokens=tuple(float(pool.candidates[draw[0]].num_tokens) for draw in pool.draws),
    )


def _samples(record: Record) -> DrawPool:
    draws = pool_of(record)
    right = _verdicts(record)
    candidates = named([_scored(draw) for draw in draws.values()], record.problem.kind)
    return plain(
        candidates,
        [right[candidate.path] for candidate in candidates],
        [float(draw.num_tokens + draw.num_scored) for draw in draws.values()],
    )


def _islands(record: Record, width: int) -> DrawPool:
    """The islands of a search as draws; scored tokens are shared out by generated ones."""
    answer = record.answer
    if answer is None:
        raise ConfigError(f"problem {record.problem.id!r} failed")
    lengths: dict[int, float] = defaultdict(float)
    for event in answer.trace:
        if event.kind == "generate":
            lengths[event.path[0] // width] += event.data["num_tokens"]
    each = answer.usage.tokens / max(sum(lengths.values()), 1)
    places: dict[int, list[int]] = {number: [] for number in sorted(lengths)}
    for at, candidate in enumerate(answer.candidates):
        places[candidate.path[0] // width].append(at)
    right = _verdicts(record)
    return DrawPool(
        named(answer.candidates, record.problem.kind),
        tuple(right[candidate.path] for candidate in answer.candidates),
        tuple(tuple(leaves) for leaves in places.values()),
        tuple(each * lengths[number] for number in places),
    )


def _verdicts(record: Record) -> dict[tuple[int, ...], bool]:
    candidates = () if record.answer is None else record.answer.candidates
    return {c.path: verdict.correct for c, verdict in zip(candidates, record.verdicts, strict=True)}


def _scored(draw: RecordedDraw) -> Candidate:
    """The candidate with the score that `auto` will see."""
    return replace(draw.candidate, score=None if draw.score is None else aggregate(draw.score))


def named(candidates: Sequence[Candidate], kind: str) -> tuple[Candidate, ...]:
    """Return the candidates with names of their answer classes for their answers; equal ones in all runs."""
    return tuple(c if c.final is None else replace(c, final=_class(answers.key(c.final, kind))) for c in candidates)


def _class(key: str) -> str:
    return "class" + hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
