"""From generated answers to those that are learnt: every stage says keep, or why not, and the reasons are kept.

    routing -> truncated -> verdict -> agreement -> format -> language -> repetition -> contamination -> exact ->
    near -> difficulty -> filters of others, by name -> select

The usual filters run unless a spec drops them (`verdict = false` in [filters]); the others where a spec or the method
names them. Every answer comes out once: kept, or with the stage that dropped it and its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from distill.spec.registries import FILTERS, SELECTORS
from distill.spec.sample import Sample
from ttc.config.plugin_fault import checked_return
from ttc.config.values import parse
from ttc.errors import ConfigError

__all__ = [
    "ORDER",
    "PER_ANSWER",
    "USUAL",
    "Context",
    "Decision",
    "Filter",
    "Funnel",
    "FunnelStage",
    "Selection",
    "Selector",
    "each",
    "kind_of",
    "read_filters",
    "read_selection",
    "run_pipeline",
    "settings_of",
]


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


ORDER = ("routing", "truncated", "verdict", "agreement", "format", "language", "repetition", "contamination", "exact",
         "near", "difficulty")  # fmt: skip
USUAL = ("truncated", "verdict", "format", "repetition", "contamination", "exact")
PER_ANSWER = ("truncated", "verdict", "agreement", "format", "language", "repetition")
"""Filters that judge an answer by itself: what the smoke gate looks at."""


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """One step of the funnel: how many came in, how many were kept, and the dropped ones by kind of reason."""

    name: str
    came: int
    kept: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """What dropped an answer, and why."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Funnel:
    """What came out, what was decided about the rest, and the stages in order."""

    kept: Sequence[Sample]
    dropped: Mapping[str, Decision]
    stages: Sequence[FunnelStage]


def settings_of(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The filters of a job in their order: the usual ones, the method's, and the spec's, which wins.

    Raises:
        ConfigError: an unknown filter, or an entry that is neither a table nor true or false.
    """
    merged: dict[str, Mapping[str, Any]] = {name: {} for name in USUAL}
    for table in (own, given):
        for name, value in table.items():
            if isinstance(value, str):
                value = {"true": True, "false": False}.get(value.lower(), value)
            if value is False:
                FILTERS.load(name)
                merged.pop(name, None)
            elif value is True or isinstance(value, Mapping):
                merged[name] = {**merged.get(name, {}), **({} if value is True else value)}
            else:
                raise ConfigError(f"filters.{name} must be a table, true or false, got {value!r}")
    rank = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(merged.items(), key=lambda entry: (rank.get(entry[0], len(rank)), entry[0])))


def read_filters(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Filter]:
    """Bind filters; raises ConfigError naming the filter and the field."""
    found: dict[str, Filter] = {}
    for name, table in settings.items():
        try:
            found[name] = FILTERS.create(name, table, supply={})
        except ConfigError as exc:
            raise type(exc)(f"[filters.{name}] {exc}") if type(exc) is ConfigError else exc from exc
    return found


def run_pipeline(
    samples: Sequence[Sample], filters: Mapping[str, Filter], context: Context, selection: Selection | None, seed: int
) -> Funnel:
    """Put samples through the filters, in order, and through the selection; raises PluginError for a broken one."""
    left, dropped, stages = list(samples), dict[str, Decision](), list[FunnelStage]()
    for name, judge in filters.items():
        reasons = checked_return("filter", judge, judge(left, context), Sequence, len(left))
        lost = {s.key: reason for s, reason in zip(left, reasons, strict=True) if reason is not None}
        left = _without(left, lost, name, dropped, stages)
    if selection is not None:
        _, lost = selection.choose(left, seed)
        left = _without(left, lost, "select", dropped, stages)
    return Funnel(left, dropped, stages)


def _without(
    samples: list[Sample], lost: Mapping[str, str], name: str, dropped: dict[str, Decision], stages: list[FunnelStage]
) -> list[Sample]:
    dropped.update({key: Decision(name, reason) for key, reason in lost.items()})
    left = [sample for sample in samples if sample.key not in lost]
    kinds = Counter(map(kind_of, lost.values()))
    stages.append(FunnelStage(name, len(samples), len(left), dict(sorted(kinds.items()))))
    return left
