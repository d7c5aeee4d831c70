"""Labelled steps: read from a file or sampled and labelled here, and scored by any scorer, blind to the labels.

A line of a file is {"id", "problem", "steps": [text, ...]} with one kind of label: "labels" (per step 1, 0, a share, or
null), "mistake_index" (first wrong step from 0, null for none) or "label" (the same with -1 for none, as in
ProcessBench), or none yet; after a first wrong step nothing is known. "group" or "task" names its part of the data,
"target" is for checkers that need one. A line of PRM800K (Lightman et al. 2023, arXiv:2305.20050) is read as it was
published: the steps that were continued, and the wrong one that ended them. So is one of TRL's data sets: {"prompt",
"completions": [text, ...], "labels": [true, false, ...]}.

Process reward models score all steps of a solution at once; scorers without step scores (outcome models, judges,
ensembles of them) are asked about every prefix. Every token is on the ledger of the row's session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from evals.data.sources import json_lines
from evals.numbers.step_metrics import Judged
from evals.task import Item
from ttc.answers import kind_of
from ttc.concurrent import gather
from ttc.core import Engine, Message, Problem, Prompt, Sampling, Scorer, TargetLike, Usage
from ttc.durable import replaced_file
from ttc.errors import ConfigError, PromptTooLong, RecordError
from ttc.session.session import Session
from ttc.verifiers.steps import STEP_DELIMITER, StepChecker, prefixes

_In = TypeVar("_In")
_Out = TypeVar("_Out")
AT_ONCE = 32
"""Solutions that are sampled or scored at the same time."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One solution with its labels; `path` is the sampled prompt where it was sampled here.

    Only step checkers are handed the `target`; scorers see the problem and the steps.
    """

    problem: Problem
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]
    cluster: str
    group: str = ""
    target: TargetLike = None
    path: Prompt | None = None


def read_labelled(file: Path, limit: int | None = None) -> list[Labelled]:
    """Read the first `limit` lines; raises RecordError naming line and field, ConfigError when there is no row."""
    rows: list[Labelled] = []
    for data, where, number in json_lines(file):
        if limit is not None and len(rows) == limit:
            break
        rows.append(_row(data, where, number))
    if not rows:
        raise ConfigError(f"{file} has no rows")
    return rows


def write_labelled(file: Path, rows: Sequence[Labelled], version: str) -> None:
    """Write rows that `read_labelled` reads; `version` names the labeller."""
    with replaced_file(file) as scratch, scratch.open("w", encoding="utf-8") as out:
        for row in rows:
            data = {
                "id": row.problem.id,
                "problem": row.problem.messages[-1].content,
                "steps": row.steps,
                "target": row.target,
                "labels": row.labels,
                "cluster": row.cluster,
                "group": row.group,
                "checker": version,
            }
            out.write(json.dumps(data) + "\n")


async def sample_labelled(
    engine: Engine, items: Sequence[Item], checker: StepChecker, *, n: int, sampling: Sampling, seed: int
) -> tuple[list[Labelled], Usage]:
    """Sample `n` solutions of each problem, cut them into steps and label them; returns what it cost as well."""
    rows: list[Labelled] = []
    usage = Usage()
    async for _, (part, part_usage) in _each(items, lambda item: _sample(engine, item, checker, n, sampling, seed)):
        rows += part
        usage += part_usage
    return rows, usage


async def label_rows(rows: Sequence[Labelled], checker: StepChecker) -> tuple[list[Labelled], Usage]:
    """Label the steps of every row anew; returns what it cost as well."""
    labelled: list[Labelled] = []
    usage = Usage()
    async for row, verdict in _each(rows, lambda row: checker.check(row.problem, row.target, row.steps)):
        labelled.append(replace(row, labels=verdict.labels))
        usage += verdict.usage
    return labelled, usage


async def score_rows(
    rows: Sequence[Labelled], engine: Engine, scorer: Scorer, *, seed: int
) -> tuple[list[Judged], Usage]:
    """Score the steps of every row; a row that is too long for the scorer, or got no verdict, has no scores."""
    scored_rows: list[Judged] = []
    usage = Usage()
    async for row, (scores, row_usage) in _each(rows, lambda row: _score(row, engine, scorer, seed)):
        scored_rows.append(Judged(row.problem.id, row.cluster, row.labels, scores))
        usage += row_usage
    return scored_rows, usage


async def _each(
    inputs: Sequence[_In], work: Callable[[_In], Coroutine[Any, Any, _Out]]
) -> AsyncIterator[tuple[_In, _Out]]:
    """Yield (input, result of the work on it) in order; `AT_ONCE` run at once."""
    for start in range(0, len(inputs), AT_ONCE):
        part = inputs[start : start + AT_ONCE]
        for pair in zip(part, await gather(map(work, part)), strict=True):
            yield pair


async def _sample(
    engine: Engine, item: Item, checker: StepChecker, n: int, sampling: Sampling, seed: int
) -> tuple[list[Labelled], Usage]:
    session = Session(item.problem, engine, answers=kind_of(item.problem.kind), seed=seed, sampling=sampling)
    with closing(session):
        prompt = session.render()
        completions = await session.generate(prompt, n)
    rows: list[Labelled] = []
    usage = Usage()
    for completion in completions:
        whole = prompt.then(completion)
        steps = whole.generated_text.split(STEP_DELIMITER)
        steps = steps[:-1] if steps[-1] == "" else steps
        verdict = await checker.check(item.problem, item.target, steps)
        usage += verdict.usage
        name = f"{item.problem.id}/{completion.path[-1]}"
        problem, path = replace(item.problem, id=name), replace(whole, problem_id=name)
        group = item.difficulty or ""
        rows.append(Labelled(problem, tuple(steps), verdict.labels, item.problem.id, group, item.target, path))
    return rows, usage + session.usage


async def _score(row: Labelled, engine: Engine, scorer: Scorer, seed: int) -> tuple[tuple[float, ...] | None, Usage]:
    session = Session(
        row.problem, engine, answers=kind_of(row.problem.kind), seed=seed, sampling=Sampling(temperature=0.0)
    )
    try:
        with closing(session):
            return await _step_scores(row, session, scorer), session.usage
    except PromptTooLong:
        return None, session.usage


async def _step_scores(row: Labelled, session: Session, scorer: Scorer) -> tuple[float, ...] | None:
    ends = prefixes(session.render(), session.encode, row.steps)
    # Thinking control injected nothing here: a likelihood has to count every token.
    ends = [replace(end, logprobs=None, certainty=None) for end in ends]
    whole = ends[-1] if row.path is None else row.path
    (score,) = await session.score(scorer, [whole])
    if score.steps or len(row.steps) == 1:
        steps = score.steps or ((score.value,) if score.value is not None else ())
        return steps if len(steps) == len(row.steps) else None
    values = [each.value for each in await session.score(scorer, ends)]
    numbers = tuple(value for value in values if value is not None)
    return numbers if len(numbers) == len(values) else None


_RATINGS = {1: 1.0, 0: 1.0, -1: 0.0}
"""PRM800K's good, neutral and bad: a neutral step is no mistake."""


