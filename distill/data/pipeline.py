"""From generated answers to those that are learnt: every stage says keep, or why not, and the reasons are kept.

    routing -> truncated -> verdict -> agreement -> format -> language -> repetition -> contamination -> exact ->
    near -> difficulty -> filters of others, by name -> select

The usual filters run unless a spec drops them (`verdict = false` in [filters]); the others where a spec or the method
names them. Every answer comes out once: kept, or with the stage that dropped it and its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distill.data.filtering import Context, Filter, kind_of
from distill.data.selection import Selection
from distill.spec.registries import FILTERS
from distill.spec.sample import Sample
from ttc.config.plugin_fault import checked_return
from ttc.errors import ConfigError

__all__ = ["ORDER", "PER_ANSWER", "USUAL", "Decision", "Funnel", "Stage", "read_filters", "run_pipeline", "settings_of"]

ORDER = ("routing", "truncated", "verdict", "agreement", "format", "language", "repetition", "contamination", "exact",
         "near", "difficulty")  # fmt: skip
USUAL = ("truncated", "verdict", "format", "repetition", "contamination", "exact")
PER_ANSWER = ("truncated", "verdict", "agreement", "format", "language", "repetition")
"""Filters that judge an answer by itself: what the smoke gate looks at."""


@dataclass(frozen=True, slots=True)
class Stage:
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
    stages: Sequence[Stage]


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
    left, dropped, stages = list(samples), dict[str, Decision](), list[Stage]()
    for name, judge in filters.items():
        reasons = checked_return("filter", judge, judge(left, context), Sequence, len(left))
        lost = {s.key: reason for s, reason in zip(left, reasons, strict=True) if reason is not None}
        left = _without(left, lost, name, dropped, stages)
    if selection is not None:
        _, lost = selection.choose(left, seed)
        left = _without(left, lost, "select", dropped, stages)
    return Funnel(left, dropped, stages)


def _without(
    samples: list[Sample], lost: Mapping[str, str], name: str, dropped: dict[str, Decision], stages: list[Stage]
) -> list[Sample]:
    dropped.update({key: Decision(name, reason) for key, reason in lost.items()})
    left = [sample for sample in samples if sample.key not in lost]
    kinds = Counter(map(kind_of, lost.values()))
    stages.append(Stage(name, len(samples), len(left), dict(sorted(kinds.items()))))
    return left
