"""Do reward models of steps and answers learn from verdicts on answers only, and which continuations help most?

    python -m benchmarks.step_models --seeds 1 2 3 --out build/step_models --save benchmarks/results/step_models.json

The language is the cipher walk (`evals.tasks.cipher`), each step wrong with probability 0.1. A base model is
pretrained, and its own solutions are labelled by equally many continuations, spread evenly or to the least certain
prefixes first; a process reward model is trained on either, and on the even ones read as hard labels: right where any
continuation is. The same base is trained as a generative verifier on its judged answers. Measured on twelve solutions
to each held-out question, where the permutation determines for each step whether all steps so far are right: accuracy
at a threshold of one half, compared with that before training and with always "right"; ranking; first-error F1; and the
share of the labels on the correct side of one half. Gains are paired, and clustered by question. CPU seconds, one
thread. Results in the saved file are not computed again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.machine import commit as head
from evals.numbers.step_metrics import Judged, first_error, ranking
from evals.tasks.cipher import Cipher, noisy, question
from train.base.stage import Setting, Stage, StageResult, read_result, write_result
from train.measure.measure import gains
from train.offline.epochs import FitFields
from train.reward_models.step_model import StepModel, StepRow, new_step_model
from train.stages.pretrain import pretrain
from train.stages.prm import judgements, prm
from train.stages.sample import sample
from train.stages.verifier_lm import verifier_lm
from ttc.engines.shared.text import Text

Row: TypeAlias = dict[str, object]
SYMBOLS, STEPS, NOISE, SOLUTIONS = 64, 8, 0.1, 12
LANGUAGE = f"cipher:symbols={SYMBOLS},max_steps={STEPS},thinking_share=1,noise={NOISE}"
TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS},split=train"
DELIMITER = "n"
"""Every step ends at its counter; the marks of thinking hold the letter too, so each is a step that cannot be wrong."""
FIT = FitFields(steps=400, rows=48, lr=2e-3, warmup=30, eval_every=100)
ASK, GOOD, BAD = "=", "n1", "n2"
WAYS = {"even": 1, "uncertain first": 4}
"""How continuations are spread, and in how many rounds."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A walk as the language writes it, and for each of its steps whether all was right up to it."""

    question: str
    steps: tuple[str, ...]
    labels: tuple[float, ...]
    answer: str


def held_out(seed: int) -> list[Solution]:
    """Careless solutions to questions that nothing is trained on."""
    rng, secret = random.Random(seed), Cipher(SYMBOLS, STEPS, 0)
    return [_walked(secret, *pair, rng) for pair in secret.pairs("eval") for _ in range(SOLUTIONS)]


def _walked(secret: Cipher, start: int, steps: int, rng: random.Random) -> Solution:
    walk, truth = noisy(secret, start, steps, NOISE, rng), secret.walk(start, steps)
    texts = [f"s{symbol}n{left}" for symbol, left in zip(walk, range(steps - 1, -1, -1), strict=True)]
    labels = tuple(float(walk[: place + 1] == truth[: place + 1]) for place in range(steps))
    return Solution(question(start, steps), (f"<think>{texts[0]}", *texts[1:]), labels, f"s{walk[-1]}")


def rows_of(solutions: Sequence[Solution], text: Text) -> list[StepRow]:
    """The solutions as a process reward model judges them: after every step."""
    rows = []
    for one in solutions:
        ids = text.encode(one.question + "".join(one.steps))
        reads = tuple(len(text.encode(one.question)) + 2 * place + 2 for place in range(len(one.steps)))
        rows.append(StepRow(one.question, ids, reads, one.labels))
    return rows


def asked(solutions: Sequence[Solution], text: Text) -> list[StepRow]:
    """The solutions as a generative verifier judges them: after the whole answer."""
    rows = []
    for one in solutions:
        ids = text.encode(f"{one.question}{''.join(one.steps)}</think>{one.answer}{ASK}")
        rows.append(StepRow(one.question, ids, (len(ids) - 1,), one.labels[-1:]))
    return rows


def judged(rows: Sequence[Judged]) -> list[float]:
    """1 per label that the score is on the right side of."""
    return [
        float((score >= 0.5) == (label == 1.0))
        for row in rows
        for score, label in zip(row.scores or (), row.labels, strict=True)
    ]


def shown(before: Sequence[Judged], after: Sequence[Judged], seed: int) -> dict[str, float]:
    """Accuracy after training against before, and against always answering "right"."""
    keys = [row.cluster for row in after for _ in row.labels]
    always = [float(label == 1.0) for row in after for label in row.labels if label is not None]
    found = gains("trained", judged(before), judged(after), seed, keys)
    found |= gains("always_right", always, judged(after), seed, keys)
    return found | {"ranking_before": ranking(before), "ranking_after": ranking(after)}


def labels_right(path: Path, text: Text) -> Iterator[tuple[str, float]]:
    """Of every step that was labelled by continuations, its question and whether the label is on the right side."""
    secret = Cipher(SYMBOLS, STEPS, 0)
    for line in path.read_text().splitlines():
        key, ids, reads, labels = json.loads(line)
        start, steps = map(int, re.findall(r"\d+", key))
        truths = [f"{question(start, steps)}<think>"]
        for left, symbol in zip(range(steps - 1, -1, -1), secret.walk(start, steps), strict=True):
            truths.append(f"{truths[-1]}s{symbol}n{left}")
        truths.append(f"{truths[-1]}</think>")
        for read, label in zip(reads[:-1], labels[:-1], strict=True):
            yield key, float((label >= 0.5) == (text.decode(ids[: read + 1]) in truths))


