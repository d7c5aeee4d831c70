"""A plain step-wise beam search by the reward model, to check what the pair of weights can do.

The toolkit's own tree search is in `ttc/search`; this one needs only the weights, keeps no caches and
runs all problems in lock-step. Paper: Snell et al., arXiv 2408.03314. Cost: beams x children paths, all
prefixes computed again at every step. Left out: everything about speed.
"""

from dataclasses import dataclass, replace
from typing import Any

from evals.arithmetic import STEP_DELIMITER, Expression
from train.nano import prm, rollouts
from train.nano.rollouts import Rollout
from train.nano.sample import Draw, Sampler


@dataclass(frozen=True, slots=True)
class Search:
    """Width of the search; `depth` bounds the number of steps."""

    beams: int = 4
    children: int = 4
    depth: int = 40


@dataclass(frozen=True, slots=True)
class Found:
    """The chosen path of one problem and the tokens that all its paths cost."""

    rollout: Rollout
    tokens: int


def search(
    teacher: Sampler,
    scorer: Any,
    tokenizer: Any,
    asked: list[Expression],
    draw: Draw,
    shape: Search,
) -> list[Found]:
    """Search every problem; the best finished path wins, the best unfinished one if none is finished."""
    delimiter = tokenizer.encode(STEP_DELIMITER, add_special_tokens=False)[0]
    end = tokenizer.eos_token_id
    live: list[list[list[int]]] = [[[]] for _ in asked]
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in asked]
    tokens = [0] * len(asked)
    prompts = [rollouts.prompt_ids(tokenizer, problem, True) for problem in asked]
    for depth in range(shape.depth):
        jobs = [
            (at, path)
            for at, paths in enumerate(live)
            for path in paths
            for _ in range(shape.children * (shape.beams if depth == 0 else 1))
        ]
        if not jobs:
            break
        step = replace(draw, stop=(delimiter,), seed=draw.seed * 1000 + depth)
        grown = teacher([prompts[at] + path for at, path in jobs], step)
        paths = [path + more for (_, path), more in zip(jobs, grown, strict=True)]
        for (at, _), more in zip(jobs, grown, strict=True):
            tokens[at] += len(more)
        values = prm.scores(
            scorer, [prompts[at] + p for (at, _), p in zip(jobs, paths, strict=True)]
        )
        candidates: list[list[tuple[float, list[int]]]] = [[] for _ in asked]
        for (at, _), path, value in zip(jobs, paths, values, strict=True):
            (ended if path[-1] == end else candidates)[at].append((value[-1], path))
        live = [_best(found, shape.beams - len(ended[at])) for at, found in enumerate(candidates)]
    return [
        Found(_chosen(problem, prompts[at], ended[at], live[at]), tokens[at])
        for at, problem in enumerate(asked)
    ]


def _best(candidates: list[tuple[float, list[int]]], width: int) -> list[list[int]]:
    """Return the paths of the highest scores, each path once."""
    kept: list[list[int]] = []
    for _, path in sorted(candidates, key=lambda pair: -pair[0]):
        if len(kept) < width and path not in kept:
            kept.append(path)
    return kept


def _chosen(
    problem: Expression,
    prompt: list[int],
    ended: list[tuple[float, list[int]]],
    live: list[list[int]],
) -> Rollout:
    if ended:
        return Rollout(problem, "think", prompt, max(ended, key=lambda pair: pair[0])[1])
    return Rollout(problem, "think", prompt, live[0] if live else [])
