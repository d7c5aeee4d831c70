"""The data of a job on the disk: rows that are learnt, their audit, and what happened to the other answers.

    data/train.jsonl       rows as `train.examples.rows` reads them
    data/lineage.jsonl     per row its parents in the ledger, in the same order
    data/samples.jsonl     per answer its teacher, draw, verdict and length, without its text
    data/decisions.jsonl   per dropped answer the stage and the reason; per row that was left out, of its parents
    data/prompts.jsonl     per dropped problem the reason
    data/funnel.json       counts by stage and kind of reason

Every file is a function of the ledger, the verdicts and the spec, so each run writes it again with the same content.
Rows from elsewhere (`[mix]`) are drawn by the job's seed and appended; a file of them with a measured problem is
refused.

The audit checks ids, not texts, and each row by itself: a row must end in the id with which the template ends an
assistant turn, its ids must spell its text, and only the assistant's ids may have weight. A model trained on rows
without their stop token never stops (open-r1 pull requests 604 and 663). A row that fails is left out, with its reason
among the decisions and its kind in the funnel; the job is refused if there are more of them than `max_unfit`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distill.data.pipeline import Funnel, Prompts, kind_of
from distill.spec.sample import Sample, TrainingRow
from distill.spec.spec import MixSpec
from evals.data.sources import NamedRows
from evals.task import Item
from train.examples.examples import FIELDS, Example, check_rows, most_tokens, read_example
from train.examples.rows import is_remote, read_answer, read_turns, read_weight, rows_of
from ttc import seeds
from ttc.config.values import counted
from ttc.core import ToolMessage
from ttc.durable import replace_text
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError
from ttc.records import iterate

DATA, TRAIN, LINEAGE, SAMPLES = "data", "train.jsonl", "lineage.jsonl", "samples.jsonl"
DECISIONS, PROMPTS, FUNNEL = "decisions.jsonl", "prompts.jsonl", "funnel.json"
AUDIT = "audit"
"""The stage under which left-out rows are reported."""


def write_data(
    job_folder: Path,
    prompts: Mapping[str, Prompts],
    samples: Sequence[Sample],
    funnel: Funnel,
    rows: Sequence[TrainingRow],
    failed: Sequence[str],
    audited: AuditedRows | None,
) -> Path:
    """Write everything and return the file of rows; `prompts` are those of each domain, `audited` None without rows."""
    folder = job_folder / DATA
    folder.mkdir(parents=True, exist_ok=True)
    unfit = {} if audited is None else audited.unfit
    left_out = {parent: reason for place, reason in unfit.items() for parent in rows[place].parents}
    rows = rows if audited is None else audited.kept
    parents = {parent for row in rows for parent in row.parents}
    origins = [{"row": i, "prompt": row.key, "parents": list(row.parents), **row.notes} for i, row in enumerate(rows)]
    decisions = [{"key": key, **asdict(decision)} for key, decision in sorted(funnel.dropped.items())]
    decisions += [
        {"key": key, "stage": AUDIT, "reason": reason} for key, reason in sorted(left_out.items()) if key not in parents
    ]
    problems = [
        {"domain": name, "problem": problem, "reason": reason}
        for name, cleaned in prompts.items()
        for problem, reason in cleaned.dropped
    ]
    _write_lines(folder / TRAIN, (row.to_json() for row in rows))
    _write_lines(folder / LINEAGE, origins)
    _write_lines(folder / SAMPLES, map(_line_of, samples))
    _write_lines(folder / DECISIONS, decisions)
    _write_lines(folder / PROMPTS, problems)
    write_json(folder / FUNNEL, funnel_of(prompts, funnel, len(rows), failed, unfit))
    return folder / TRAIN


def funnel_of(
    prompts: Mapping[str, Prompts], funnel: Funnel, num_rows: int, failed: Sequence[str], unfit: Mapping[int, str]
) -> dict[str, Any]:
    """Counts from problems to rows; every stage's `came` is the `kept` of the one before.

    The audit's stage, there only if it left out any, counts rows: an answer may make several rows or none.
    """
    reasons = [reason for cleaned in prompts.values() for _, reason in cleaned.dropped]
    left = sum(len(cleaned.items) for cleaned in prompts.values())
    answered = funnel.stages[0].came if funnel.stages else len(funnel.kept)
    problems = {"name": "prompts", "came": left + len(reasons), "kept": left, "reasons": _counts(reasons)}
    calls = {"name": "answers", "came": answered + len(failed), "kept": answered, "reasons": _counts(failed)}
    rows = {"name": AUDIT, "came": num_rows + len(unfit), "kept": num_rows, "reasons": _counts(unfit.values())}
    stages = [calls, *map(asdict, funnel.stages), *([rows] if unfit else [])]
    return {"prompts": [problems], "answers": stages, "rows": num_rows}


def check_mix(mix: MixSpec) -> None:
    """Refuse files of [mix] that are missing, empty, broken or of the same name, before anything is spent.

    Files of a hub are not read.

    Raises:
        ConfigError, RecordError: names the file, and line and field.
    """
    names = [Path(place).name for place in mix.data]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(
            f"mix.data: two files are called {twice[0]}, and their rows are told apart by its name; rename one "
            "or leave it out"
        )
    for path in (Path(place).expanduser() for place in mix.data):
        if is_remote(path):
            continue
        if not path.is_file() and NamedRows.of(str(path)) is None:
            raise ConfigError(f"mix.data: {path} is no file; name one of JSON lines, or leave it out")
        if not list(_foreign_rows(path)):
            raise ConfigError(f"mix.data: {path} holds no row; leave it out")


def check_unmeasured(mix: MixSpec, measured: Sequence[Sequence[Item]], *, late: bool = False) -> None:
    """Refuse files of [mix] with problems that are measured, task by task; with `late` only those of a hub.

    Raises:
        ConfigError: it says how many rows, and names one of them.
    """
    for place in mix.data:
        for items in measured:
            check_rows("mix.data", Path(place).expanduser(), FIELDS, items, late=late)


def _foreign_rows(path: Path) -> Iterator[tuple[str, TrainingRow]]:
    """Every row of a file of [mix], and its place."""
    for where, row in rows_of(path, FIELDS):
        yield where, _foreign(row, where)


def mixed_in(mix: MixSpec, num_rows: int, seed: int) -> list[TrainingRow]:
    """Rows from the files of [mix], as many as their share of all rows allows; the seed decides which.

    Raises:
        ConfigError, RecordError: a file is missing or broken.
    """
    candidates = [
        (seeds.derive(seed, "mix", where.rpartition("/")[2]), row)
        for path in mix.data
        for where, row in _foreign_rows(Path(path).expanduser())
    ]
    most = int(mix.share / (1 - mix.share) * num_rows)
    return [row for _, row in sorted(candidates, key=lambda entry: entry[0])[:most]]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of the job; raises ConfigError when it is not there yet."""
    if not path.is_file():
        raise ConfigError(f"{path} is not there; run the job first")
    return [row for _, row in iterate(path)]