def step_rows(seed: int, out: Path, base: Path) -> Iterator[Row]:
    """Process reward models, by how the continuations of their labels were spread, and the two compared."""
    found = []
    for name, rounds in WAYS.items():
        stage = prm(task=TASK, step_delimiter=DELIMITER, n=4, continuations=4, rounds=rounds, course=FIT)
        found.append(_trained(stage, out / f"2-prm-{rounds}", base, seed))
        yield {"model": f"process reward model, {name}", **found[-1].told}
    yield {"model": "uncertain first against even", **_compared(*found, seed)}


def hard_rows(seed: int, out: Path, base: Path) -> Iterator[Row]:
    """A process reward model of the even continuations, read as hard labels, and what that changes."""
    stage = prm(task=TASK, step_delimiter=DELIMITER, n=4, continuations=4, rounds=1, course=FIT)
    soft, folder = _trained(stage, out / "2-prm-1", base, seed), out / "2-prm-hard"
    if not folder.is_dir():
        folder.mkdir()
        rows = map(json.loads, (out / "2-prm-1" / "labels.jsonl").read_text().splitlines())
        lines = [json.dumps([*row, [float(label > 0) for label in labels]]) for *row, labels in rows]
        (folder / "labels.jsonl").write_text("\n".join(lines) + "\n")
    hard = _trained(stage, folder, base, seed)
    yield {"model": "process reward model, even, hard labels", **hard.told}
    yield {"model": "hard labels against soft", **_compared(soft, hard, seed)}


@dataclass(frozen=True, slots=True)
class _Trained:
    """A process reward model's labels, each with its question and whether it is right, its judgements, its numbers."""

    labels: Sequence[tuple[str, float]]
    steps: Sequence[Judged]
    told: Row


def _trained(stage: Stage, folder: Path, base: Path, seed: int) -> _Trained:
    """Train on the labels in `folder`, or make them first."""
    _run(stage, folder, base, seed)
    text = Text(base)
    exact = rows_of(held_out(seed), text)
    before = judgements(new_step_model(base, "label", DELIMITER, None, seed, "cpu"), exact, 0)
    after = judgements(_read(folder / "prm", None), exact, 0)
    f1 = first_error(after, 0.5, seed=seed).f1
    told = {"first_error_f1": f1.value, "first_error_f1_low": f1.low, "first_error_f1_high": f1.high}
    labels = list(labels_right(folder / "labels.jsonl", text))
    return _Trained(labels, after, {**shown(before, after, seed), **told})


def verifier_rows(seed: int, out: Path, base: Path) -> Iterator[Row]:
    """The generative verifier."""
    _run(sample(task=TASK, n=16), out / "2-sample", base, seed)
    folder = out / "3-verifier_lm"
    _run(verifier_lm(rollouts="2-sample", ask=ASK, good=GOOD, bad=BAD, course=FIT), folder, base, seed)
    answers = asked(held_out(seed), Text(base))
    before, after = (judgements(_read(place, (GOOD, BAD)), answers, 0) for place in (base, folder / "verifier"))
    yield {"model": "generative verifier", **shown(before, after, seed)}


PARTS: Mapping[str, Callable[[int, Path, Path], Iterator[Row]]] = {
    "steps": step_rows,
    "hard": hard_rows,
    "verifier": verifier_rows,
}


def _compared(first: _Trained, second: _Trained, seed: int) -> Row:
    """The second against the first: of the same prefixes the labels, of the same steps the judgements."""
    rights = [[right for _, right in one.labels] for one in (first, second)]
    found = gains("labels", *rights, seed, [key for key, _ in first.labels])
    clusters = [row.cluster for row in first.steps for _ in row.labels]
    found |= gains("judgements", judged(first.steps), judged(second.steps), seed, clusters)
    return {**found, "labels": len(first.labels)}


def _read(folder: Path, words: tuple[str, str] | None) -> StepModel:
    return new_step_model(folder, "label" if words is None else "token", DELIMITER, words, 0, "cpu")


def _run(stage: Stage, folder: Path, model: Path | None, seed: int) -> StageResult:
    """Run a stage, or read its saved result."""
    done = read_result(folder)
    if done is None:
        folder.mkdir(parents=True, exist_ok=True)
        done = stage.run(Setting(folder, model, seed, "cpu", 1, lambda text: print(text, flush=True)))
        write_result(folder, done)
    return done


def measure(seed: int, out: Path, part: str, commit: str) -> list[Row]:
    """One part of one seed; the processor seconds of a row are those since the row before it."""
    base = Path(_run(pretrain(corpus=LANGUAGE, steps=800), out / "1-base", None, seed).model)
    rows, clock = list[Row](), _cpu()
    for row in PARTS[part](seed, out, base):
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
        about: Row = {"part": part, "seed": seed, "commit": commit, "cpu_seconds": round(_cpu() - clock, 1)}
        rows.append({**rounded, **about})
        print(json.dumps(rows[-1]), flush=True)
        clock = _cpu()
    return rows


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run what the saved file does not hold yet, and save after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    about = {"date": datetime.now(UTC).date().isoformat(), "language": LANGUAGE, "n": SOLUTIONS}
    rows: list[Row] = json.loads(args.save.read_text())["rows"] if args.save.is_file() else []
    for seed in args.seeds:
        for part in PARTS:
            if all((row["seed"], row["part"]) != (seed, part) for row in rows):
                rows += measure(seed, args.out / str(seed), part, head())
                args.save.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