def _of_prm800k(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A line of PRM800K in our form; raises RecordError naming the field."""
    steps: list[str] = []
    labels: list[float | None] = []
    try:
        for step in data["label"]["steps"]:
            chosen, offers = step.get("chosen_completion"), step.get("completions") or []
            if chosen is None and step.get("human_completion"):
                steps.append(str(step["human_completion"]["text"]))
                labels.append(1.0)
                continue
            bad = next((offer for offer in offers if offer["rating"] == -1), None)
            offer = offers[chosen] if chosen is not None else bad
            if offer is None:
                break
            steps.append(str(offer["text"]))
            labels.append(None if offer["rating"] is None else _RATINGS[offer["rating"]])
            if chosen is None:
                break
        question = data["question"]
        return {"problem": question["problem"], "steps": steps, "labels": labels, "group": "prm800k"}
    except (KeyError, TypeError, IndexError, AttributeError) as exc:
        raise RecordError(f"{where}: not a line of PRM800K ({exc!r}): question.problem and label.steps") from exc


def _row(data: Mapping[str, Any], where: str, number: int) -> Labelled:
    if isinstance(data.get("label"), dict) and isinstance(data.get("question"), dict):
        data = _of_prm800k(data, where)
    if "completions" in data and "steps" not in data:  # as TRL calls them
        data = {**data, "steps": data["completions"], "problem": data.get("prompt")}
    steps, problem = data.get("steps"), data.get("problem")
    if not isinstance(problem, str) or not problem.strip():
        raise RecordError(f"{where}: problem: expected a non-empty string, got {problem!r}")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
        raise RecordError(f"{where}: steps: expected a list of texts")
    name = str(_name(data, "id", where, number))
    # An empty line inside a step would be read as its end.
    bare = tuple("\n".join(line for line in step.split("\n") if line.strip()) or step for step in steps)
    return Labelled(
        Problem(name, (Message("user", problem),)),
        bare,
        tuple(_labels(data, len(steps), where)),
        str(_name(data, "cluster", where, name)),
        str(data.get("group", data.get("task", ""))),
        data.get("target"),
    )


def _name(data: Mapping[str, Any], field: str, where: str, usual: object) -> object:
    """A field that names something: a text or a number; `usual` where it is absent or null."""
    value = data.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise RecordError(f"{where}: {field}: expected a text or a number, got {value!r}")
    return usual if value is None else value


def _labels(data: Mapping[str, Any], num: int, where: str) -> Iterator[float | None]:
    fields = [name for name in ("labels", "mistake_index", "label") if name in data]
    if len(fields) > 1:
        raise RecordError(f"{where}: give one of labels, mistake_index and label, got {', '.join(fields)}")
    if not fields:
        yield from (None,) * num
        return
    value = data[fields[0]]
    if fields[0] == "labels":
        right = isinstance(value, list) and len(value) == num
        if not right or not all(each is None or _is_share(each) for each in value):
            raise RecordError(f"{where}: labels: expected {num} numbers in [0, 1] or null, got {value!r}")
        yield from (None if each is None else float(each) for each in value)
        return
    first = num if value is None or value == -1 else value
    if not isinstance(first, int) or not 0 <= first <= num:
        raise RecordError(f"{where}: {fields[0]}: expected the index of a step, got {value!r}")
    for index in range(num):
        yield 1.0 if index < first else 0.0 if index == first else None


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1  # true and false among them
