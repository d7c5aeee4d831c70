"""Measure what the model card claims, on held-out problems, with the weights that ship.

What: accuracy by level, sampled accuracy, majority, pass@16 and best-of-16 by the reward model from one
pool, step-wise search, thinking budgets, one `Wait`, and the reward model's AUC at steps and at answers.
Each figure comes with n problems and a 95 % interval over problems.
Cost: a few CPU minutes for 200 problems. Left out: FLOPs and paired tests, which `ttc eval` gives.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals.arithmetic import DEFAULT_LEVEL, LEVELS, Expression
from train.nano import prm, rollouts
from train.nano.rollouts import Rollout
from train.nano.sample import Draw, Sampler
from train.nano.search import Search, search

BUDGETS = (16, 32, 48, 64, 96)
SAMPLES = 16
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `n` problems, a 95 % interval by the normal approximation."""

    name: str
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Family:
    """The loaded models, in bf16, and their tokenizer."""

    teacher: Sampler
    scorer: Any
    student: Sampler
    tokenizer: Any

    def draw(self, temperature: float, seed: int) -> Draw:
        """Return how to sample at a temperature."""
        return Draw(rollouts.MAX_TOKENS, temperature, seed)


def measure(folder: Path, problems: int, seed: int, device: str) -> list[Figure]:
    """Measure the family in `folder`."""
    family = _load(folder, device)
    asked = _asked(seed, DEFAULT_LEVEL, problems)
    figures = _by_level(family, problems, seed)
    greedy = rollouts.think(family.teacher, family.tokenizer, asked, family.draw(0.0, seed))
    pool = rollouts.think(
        family.teacher,
        family.tokenizer,
        [problem for problem in asked for _ in range(SAMPLES)],
        family.draw(TEMPERATURE, seed),
    )
    figures += _pool_figures(family, pool)
    figures += _search_figures(family, asked, seed)
    figures += _budget_figures(family, greedy)
    figures += _wait_figures(family, greedy, pool[::SAMPLES])
    return figures


def write(figures: Sequence[Figure], path: Path) -> str:
    """Write the figures as JSON lines and return them as a Markdown table."""
    path.write_text("".join(json.dumps(asdict(figure)) + "\n" for figure in figures))
    rows = [f"| {f.name} | {f.value:.3f} | {f.low:.3f}..{f.high:.3f} | {f.n} |" for f in figures]
    return "\n".join(["| figure | value | 95 % | n |", "|---|---|---|---|", *rows])


def mean(name: str, values: Sequence[float]) -> Figure:
    """Return the mean of one value per problem, with its interval."""
    n = len(values)
    center = sum(values) / n
    spread = math.sqrt(sum((value - center) ** 2 for value in values) / max(1, n - 1) / n)
    return Figure(name, center, center - 1.96 * spread, center + 1.96 * spread, n)


def auc(scores: Sequence[float], labels: Sequence[int]) -> float:
    """Return the chance that a positive outscores a negative, ties counted half; nan without both."""
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    ranks = [0.0] * len(scores)
    at = 0
    while at < len(order):
        tied = at
        while tied < len(order) and scores[order[tied]] == scores[order[at]]:
            tied += 1
        for i in order[at:tied]:
            ranks[i] = (at + tied + 1) / 2
        at = tied
    positives = sum(labels)
    negatives = len(labels) - positives
    if not positives or not negatives:
        return math.nan
    above = sum(rank for rank, label in zip(ranks, labels, strict=True) if label)
    return (above - positives * (positives + 1) / 2) / (positives * negatives)


def _load(folder: Path, device: str) -> Family:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    scorer = AutoModelForTokenClassification.from_pretrained(folder / "prm", dtype="bfloat16")
    return Family(
        Sampler(folder / "teacher", device),
        scorer.to(device).eval(),
        Sampler(folder / "student", device),
        AutoTokenizer.from_pretrained(folder / "teacher"),
    )


def _asked(seed: int, level: int, count: int) -> list[Expression]:
    weights = [float(number == level) for number in LEVELS]
    return rollouts.problems(seed * 10 + level, count, weights, "eval")


def _right(family: Family, rollout: Rollout) -> float:
    return float(rollouts.answer_of(family.tokenizer, rollout) == str(rollout.problem.value))


