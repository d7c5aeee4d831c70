"""Problems in a user's file of rows: `--task capitals.jsonl`.

Rows are JSON lines, plain or gzipped, one problem per line; or CSV with a line of names, a JSON array, a parquet file,
or a folder of `save_to_disk`:

    {"id": "p1", "problem": "What is 2+2?", "answer": "4"}

    problem   what is asked, with the instruction of its kind; also called question, prompt or question_stem
    messages  in place of `problem`: sent as they are
    answer    text or number, required; also called answerKey. Of a worked solution the last box counts, or what follows
              the marks of GSM8K (`... #### 4`); of a truth value yes and true, or no and false
    target    in place of `answer`: the same, or what the verifier takes, as {"answer": "2", "alternatives": ["two"]}
    id        default: the row's number
    kind      the same throughout; default: what the answers look like
    choices   a list of options, a table of them by letter, or a list of texts with one of labels; also called options,
              or columns A, B, C, ...; they are asked with their letters. The answer is a letter, a label, one of their
              texts, as a model's may be, or in every row a number, where the file shows what they are counted from

Columns of other names are named by the task's parameters: `--set task.answer=label`. Other columns are left out, and
never shown to a strategy: a worked solution would tell the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from evals.data.sources import rows_of
from evals.task import Task, sample
from evals.tasks._columns import (
    ANSWERS,
    ASKED,
    COLUMN_LETTERS,
    KNOWN,
    OPTIONS,
    READ,
    Columns,
    NumberedRow,
    read_rows,
    settings_of,
)
from evals.tasks._items import WORD, gold_of, is_mathematical, items_of, kind_of_rows, refuse_twice, without_solution
from ttc.answers.grammar import Unparsed, parse
from ttc.answers.plain import plain
from ttc.core import Json, Sampling
from ttc.errors import ConfigError

_LONG_WORD = re.compile(r"(?<![\\{])\b[^\W\d_]{4,}")
"""Words longer than a variable that are no LaTeX command."""


def rows(
    path: str,
    *,
    kind: str | None = None,
    options: Columns = Columns(),  # noqa: B008  a frozen value
) -> Task:
    """Problems of a file of rows.

    Args:
        path: the file.
        kind: answer kind where the lines do not say; absent: what the answers look like.
        options: the columns, where they have other names than ours.
    """
    file = Path(path).expanduser()
    rows = list(rows_of(file, needs=(ASKED, ANSWERS) if options == Columns() else ()))
    _refuse_unnamed(rows, options, file)
    return rows_task(file.name, rows, options, kind, {"path": str(path)}, file.name.split(".")[0])


def rows_task(
    name: str, rows: Sequence[NumberedRow], columns: Columns, kind: str | None, place: Mapping[str, Json], stem: str
) -> Task:
    """The task of these rows, which came from `place`; `stem` begins the ids of those that have none."""
    ours, note = read_rows(rows, columns, kind)
    is_told = kind is not None or any("kind" in row for row, _, _ in ours)
    looks = "math" if is_told else kind_of_rows([row for row, _, _ in ours])
    items = list(items_of(ours, kind or looks, stem))
    refuse_twice(items, name)
    common = items[0].problem.kind if items else "math"
    notes = [_note([row for row, _, _ in ours], common, is_told=is_told), note if common == "choice" else ""]
    named = {field.name: getattr(columns, field.name) for field in fields(columns)}
    return Task(
        name=name,
        kind=common,
        load=lambda limit, seed: sample(items, limit),
        sampling=Sampling(max_tokens=1024),
        params={**place, **{name: value for name, value in named.items() if value is not None}},
        note="; ".join(filter(None, notes)),
    )


def _refuse_unnamed(rows: Sequence[NumberedRow], columns: Columns, file: Path) -> None:
    """Refuse a file whose first row is one of problems already and no row of names."""
    names = rows[0][0] if rows else {}
    if names and "sv" in file.name.lower() and columns == Columns() and not READ & {*map(str.lower, names), *names}:
        raise ConfigError(
            f"{file}: its first row names the columns, such as problem and answer, but holds: {', '.join(names)}; put "
            f"a row of names before it, or name those that count: {settings_of(names).partition(' (')[0]}"
        )


def _note(rows: Sequence[Mapping[str, Any]], kind: str, *, is_told: bool) -> str:
    """What was inferred from the rows, and which columns were ignored; empty where there is nothing to report."""
    notes = []
    if kind != "math" and not is_told:
        notes.append(f"judging by their form, the answers are of kind {kind} (another: --set task.kind=KIND)")
    golds = [without_solution(gold) for gold in map(gold_of, rows)]
    words = [gold for gold in golds if _is_of_words(gold)] if kind == "math" and not is_told else []
    if words:
        some = f"{len(words)} of {len(rows)} have words in them, such as {words[0][:40]!r}"
        other = "as words: --set task.kind=exact; from another column: --set task.answer=COLUMN"
        notes.append(f"the answers are read as mathematics, but {some} ({other})")
    read = {*KNOWN, *((*OPTIONS, *COLUMN_LETTERS) if kind == "choice" else ())}
    others = list(dict.fromkeys(name for row in rows for name in row if name not in read))
    if others:
        notes.append(f"never shown to the model: {', '.join(others)}")
    return "; ".join(notes)


def _is_of_words(gold: str) -> bool:
    """Whether there are words in a gold that mathematics cannot read: none of it, or sentences and remarks about it."""
    if not is_mathematical(gold):
        return bool(WORD.search(gold))
    if not _LONG_WORD.search(gold):
        return False
    try:
        parse(plain(gold))
    except (Unparsed, RecursionError):
        return True
    return False