def read_rows(path: Path, num_rows: int) -> list[dict[str, Any]]:
    """The lines of a job's file that has one line per row; raises RecordError if that no longer holds.

    Raises:
        ConfigError: it is not there yet.
    """
    lines = read_lines(path)
    if len(lines) != num_rows:
        raise RecordError(f"{path} has {counted(len(lines), 'line')} for {counted(num_rows, 'row')}; {_ANEW}")
    return lines


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """The object with these keys in a file that the job wrote; raises RecordError, saying what to do."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise RecordError(f"{path}: not JSON ({exc}); {_ANEW}") from exc
    missing = [key for key in keys if not isinstance(data, dict) or key not in data]
    if missing:
        raise RecordError(f"{path}: {missing[0]} is missing; {_ANEW}")
    return dict(data)


_ANEW = "run the job again (ttc distill run), which rewrites it from the ledger"


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines in one step."""
    replace_text(path, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file in one step."""
    replace_text(path, json.dumps(data, indent=1) + "\n")


def _counts(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(map(kind_of, reasons)).items()))


def _line_of(sample: Sample) -> dict[str, Any]:
    return {
        "key": sample.key,
        "prompt": sample.prompt,
        "difficulty": sample.item.difficulty,
        "teacher": sample.teacher,
        "label": sample.label,
        "mode": sample.mode,
        "index": sample.index,
        "tokens": sample.num_tokens,
        "spent": sample.answer.usage.tokens,
        "finish": sample.answer.finish_reason,
        "status": None if sample.verdict is None else sample.verdict.status,
    }


def _foreign(row: Mapping[str, Any], where: str) -> TrainingRow:
    messages, _, tools = read_turns(row, where)
    if tools or any(isinstance(message, ToolMessage) or message.role == "tool" for message in messages):
        raise RecordError(f"{where}: calls of functions are not mixed in; leave the row out of mix.data")
    completion, thinking = read_answer(row, where)
    place = where.rpartition("/")[2]
    name, mode, weight = f"mix/{row.get('id', place)}", row.get("mode", "auto"), read_weight(row, where)
    cluster = str(row.get("cluster") or "")
    return TrainingRow(name, messages, completion, thinking, mode, weight, (place,), cluster=cluster)


@dataclass(frozen=True, slots=True)
class RowAudit:
    """Shares and counts over the rows that passed; `problems` describes the rows that did not.

    `unfit` counts these by kind of reason.
    """

    num_rows: int
    num_tokens: int
    stop_share: float
    longest: int
    problems: Sequence[str]
    unfit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditedRows:
    """Rows that a student can learn as they are; the others by their place, with a reason each, `kind: detail`."""

    kept: Sequence[TrainingRow]
    unfit: Mapping[int, str]
    audit: RowAudit


def turn_end(folder: Path) -> tuple[int, ...]:
    """Ids that the template writes after an assistant's content; empty without a template, or if it refuses."""
    from train.base.models import load_tokenizer, tail_of_turn

    return tail_of_turn(load_tokenizer(folder))


def room_of(student: Path) -> int:
    """Tokens that a student can read: the smaller limit of its weights and its tokenizer, which may have none."""
    from train.base.models import load_tokenizer

    room, most = int(load_tokenizer(student).model_max_length), most_tokens(student)
    return room if most is None else min(room, most)


def audit_rows(rows: Sequence[TrainingRow], student: Path, max_context: int) -> AuditedRows:
    """Audit rows against the student that will learn them, each by itself; raises ConfigError for a wrong tokenizer."""
    from train.base.models import turn_tokenizer

    text, tokenizer = Text(student), turn_tokenizer(student)
    end = int(tokenizer.eos_token_id)
    ends = turn_end(student)
    if ends and ends[0] != end:
        ending = text.decode([ends[0]])
        raise ConfigError(
            f"the template of {student} ends a turn with {ending!r}, but its tokenizer's end-of-text token is "
            f"{text.decode([end])!r}; set eos_token to {ending!r} in tokenizer_config.json"
        )
    examples: dict[int, Example] = {}
    unfit: dict[int, str] = {}
    for place, row in enumerate(rows):
        try:
            example = read_example(row.to_json(), text, end, f"row {place}")
        except RecordError as exc:
            unfit[place] = f"unreadable: {str(exc).removeprefix(f'row {place}: ')}"
            continue
        problem = _problem(row, example, text, end, max_context)
        if problem:
            unfit[place] = problem
        else:
            examples[place] = example
    unfit |= _unmasked(dict(list(examples.items())[:_MASKED]), int(tokenizer.pad_token_id))
    learnt = [example for place, example in examples.items() if place not in unfit]
    audit = RowAudit(
        len(learnt),
        sum(len(example.token_ids) for example in learnt),
        sum(example.token_ids[-1] == end for example in learnt) / max(len(learnt), 1),
        max((len(example.prompt_ids) + len(example.token_ids) for example in learnt), default=0),
        [f"row {place}: {reason}" for place, reason in sorted(unfit.items())],
        _counts(unfit.values()),
    )
    return AuditedRows([row for place, row in enumerate(rows) if place not in unfit], unfit, audit)


def refuse_unfit(rows: Sequence[TrainingRow], audited: AuditedRows, most: float) -> None:
    """Raise ConfigError if more than the share `most` of the rows is unfit, saying why and what to do."""
    if len(audited.unfit) <= most * len(rows):
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in audited.audit.unfit.items())
    raise ConfigError(
        f"the audit leaves out {len(audited.unfit)} of {counted(len(rows), 'row')} ({kinds}), more than "
        f"max_unfit = {most:g} of them: {audited.audit.problems[0]}. The answers stay on the ledger: fix the reason, "
        "or raise max_unfit, and run the same command again"
    )