def _by_level(family: Family, problems: int, seed: int) -> list[Figure]:
    figures = []
    draw = family.draw(0.0, seed)
    for level in LEVELS:
        asked = _asked(seed, level, problems)
        for network, name, thinking in (
            (family.teacher, "teacher thinking", True),
            (family.teacher, "teacher no-think", False),
            (family.student, "student no-think", False),
        ):
            found = rollouts.think(network, family.tokenizer, asked, draw, thinking)
            right = [_right(family, item) for item in found]
            figures.append(mean(f"level {level}: {name}, greedy", right))
    return figures


def _pool_figures(family: Family, pool: list[Rollout]) -> list[Figure]:
    """Return sampled accuracy, pass@16, maj@16 and best-of-16, and the AUC of the reward model."""
    right = [_right(family, item) for item in pool]
    rows = [prm.labelled(family.tokenizer, item) for item in pool]
    scores = prm.scores(family.scorer, [row.ids for row in rows])
    finals = [item[-1] for item in scores]
    groups = [slice(at, at + SAMPLES) for at in range(0, len(pool), SAMPLES)]
    answers = [rollouts.answer_of(family.tokenizer, item) for item in pool]
    steps = [
        (score, value)
        for row, found in zip(rows, scores, strict=True)
        for value, end, score in zip(row.values, row.ends, found, strict=True)
        if end
    ]
    best = [max(zip(finals[g], right[g], strict=True), key=lambda pair: pair[0])[1] for g in groups]
    count = len(groups)
    return [
        mean(f"sampled at {TEMPERATURE}", [sum(right[g]) / SAMPLES for g in groups]),
        mean("tokens per sample", [sum(len(i.ids) for i in pool[g]) / SAMPLES for g in groups]),
        mean("pass@16", [max(right[g]) for g in groups]),
        mean("maj@16", [_majority(answers[g], right[g]) for g in groups]),
        mean("best of 16 by the reward model", best),
        _plain("reward model, AUC at steps", auc(*zip(*steps, strict=True)), count),
        _plain("reward model, AUC at answers", auc(finals, [int(r) for r in right]), count),
    ]


def _plain(name: str, value: float, n: int) -> Figure:
    return Figure(name, value, math.nan, math.nan, n)


def _majority(answers: Sequence[str | None], right: Sequence[float]) -> float:
    """Return whether the most frequent answer is right; the earliest of equals wins."""
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    winner = votes.most_common(1)[0][0]
    return right[list(answers).index(winner)]


def _search_figures(family: Family, asked: list[Expression], seed: int) -> list[Figure]:
    draw = family.draw(1.0, seed)
    found = search(family.teacher, family.scorer, family.tokenizer, asked, draw, Search())
    right = [_right(family, item.rollout) for item in found]
    return [
        mean("beam search, 4 x 4, by the reward model", right),
        mean("beam search, tokens per problem", [float(item.tokens) for item in found]),
    ]


def _budget_figures(family: Family, greedy: list[Rollout]) -> list[Figure]:
    """Compare the hand-over sentence with cutting the text, at each number of thinking tokens."""
    end = family.tokenizer.convert_tokens_to_ids("</think>")
    figures = []
    for budget in BUDGETS:
        within = [end in item.ids[: budget + 1] for item in greedy]
        late = [item for item, fits in zip(greedy, within, strict=True) if not fits]
        draw = family.draw(0.0, budget)
        handed = rollouts.cut(family.teacher, family.tokenizer, late, [budget] * len(late), draw)
        free = [
            _right(family, item) if fits else 0.0 for item, fits in zip(greedy, within, strict=True)
        ]
        gains = iter([_right(family, item) for item in handed])
        with_handover = [
            value if fits else next(gains) for value, fits in zip(free, within, strict=True)
        ]
        gained = [a - b for a, b in zip(with_handover, free, strict=True)]
        figures += [
            mean(f"budget {budget}: cut", free),
            mean(f"budget {budget}: hand-over", with_handover),
            mean(f"budget {budget}: hand-over - cut", gained),
        ]
    return figures


def _wait_figures(family: Family, greedy: list[Rollout], sampled: list[Rollout]) -> list[Figure]:
    figures = []
    for name, first, temperature in (("greedy", greedy, 0.0), ("sampled", sampled, TEMPERATURE)):
        draw = family.draw(temperature, 77)
        longer = rollouts.lengthen(family.teacher, family.tokenizer, first, draw)
        before = [_right(family, item) for item in first]
        after = [_right(family, item) for item in longer]
        figures += [
            mean(f"{name}: without Wait", before),
            mean(f"{name}: with one Wait", after),
            mean(f"{name}: with - without", [a - b for a, b in zip(after, before, strict=True)]),
        ]
    return figures
