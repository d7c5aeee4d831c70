"""Ten effects of test-time compute on the simulated reasoner, each with its intervals.

    python -m benchmarks.simulated_effects --json benchmarks/results/simulated_effects.json

Every run goes through the toolkit's own strategies, engine and scorer; nothing is computed beside them. Problems are
shared by all runs of a level, so differences are paired; intervals are 95 % bootstraps over problems. `expected` is a
closed form where there is one. An effect `holds` when the lower bound of each of its differences is above 0, or each of
its closed forms lies in its interval widened to three standard errors.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evals.metrics import Vote, best_at_k, majority_at_k, pass_at_k, weighted_at_k
from evals.statistics import mean_interval, paired_interval
from ttc import answers, seeds
from ttc.core import Answer, Message, Problem, Prompt, Sampling, Score, Scorer, Usage, UsageSink
from ttc.engines._simulation import GOOD, last_state
from ttc.engines.simulated import simulated, truth
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.solve import solve
from ttc.strategies.adaptive import adaptive
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
        assert cell.expected is not None
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
    import numpy as np

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


class Binary:
    """A verifier of finished answers with known rates of error; keyed by the text."""

    def __init__(self, true_positive: float, false_positive: float) -> None:
        self._rates = {True: true_positive, False: false_positive}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Accept or reject each finished answer."""
        for prompt in prompts:
            on_usage(Usage(scored=len(prompt.generated_ids)))
        return [Score(float(self._accepts(prompt))) for prompt in prompts]

    def _accepts(self, prompt: Prompt) -> bool:
        good = last_state(prompt.generated_text) == GOOD
        return seeds.uniform(seeds.derive(SEED, "binary", prompt.problem_id, prompt.path), 0) < self._rates[good]

    def release(self, problem_id: str) -> None:
        """Nothing is kept."""


def majority_inverts(num: int) -> Effect:
    """Measure effect 1."""
    effect = Effect("majority inverts where the modal answer is wrong, and saturates where it is right")
    for level in (1, 2, 4):
        votes = pool(problems(num, level), None, 256)
        few, many = (at_k(f"level {level} majority", votes, "majority", k) for k in (1, 256))
        effect.cells += [few, many]
        effect.claim(*((few, many) if level == 4 else (many, few)))
    return effect


def over_optimisation(num: int) -> Effect:
    """Measure effect 2."""
    effect = Effect("a hackable scorer is over-optimised: argmax falls with N, in a beam too; a weighted vote does not")
    asked, scorer = problems(num, 1), simulated_scorer(preset="hackable")
    votes = pool(asked, scorer, 256, preset="hackable")
    best = [at_k("best-of-n", votes, "best", k) for k in (4, 16, 64, 256)]
    weighted = [at_k("weighted best-of-n", votes, "weighted", k) for k in (4, 256)]
    beams = [
        run(f"beam N={n}", asked, search("beam", n, scorer, "argmax"), preset="hackable") for n in (4, 16, 64, 256)
    ]
    effect.cells += best + beams + weighted
    effect.claim(best[0], best[-1])
    effect.claim(beams[0], beams[-1])
    effect.claim(weighted[-1], best[-1])
    effect.claim(weighted[-1], beams[-1])
    return effect


def dvts_beats_beam(num: int) -> Effect:
    """Measure effect 3."""
    effect = Effect("independent subtrees beat one beam at large N under a hackable scorer")
    asked, scorer = problems(num, 3), simulated_scorer(preset="hackable")
    cells = {
        (policy, n): run(f"{policy} N={n}", asked, search(policy, n, scorer), preset="hackable")
        for policy in ("beam", "dvts")
        for n in (4, 256)
    }
    effect.cells += cells.values()
    effect.claim(cells["dvts", 256], cells["beam", 256])
    return effect


