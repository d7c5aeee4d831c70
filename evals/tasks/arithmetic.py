"""Procedural arithmetic by level, held out from every training split; the target is the exact value.

The generator is `evals.worlds.arithmetic`. Problems never run out and cost microseconds; problem i of a seed is the
same whatever the limit. The question is bare (`Compute (23+48)*3-17.`): that is what the embedded family was trained
on. Written with spaces (`Compute (23 + 48) * 3 - 17.`) it is a wording that the family never saw.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from evals.task import Item, Task
from evals.worlds.arithmetic import DEFAULT_LEVEL, LEVELS, sample_expression
from evals.worlds.supply import Split, distinct
from ttc import seeds
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError

DEFAULT_LIMIT = 1000

Wording = Literal["bare", "spaced"]


def arithmetic(*, level: int = DEFAULT_LEVEL, split: Split = "eval", wording: Wording = "bare") -> Task:
    """Evaluate expressions of +, - and * over whole numbers.

    Args:
        level: difficulty, 1 (one operation) to 7 (nine or ten).
        split: eval (what is measured on) or train; no expression is in both.
        wording: bare, or spaced for spaces around every operator.
    """
    if level not in LEVELS:
        raise ConfigError(f"arithmetic: level must be one of {sorted(LEVELS)}, got {level}")
    choices = {"split": (split, "eval"), "wording": (wording, "bare")}
    changed = {name: value for name, (value, default) in choices.items() if value != default}
    return Task(
        name="arithmetic",
        kind="number",
        load=lambda limit, seed: map(
            _WORDINGS[wording], _items(level, split, DEFAULT_LIMIT if limit is None else limit, seed)
        ),
        sampling=Sampling(max_tokens=512),
        params={"level": level, **changed},
        procedural=True,
    )


def _spaced(item: Item) -> Item:
    """The same item with spaces around its operators."""
    (message,) = item.problem.messages
    spaced_message = Message(message.role, re.sub(r"(?<=[\d)])([-+*])", r" \1 ", message.content))
    return replace(item, problem=replace(item.problem, id=f"{item.problem.id}-spaced", messages=(spaced_message,)))


_WORDINGS = MappingProxyType({"bare": lambda item: item, "spaced": _spaced})


def _items(level: int, split: Split, limit: int, seed: int) -> Iterator[Item]:
    expressions = distinct(
        lambda i, _: sample_expression(random.Random(seeds.derive(seed, "arithmetic", level, i)), level, split),
        lambda expression: expression.text,
        limit,
        f"arithmetic level {level} has fewer than {limit} distinct problems",
    )
    for number, expression in enumerate(expressions):
        name = f"arithmetic-l{level}-s{seed}-{'' if split == 'eval' else 'train-'}{number}"
        problem = Problem(name, (Message("user", expression.prompt),), "number", {"level": level})
        yield Item(problem, str(expression.value), expression.text, str(level))
