"""How the template of a model folder ends a turn, and whether rows of training data keep to it.

The audit is over ids, not texts: every row must end in the one id that the template ends an assistant turn with, the
ids must spell the text, and the weights must lie on the assistant's ids alone. A model that was trained on rows without
their stop token never stops (open-r1 pull requests 604 and 663).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.spec.sample import TrainingRow
from train.base.models import load_tokenizer
from train.examples.examples import Example, read_examples
from train.examples.imitation import imitation_batch
from ttc.engines.shared.tokens import Text
from ttc.errors import ConfigError

__all__ = ["RowAudit", "audit_rows", "turn_end"]

_PROBE = "zqx"
"""A content that no template writes by itself."""


@dataclass(frozen=True, slots=True)
class RowAudit:
    """Shares and counts over all rows; `problems` are the first few rows that break a rule, in words."""

    num_rows: int
    num_tokens: int
    stop_share: float
    longest: int
    problems: Sequence[str]


def turn_end(folder: Path) -> tuple[int, ...]:
    """Ids that the template writes after an assistant's content; empty when there is no template, or it refuses."""
    from jinja2 import TemplateError

    tokenizer: Any = load_tokenizer(folder)
    if not tokenizer.chat_template:
        return ()
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
    except TemplateError:
        return ()
    tail = text.rpartition(_PROBE)[2].lstrip()
    return tuple(tokenizer.encode(tail, add_special_tokens=False)) if tail else ()


def audit_rows(path: Path, rows: Sequence[TrainingRow], student: Path, max_context: int) -> RowAudit:
    """Audit a file of rows against the student that will learn them; raises ConfigError when a rule is broken."""
    text, tokenizer = Text(student), load_tokenizer(student)
    end = int(tokenizer.eos_token_id)
    ends = turn_end(student)
    if ends and ends[0] != end:
        ending = text.decode([ends[0]])
        raise ConfigError(
            f"the template of {student} ends a turn with {ending!r}, but its tokenizer's end-of-text token is "
            f"{text.decode([end])!r}; set eos_token to {ending!r} in tokenizer_config.json"
        )
    examples = read_examples(path, text, end)
    problems = [
        f"row {number}: {problem}"
        for number, (row, example) in enumerate(zip(rows, examples, strict=True))
        if (problem := _problem(row, example, text, end, max_context))
    ]
    stopped = sum(example.token_ids[-1] == end for example in examples)
    masked = _masked(examples[:64], int(tokenizer.pad_token_id))
    if masked is not None:
        problems.append(masked)
    return RowAudit(
        len(examples),
        sum(len(example.token_ids) for example in examples),
        stopped / len(examples),
        max(len(example.prompt_ids) + len(example.token_ids) for example in examples),
        problems,
    )


def _problem(row: TrainingRow, example: Example, text: Text, end: int, max_context: int) -> str:
    """What is wrong with a row, or nothing."""
    if example.token_ids[-1] != end or end in example.token_ids[:-1]:
        return "the stop token must stand at its end, once"
    text_of_ids = text.decode(example.token_ids[:-1])
    if row.completion not in text_of_ids or (row.thinking or "") not in text_of_ids:
        return f"its ids spell {text_of_ids[-60:]!r}, not its text"
    length = len(example.prompt_ids) + len(example.token_ids)
    if length > max_context:
        return f"{length} tokens do not fit the student's context of {max_context}"
    return ""


def _masked(examples: Sequence[Example], pad_id: int) -> str | None:
    """Whether the batch that training will make puts weight on the completions' tokens and on nothing else."""
    batch = imitation_batch(examples, pad_id, "token", max(len(example.token_ids) for example in examples))
    for row, example in enumerate(examples):
        weighted = {int(place) + 1 for place in (batch.ce[row] > 0).nonzero().flatten()}
        start = len(example.prompt_ids)
        if weighted != set(range(start, start + len(example.token_ids))):
            return f"row {row}: the loss mask is not the assistant's tokens"
    return None
