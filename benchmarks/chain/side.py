"""An additional experiment: word problems (GSM8K, SVAMP), too hard for the model, and a judge of whole answers.

`side-start` trains on the worked solutions of GSM8K's training rows; `side-judge` trains a reward model of outcomes on
the start's own answers to 250 of them (a step model whose only step is the whole answer: Cobbe et al. 2021,
arXiv:2110.14168); `side` evaluates both tasks' test problems: greedy, and with 16 draws scored by the judge, from which
votes and choices are computed. It is reported whatever the result. Needs the data sets: a folder in TTC_DATA, or the
hub.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chain.place import START, ChainPlace
from benchmarks.chain.stages import N, asked_of, scored, trained
from evals.data.sources import Source, rows_from
from evals.task import boxed_question

JUDGE = "side-judge"
_MARKS = re.compile(r"<<[^>]*>>")
"""What GSM8K's calculator notes in a solution."""
_TRAINING = Source("gsm8k_train", "openai/gsm8k", "main", "train")


def worked_rows(place: ChainPlace) -> Path:
    """The file of worked solutions in the form that the task requires: steps, then the answer in a box."""
    path = place.out / "gsm8k-worked.jsonl"
    place.out.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in _worked()))
    return path


def _worked() -> Iterator[dict[str, Any]]:
    for row in rows_from(_TRAINING, os.environ.get("TTC_DATA")):
        steps, _, final = row.text("solution", "answer").partition("####")
        answer = (row.text("answer") if row.local else final).strip().replace(",", "")
        (turn,) = boxed_question(row.text("problem", "question"))
        yield {"prompt": turn.content, "completion": f"{_MARKS.sub('', steps).strip()}\n\\boxed{{{answer}}}"}


def side(place: ChainPlace) -> None:
    """Both tasks: the public model and the start greedily, and one scored pool of the start."""
    rows, n = {}, 3 if place.cut else N
    for task in ("svamp", "gsm8k"):
        start = place.model("side-start")
        for name, model in {"public": place.model(START), "start": start}.items():
            rows[f"{task} {name}"] = asked_of([task], place, f"side-{task}-{name}", model, "direct:temperature=0")
        words = (f"best_of_n:n={n},select=weighted", *scored(place, JUDGE))
        rows[f"{task} pool"] = asked_of([task], place, f"side-{task}-pool", start, *words)
        place.write("side", {"arms": rows, "whole": task == "gsm8k"})


def judge(place: ChainPlace) -> None:
    """Train the judge, and count what it learnt from."""
    trained(place, JUDGE, "prm")
    labels(place)


def labels(place: ChainPlace) -> None:
    """Count the judge's labels: answers, those that are right, and the problems that have a right one."""
    path = place.out / "runs" / f"{JUDGE}-{place.seed}" / "1-prm" / "labels.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    right = [key for key, _, _, values in rows if values[-1] == 1.0]  # the last step's is the answer's
    counts = {"answers": len(rows), "problems": len({row[0] for row in rows})}
    place.write("side-labels", {**counts, "right": len(right), "problems_with_right": len(set(right))})


SIDE: Mapping[str, Callable[[ChainPlace], None]] = {
    "side-start": lambda place: trained(place, "side-start", "sft", f"data={worked_rows(place)}"),
    JUDGE: judge,
    "side-labels": labels,
    "side": side,
}
"""In their order; they are no part of the plan, so `all` leaves them out."""
