"""Which of the kept answers to one prompt are learnt: a rule that orders them, and a cap.

    [select]
    rule = "shortest"        a function of distill/select or of the entry-point group ttc.selectors
    per_prompt = 4           most answers per prompt (and per purpose, where a method asks for several kinds)

ReST-EM caps at 10, so that easy prompts do not fill the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from distill.spec.registries import SELECTORS
from distill.spec.sample import Sample
from ttc.config.plugin_fault import checked_return
from ttc.config.values import parse
from ttc.errors import ConfigError

__all__ = ["Selection", "Selector", "read_selection"]

Selector: TypeAlias = Callable[[Sequence[Sample], int], Sequence[Sample]]
"""(answers to one prompt, seed) -> the same, the best first."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A bound rule and its cap."""

    rule: str
    order: Selector
    per_prompt: int

    def choose(self, samples: Sequence[Sample], seed: int) -> tuple[list[Sample], dict[str, str]]:
        """What is taken, in the order of `samples`, and for the rest its key and why not."""
        groups: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            groups.setdefault((sample.prompt, sample.label), []).append(sample)
        taken: set[str] = set()
        for group in groups.values():
            ordered = checked_return("selector", self.order, self.order(group, seed), Sequence)
            taken |= {sample.key for sample in ordered[: self.per_prompt]}
        why = f"not among the first {self.per_prompt} by {self.rule}"
        return [s for s in samples if s.key in taken], {s.key: why for s in samples if s.key not in taken}


def read_selection(table: Mapping[str, Any]) -> Selection:
    """Bind the table [select]; raises ConfigError naming the field."""
    given = dict(table)
    rule = str(given.pop("rule", "shortest"))
    per_prompt = parse("select.per_prompt", given.pop("per_prompt", 4), int)
    if per_prompt < 1:
        raise ConfigError(f"select.per_prompt must be at least 1, got {per_prompt}")
    return Selection(rule, SELECTORS.create(rule, given, supply={}), per_prompt)
