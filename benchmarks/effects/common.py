"""Common parts of the effects: problems, runs of a strategy on the simulated engine, and claims with intervals.

Everything goes through the toolkit's own strategies, engine and scorer. Problems are shared by all runs of a level, so
differences are paired, with 95 % intervals over problems.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import math
import resource
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from evals.numbers.metrics import Vote, best_at_k, majority_at_k, pass_at_k, weighted_at_k
from evals.numbers.statistics import mean_interval, paired_interval
from ttc import answers
from ttc.core import Answer, Message, Problem, Sampling, Scorer
from ttc.engines.simulated import simulated, truth
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree

SEED = 2026
SAMPLING = Sampling(max_tokens=4096)


@dataclass(frozen=True)
class Cell:
    """One strategy on one kind of problem: right or wrong for each problem, and what it cost."""

    name: str
    right: list[float]
    tokens: float
    expected: float | None = None

    def row(self) -> dict[str, Any]:
        """Its accuracy with the interval, for the saved result."""
        found = mean_interval(self.right, range(len(self.right)), seed=SEED)
        return {
            "run": self.name,
            "accuracy": found.value,
            "low": found.low,
            "high": found.high,
            "tokens": self.tokens,
            "expected": self.expected,
        }


@dataclass
class Effect:
    """A statement, the runs that it is about, and the differences that it claims to be positive."""

    title: str
    cells: list[Cell] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def claim(self, better: Cell, worse: Cell, margin: float = 0.0) -> None:
        """`better` is above `worse` by more than `margin`, paired by problem."""
        found = paired_interval(worse.right, better.right, range(len(better.right)), seed=SEED)
        self.claims.append({"claim": f"{better.name} > {worse.name}", **asdict(found), "holds": found.low > margin})

    def agree(self, cell: Cell) -> None:
        """`cell` agrees with its closed form."""
        if cell.expected is None:
            raise ValueError(f"{cell.name} has no closed form")
        value, count = math.fsum(cell.right) / len(cell.right), len(cell.right)
        error = 3 * math.sqrt(max(cell.expected * (1 - cell.expected), 1 / count) / count)
        self.claims.append(
            {
                "claim": f"{cell.name} = {cell.expected:.4f}",
                "value": value,
                "low": value - error,
                "high": value + error,
                "holds": abs(value - cell.expected) <= error,
            }
        )

    def to_json(self) -> dict[str, Any]:
        """The effect with its runs and claims, for the saved result."""
        return {
            "effect": self.title,
            "holds": all(claim["holds"] for claim in self.claims),
            "runs": [cell.row() for cell in self.cells],
            "claims": self.claims,
        }


def stamp() -> dict[str, Any]:
    """When, of which commit and at what cost in processor time so far, for a saved result."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "cpu_seconds": round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 1),
    }


def problems(num: int, level: int | None) -> list[Problem]:
    """The shared problems of a level."""
    at = "" if level is None else f" at level {level}"
    return [
        Problem(f"{level}-{i}", (Message("user", f"What is quantity {i} of batch {SEED}{at}?"),), "number")
        for i in range(num)
    ]


def is_right(problem: Problem, final: str | None) -> bool:
    """Whether `final` is what the engine gives when no step fails."""
    return final == truth(problem.messages[0].content)


async def answer_all(asked: Sequence[Problem], engine: Any, strategy: Any) -> list[Answer]:
    """Solve the problems one after another."""
    return [await solve(problem, engine=engine, strategy=strategy, seed=SEED, sampling=SAMPLING) for problem in asked]


def run(name: str, asked: Sequence[Problem], strategy: Any, *, expected: float | None = None, **engine: Any) -> Cell:
    """Run a strategy on the simulated engine."""
    found = asyncio.run(answer_all(asked, simulated(**engine), strategy))
    right = [float(is_right(problem, answer.final)) for problem, answer in zip(asked, found, strict=True)]
    return Cell(name, right, sum(answer.usage.tokens for answer in found) / len(found), expected)


def pool(asked: Sequence[Problem], scorer: Scorer | None, n: int, **engine: Any) -> list[list[Vote]]:
    """Draw n scored samples of each problem, as votes, for exact curves over k."""
    strategy = functools.partial(majority, n=n) if scorer is None else functools.partial(best_of_n, scorer=scorer, n=n)
    found = asyncio.run(answer_all(asked, simulated(**engine), strategy))
    return [
        [
            Vote(None if c.final is None else answers.key(c.final, "number"), is_right(problem, c.final), c.score)
            for c in answer.candidates
        ]
        for problem, answer in zip(asked, found, strict=True)
    ]


def at_k(name: str, votes: Sequence[Sequence[Vote]], kind: str, k: int, expected: float | None = None) -> Cell:
    """The exact expected accuracy with k of the pool."""
    rng = np.random.default_rng(SEED)
    rules: dict[str, Callable[[Sequence[Vote]], float]] = {
        "majority": lambda votes: majority_at_k(votes, k),
        "best": lambda votes: best_at_k(votes, k),
        "weighted": lambda votes: weighted_at_k(votes, k, rng)[0],
        "pass": lambda votes: pass_at_k(len(votes), sum(vote.correct for vote in votes), k),
    }
    return Cell(f"{name} N={k}", [rules[kind](pool) for pool in votes], math.nan, expected)


def search(policy: str, n: int, scorer: Scorer, select: str = "weighted", beam_width: int = 4) -> Any:
    """A tree search with its parameters."""
    return functools.partial(tree, scorer=scorer, n=n, policy=policy, select=select, beam_width=beam_width)