_MASKED = 64
"""The loss mask is checked in this many rows: it depends only on their lengths."""


def _problem(row: TrainingRow, example: Example, text: Text, end: int, max_context: int) -> str:
    """What is wrong with a row, or None."""
    thinking = (row.thinking or "").lstrip()  # the prompt may have begun the thought
    if example.token_ids[-1] != end or any(text.decode([end]) in words for words in (thinking, row.completion)):
        return "stop token: it must have the stop token at its end, and only there"
    text_of_ids = text.decode(example.token_ids[:-1])
    if row.completion not in text_of_ids or thinking not in text_of_ids:
        return f"text: its ids spell {text_of_ids[-60:]!r}, not its text"
    length = len(example.prompt_ids) + len(example.token_ids)
    if length > max_context:
        return f"context: {length} tokens do not fit the student's context of {max_context}"
    return ""


def _unmasked(examples: Mapping[int, Example], pad_id: int) -> dict[int, str]:
    """Rows whose training batch would put weight on anything but the completion's tokens."""
    from train.examples.imitation import imitation_batch

    if not examples:
        return {}
    longest = max(len(example.token_ids) for example in examples.values())
    batch = imitation_batch(list(examples.values()), pad_id, "token", longest)
    unfit: dict[int, str] = {}
    for row, (place, example) in enumerate(examples.items()):
        weighted = {int(at) + 1 for at in (batch.ce[row] > 0).nonzero().flatten()}
        start = len(example.prompt_ids)
        if weighted != set(range(start, start + len(example.token_ids))):
            unfit[place] = "mask: the loss mask is not the assistant's tokens"
    return unfit
