"""What a filter is: generated answers in, for each a reason to drop it, or None to keep it.

    factory(**fields of [filters.NAME]) -> Filter;  filter(samples, context) -> reasons

A filter is a function in `distill/filters/` or an entry point of `ttc.filters`. Most look at one answer at a time
(`each`); duplicates and the like look at all that are left. A reason is `kind` or `kind: detail`; the funnel counts the
kinds, and every dropped answer keeps the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from distill.spec.sample import Sample

__all__ = ["Context", "Filter", "each", "kind_of"]


@dataclass(frozen=True, slots=True)
class Context:
    """What filters may know besides the answers.

    `measured` are the texts of problems that something is measured on; `pass_rates` the student's share of right
    answers by prompt, where it was asked.
    """

    measured: Sequence[str] = ()
    pass_rates: Mapping[str, float] = field(default_factory=dict)


Filter: TypeAlias = Callable[[Sequence[Sample], Context], Sequence[str | None]]
"""(samples, context) -> for each sample a reason to drop it, or None."""


def each(judge: Callable[[Sample], str | None]) -> Filter:
    """A filter that looks at one answer at a time."""
    return lambda samples, context: [judge(sample) for sample in samples]


def kind_of(reason: str) -> str:
    """What the funnel counts."""
    return reason.partition(":")[0]
