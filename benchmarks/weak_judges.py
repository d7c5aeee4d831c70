"""What `knockout` and `genselect` lose to the vote where the judge is weak, and what they gain where it is good.

    python -m benchmarks.weak_judges [--problems 1000] [--save benchmarks/results/weak_judges.json]

The strategies themselves run on a scripted model. Each of its draws is right with a chance that is even between 0 and 1
from problem to problem; wrong answers have Zipf weights. Its judge prefers the right one of two answers with a chance
of its own, tossed anew for each question (`anew`) or once for each pair of answers (`fixed`, as of a model that is sure
of what is wrong); asked for the best of several, it names a right one as often. `trust` 1e9 is the papers' rule, where
votes only break ties; at 2 the votes have a say. All runs draw the same answers. About two minutes on one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ttc import seeds
from ttc.core import Message, Problem, Prompt, Strategy
from ttc.core import Path as DrawPath
from ttc.engines.scripted import ScriptedEngine
from ttc.session.solve import solve
from ttc.strategies.genselect import genselect
from ttc.strategies.knockout import knockout
from ttc.strategies.majority import majority

RIGHT, NUM_WRONG = 0, 8
KINDS: tuple[tuple[str, Callable[..., Any], int], ...] = (
    ("knockout", knockout, 8),
    ("knockout", knockout, 16),
    ("genselect", genselect, 8),
)
ACCURACIES, WAYS, TRUSTS = (0.5, 0.55, 0.7, 0.85, 1.0), ("anew", "fixed"), (1e9, 2.0)
_BOX = re.compile(r"\\boxed\{(\d+)\}")
_TOTAL = sum(1 / rank for rank in range(1, NUM_WRONG + 1))


def model(accuracy: float, way: str) -> ScriptedEngine:
    """Answers, and judges answers."""

    def script(prompt: Prompt, path: DrawPath, key: int) -> str:
        asked = prompt.messages[-1].content
        shown = list(map(int, _BOX.findall(asked)))
        if not shown:
            return rf"\boxed{{{_drawn(seeds.uniform(seeds.derive(0, asked), 0), seeds.uniform(key, 0))}}}"
        tossed = key if way == "anew" else seeds.derive(1, prompt.problem_id, str(sorted(shown)))
        named = _preferred(shown, accuracy, seeds.uniform(tossed, 0), seeds.uniform(tossed, 1))
        place = shown.index(named)
        return f"Verdict: {'AB'[place]}" if "<answer_a>" in asked else f"Best: {place + 1}"

    return ScriptedEngine(script)


def _drawn(chance: float, u: float) -> int:
    """The answer of a draw."""
    if u < chance:
        return RIGHT
    left = (u - chance) / (1 - chance) * _TOTAL
    for rank in range(1, NUM_WRONG + 1):
        left -= 1 / rank
        if left < 0:
            return rank
    return NUM_WRONG


def _preferred(shown: Sequence[int], accuracy: float, u: float, other: float) -> int:
    """The answer that the judge prefers."""
    wrong = sorted(answer for answer in shown if answer != RIGHT)
    if RIGHT in shown and (u < accuracy or not wrong):
        return RIGHT
    return wrong[int(other * len(wrong))]


async def share_right(strategy: Strategy, accuracy: float, way: str, problems: int) -> tuple[float, float]:
    """Share of right answers, and requests per problem."""
    engine, right, calls = model(accuracy, way), 0, 0
    for number in range(problems):
        problem = Problem(f"p{number}", (Message("user", f"problem {number}"),), kind="number")
        answer = await solve(problem, engine=engine, strategy=strategy, seed=1)
        right += answer.final == str(RIGHT)
        calls += answer.usage.calls
    return right / problems, calls / problems


async def measure(problems: int) -> dict[str, Any]:
    """Every cell of the table."""
    voted = {n: (await share_right(partial(majority, n=n), 1.0, "anew", problems))[0] for n in (8, 16)}
    rows = []
    for (name, strategy, n), way, accuracy in product(KINDS, WAYS, ACCURACIES):
        row: dict[str, Any] = {"strategy": name, "n": n, "verdicts": way, "judge": accuracy, "vote": voted[n]}
        for trust in TRUSTS:
            right, calls = await share_right(partial(strategy, n=n, trust=trust), accuracy, way, problems)
            row |= {f"trust {trust:g}": right, f"calls {trust:g}": calls}
        rows.append(row)
        print(row, flush=True)
    return {"problems": problems, "rows": rows}


def main() -> None:
    """Print every row, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--save", type=Path, help="where the numbers go")
    args = parser.parse_args()
    outcome = asyncio.run(measure(args.problems))
    if args.save:
        args.save.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