def search_beats_sampling(num: int) -> Effect:
    """Measure effect 4."""
    effect = Effect("search beats sampling where problems are hard and N is small")
    asked, scorer = problems(num, 5), simulated_scorer(preset="good")
    best = run("good, level 5, best-of-n N=4", asked, functools.partial(best_of_n, scorer=scorer, n=4))
    beam = run("good, level 5, beam N=4", asked, search("beam", 4, scorer))
    effect.cells += [best, beam]
    effect.claim(beam, best)
    asked, scorer = problems(num, 4), simulated_scorer(preset="weak")
    weighted = run(
        "weak, level 4, weighted best-of-n N=16",
        asked,
        functools.partial(best_of_n, scorer=scorer, n=16, select="weighted"),
        preset="weak",
    )
    effect.cells.append(weighted)
    for policy in ("beam", "dvts", "particle"):
        cell = run(f"weak, level 4, {policy} N=16", asked, search(policy, 16, scorer), preset="weak")
        effect.cells.append(cell)
        effect.claim(cell, weighted)
    return effect


def sampling_beats_maximising(num: int) -> Effect:
    """Measure effect 5."""
    effect = Effect("with a weak scorer on hard problems, resampling beats a beam and REBASE at large N")
    asked, scorer = problems(num, 5), simulated_scorer(preset="weak")
    names = {"particle:weight=odds": "particle", "beam": "beam", "rebase": "rebase", "dvts": "dvts"}
    cells = {
        name: run(f"{name} N=128", asked, search(policy, 128, scorer), preset="weak") for policy, name in names.items()
    }
    effect.cells += cells.values()
    for policy in ("beam", "rebase"):
        effect.claim(cells["particle"], cells[policy])
    return effect


def no_universal_winner(num: int) -> Effect:
    """Measure effect 6."""
    effect = Effect(
        "no strategy wins everywhere: a beam of 4 beats weighted best-of-256 where hard, and loses where easy"
    )
    scorer = simulated_scorer(preset="weak")
    beams: list[list[float]] = []
    large: list[list[float]] = []
    for level in range(1, 6):
        asked = problems(num, level)
        beam = run(f"level {level} beam N=4", asked, search("beam", 4, scorer), preset="weak")
        votes = pool(asked, scorer, 256, preset="weak")
        weighted = at_k(f"level {level} weighted best-of-n", votes, "weighted", 256)
        effect.cells += [beam, weighted]
        beams.append(beam.right)
        large.append(weighted.right)
    easy, hard = slice(0, 3), slice(3, 5)
    for levels, name in ((easy, "levels 1 to 3"), (hard, "levels 4 and 5")):
        small, wide = (
            Cell(f"{name}, {run_name}", [value for level in rows[levels] for value in level], math.nan)
            for rows, run_name in ((beams, "beam N=4"), (large, "weighted best-of-n N=256"))
        )
        effect.cells += [small, wide]
        effect.claim(*((wide, small) if levels is easy else (small, wide)))
    return effect


def coverage_laws(num: int) -> Effect:
    """Measure effect 7."""
    effect = Effect("coverage and perfect-scorer searches follow their closed forms; the selection gap widens with N")
    a, b = 0.3, 2.5
    votes = pool(problems(8 * num, None), None, 128, spread=(a, b), steps=2)
    for k in (1, 10, 100):
        law = 1 - math.exp(math.lgamma(b + k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + k))
        cell = at_k("Beta(0.3, 2.5) coverage", votes, "pass", k, law)
        effect.cells.append(cell)
        effect.agree(cell)
    small, wide = (
        Cell(
            f"selection gap N={k}",
            [
                c - m
                for c, m in zip(at_k("", votes, "pass", k).right, at_k("", votes, "majority", k).right, strict=True)
            ],
            math.nan,
        )
        for k in (4, 128)
    )
    effect.claim(wide, small)
    p, steps, n, m = 0.3, 8, 16, 4
    perfect = simulated_scorer()
    laws = {
        "dvts": 1 - (1 - (1 - (1 - p) ** m) ** steps) ** (n // m),
        "particle": (1 - (1 - p) ** n) ** steps,
    }
    for policy, law in laws.items():
        cell = run(
            f"perfect scorer, {policy} N=16",
            problems(2 * num, None),
            search(policy, n, perfect, "argmax", m),
            p=p,
            steps=steps,
            expected=law,
        )
        effect.cells.append(cell)
        effect.agree(cell)
    return effect


def verifier_ceiling(num: int) -> Effect:
    """Measure effect 8."""
    effect = Effect("an imperfect verifier is a ceiling: best-of-n levels off at its precision")
    p, tpr, fpr = 0.2, 0.8, 0.1
    votes = pool(problems(4 * num, None), Binary(tpr, fpr), 64, p=p, steps=1)
    accept = p * tpr + (1 - p) * fpr
    for n in (1, 4, 16, 64):
        missed = (1 - accept) ** n
        law = (1 - missed) * p * tpr / accept + missed * p * (1 - tpr) / (1 - accept)
        cell = at_k("best-of-n", votes, "best", n, law)
        effect.cells.append(cell)
        effect.agree(cell)
    return effect


def adaptive_saves(num: int) -> Effect:
    """Measure effect 9."""
    effect = Effect("adaptive stopping saves most where answers agree, at next to no accuracy")
    for q, samples, accuracy in ((0.9, 5.6218, 0.9999), (0.8, 8.7175, 0.9981), (0.7, 15.1137, 0.9851)):
        asked = problems(4 * num, None)
        found = asyncio.run(answer_all(asked, simulated(p=q, steps=1, num_wrong=1), functools.partial(adaptive, n=40)))
        right = [float(is_right(problem, answer.final)) for problem, answer in zip(asked, found, strict=True)]
        drawn = [len(answer.candidates) for answer in found]
        tokens = sum(answer.usage.tokens for answer in found) / len(found)
        cell = Cell(f"q={q} adaptive", right, tokens, accuracy)
        mean = sum(drawn) / len(drawn)
        error = 3 * math.sqrt(sum((d - mean) ** 2 for d in drawn) / len(drawn) / len(drawn))
        effect.cells.append(cell)
        effect.agree(cell)
        effect.claims.append(
            {
                "claim": f"q={q}: {samples} samples in place of 40",
                "value": mean,
                "low": mean - error,
                "high": mean + error,
                "holds": abs(mean - samples) <= error,
            }
        )
    return effect


def particles_scale(num: int) -> Effect:
    """Measure effect 10."""
    effect = Effect("with a perfect scorer particles need few paths at any depth, best-of-n exponentially many")
    p, n, perfect = 0.5, 8, simulated_scorer()
    for steps in (2, 4, 8, 16):
        asked = problems(num, None)
        filtered = run(
            f"T={steps} particle N={n}",
            asked,
            search("particle", n, perfect, "argmax"),
            p=p,
            steps=steps,
            expected=(1 - (1 - p) ** n) ** steps,
        )
        best = run(
            f"T={steps} best-of-n N={n}",
            asked,
            functools.partial(best_of_n, scorer=perfect, n=n),
            p=p,
            steps=steps,
            expected=1 - (1 - p**steps) ** n,
        )
        effect.cells += [filtered, best]
        effect.agree(filtered)
        effect.agree(best)
        if steps >= 4:
            effect.claim(filtered, best)
    return effect


EFFECTS = (
    majority_inverts,
    over_optimisation,
    dvts_beats_beam,
    search_beats_sampling,
    sampling_beats_maximising,
    no_universal_winner,
    coverage_laws,
    verifier_ceiling,
    adaptive_saves,
    particles_scale,
)


def main() -> None:
    """Run all effects and print, or save, what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=120, help="problems per run (some effects take multiples)")
    parser.add_argument("--only", nargs="*", default=[], help="names of effects, all without")
    parser.add_argument("--json", type=Path, help="where to save the result")
    args = parser.parse_args()
    results = []
    for make in EFFECTS:
        if args.only and make.__name__ not in args.only:
            continue
        started = time.perf_counter()
        result = {**make(args.problems).to_json(), "seconds": round(time.perf_counter() - started, 1)}
        results.append(result)
        print(f"{'holds' if result['holds'] else 'FAILS'}  {result['effect']}  ({result['seconds']} s)", flush=True)
        for row in result["runs"]:
            wanted = "" if row["expected"] is None else f"  (closed form {row['expected']:.3f})"
            print(f"    {row['run']:45s} {row['accuracy']:.3f} ({row['low']:.3f} to {row['high']:.3f}){wanted}")
        for claim in result["claims"]:
            if not claim["holds"]:
                print(f"    NOT: {claim['claim']}: {claim['value']:.3f} ({claim['low']:.3f} to {claim['high']:.3f})")
        if args.json:
            saved = {"problems": args.problems, "seed": SEED, "effects": results}
            args.json.write_text(json.dumps(saved, indent=1, allow_nan=True).replace("NaN", "null") + "\n")


if __name__ == "__main__":
    main()
