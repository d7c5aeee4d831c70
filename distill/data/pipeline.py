"""Which problems are asked and which answers are learnt: filters drop answers with a reason, a selector ranks the rest.

    filter      factory(**fields of [filters.NAME]) -> Filter;   filter(samples, context) -> a reason each, None to keep
    selector    factory(**fields of [select]) -> Selector;       selector(answers to one prompt, seed) -> the best first

Both are one function in `distill/filters/` or `distill/select/`, an entry point of `ttc.filters` or `ttc.selectors`, or
`path.py:function`. Most filters look at one answer at a time (`each`); duplicates and the like look at all answers
left. A filter states its place in the order (`placed`): routing first, then ends and verdicts, then texts, then
duplicates, then difficulty; filters without a place come last, by name. The usual ones run unless a spec drops them
(`verdict = false` in [filters]), the others only if a spec or the method names them.

    [select]
    rule = "shortest"        a selector
    per_prompt = 4           most answers per prompt (and per purpose, where a method asks for several kinds)

ReST-EM caps at 10, so that easy prompts do not fill the data. Every answer comes out once: kept, or with the stage that
dropped it and its reason, `kind` or `kind: detail`; the funnel counts the kinds. Problems are cleaned before anything
is spent: duplicates, measured ones, and prompts that give their answer away are dropped, by two detectors
(`evals.data.decontamination`): equal texts, and a shared run of n words. What every prompt of a task shares, such as an
instruction, is ignored. Every dropped problem keeps its reason with the matched text. Left out: paraphrases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from distill.spec.registries import FILTERS, SELECTORS
from distill.spec.sample import Sample
from evals.data.decontamination import answer_leaks, normalised, overlaps, own_texts, prompt_text
from evals.task import Item
from ttc.config.plugins import checked_return
from ttc.config.values import parse
from ttc.errors import ConfigError, MissingExtra

Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Context:
    """What filters may know besides the answers.

    `measured` are the texts of measured problems; `pass_rates` is the student's share of right answers by prompt, where
    it was asked.
    """

    measured: Sequence[str] = ()
    pass_rates: Mapping[str, float] = field(default_factory=dict)


Filter: TypeAlias = Callable[[Sequence[Sample], Context], Sequence[str | None]]
"""(samples, context) -> for each sample a reason to drop it, or None."""


@dataclass(frozen=True, slots=True)
class PerAnswer:
    """A filter that judges every answer by itself; the smoke gate applies these to the first answers."""

    judge: Callable[[Sample], str | None]

    def __call__(self, samples: Sequence[Sample], context: Context) -> list[str | None]:
        """See `Filter`."""
        return [self.judge(sample) for sample in samples]


def each(judge: Callable[[Sample], str | None]) -> PerAnswer:
    """A filter that looks at one answer at a time."""
    return PerAnswer(judge)


@dataclass(frozen=True, slots=True)
class FilterPlace:
    """A filter's place in the pipeline, the lowest number first, and whether every job has it."""

    number: int = 1000
    usual: bool = False


def placed(number: int, *, usual: bool = False) -> Callable[[Factory], Factory]:
    """Give a filter's factory the place of its filter; without one it comes last."""

    def mark(factory: Factory) -> Factory:
        vars(factory)["place"] = FilterPlace(number, usual)
        return factory

    return mark


def place_of(name: str) -> FilterPlace:
    """The place of the filter of this name; raises ConfigError when there is no such filter."""
    place = getattr(FILTERS.load(name), "place", None)
    return place if isinstance(place, FilterPlace) else FilterPlace()


def kind_of(reason: str) -> str:
    """The kind of a reason, which the funnel counts."""
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
        """The samples taken, in the order of `samples`, and for the rest their keys and reasons."""
        groups: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            groups.setdefault((sample.prompt, sample.label), []).append(sample)
        best: set[str] = set()
        for group in groups.values():
            ordered = checked_return("selector", self.order, self.order(group, seed), Sequence)  # type: ignore[type-abstract]
            best |= {sample.key for sample in ordered[: self.per_prompt]}
        why = f"not among the first {self.per_prompt} by {self.rule}"
        return [s for s in samples if s.key in best], {s.key: why for s in samples if s.key not in best}


def read_selection(table: Mapping[str, Any]) -> Selection:
    """Bind the table [select]; raises ConfigError naming the field."""
    options = dict(table)
    rule = str(options.pop("rule", "shortest"))
    per_prompt = parse("select.per_prompt", options.pop("per_prompt", 4), int)
    if per_prompt < 1:
        raise ConfigError(f"select.per_prompt must be at least 1, got {per_prompt}")
    return Selection(rule, SELECTORS.create(rule, options, supply={}), per_prompt)


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
    """The answers kept, the decisions about the rest, and the stages in order."""

    kept: Sequence[Sample]
    dropped: Mapping[str, Decision] = field(default_factory=dict)
    stages: Sequence[FunnelStage] = ()

    def without(self, lost: Mapping[str, str], stage: str) -> Funnel:
        """The funnel after another stage, which has dropped the answers of these keys for these reasons."""
        kept = [sample for sample in self.kept if sample.key not in lost]
        dropped = {key: Decision(stage, reason) for key, reason in lost.items()}
        kinds = Counter(map(kind_of, lost.values()))
        row = FunnelStage(stage, len(self.kept), len(kept), dict(sorted(kinds.items())))
        return Funnel(kept, {**self.dropped, **dropped}, (*self.stages, row))


def settings_of(own: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The filters of a job in order: the usual ones, the method's, and the spec's, which takes precedence.

    Raises:
        ConfigError: an unknown filter, or an entry that is neither a table nor true or false.
    """
    merged: dict[str, Mapping[str, Any]] = {name: {} for name in FILTERS.names() if _is_usual(name)}
    for table in (own, written):
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
    return dict(sorted(merged.items(), key=lambda entry: (place_of(entry[0]).number, entry[0])))


def _is_usual(name: str) -> bool:
    """Whether every job has this filter; one whose packages are not installed runs only when it is named."""
    try:
        return place_of(name).usual
    except MissingExtra:
        return False


def read_filters(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Filter]:
    """Bind filters; raises ConfigError naming the filter and the field."""
    filters: dict[str, Filter] = {}
    for name, table in settings.items():
        try:
            filters[name] = FILTERS.create(name, table, supply={})
        except ConfigError as exc:
            raise type(exc)(f"[filters.{name}] {exc}") if type(exc) is ConfigError else exc from exc
    return filters


def run_pipeline(
    samples: Sequence[Sample], filters: Mapping[str, Filter], context: Context, selection: Selection | None, seed: int
) -> Funnel:
    """Put samples through the filters, in order, and through the selection; raises PluginError for a broken one."""
    funnel = Funnel(list(samples))
    for name, judge in filters.items():
        returned = judge(funnel.kept, context)
        reasons = checked_return("filter", judge, returned, Sequence, len(funnel.kept))  # type: ignore[type-abstract]
        lost = {s.key: reason for s, reason in zip(funnel.kept, reasons, strict=True) if reason is not None}
        funnel = funnel.without(lost, name)
    if selection is not None:
        _, lost = selection.choose(funnel.kept, seed)
        funnel = funnel.without(lost, "select")
    return funnel


@dataclass(frozen=True, slots=True)
class Prompts:
    """The problems that stay, and the dropped ones: (id, reason), `kind: detail`."""

    items: Sequence[Item]
    dropped: Sequence[tuple[str, str]]


def clean_prompts(items: Sequence[Item], measured: Sequence[Sequence[Item]]) -> Prompts:
    """Drop problems that should not be asked.

    Args:
        items: the training problems of one domain.
        measured: the problems of every measured task, task by task.
    """
    reasons: dict[int, str] = {}
    for held_out in measured:
        texts = own_texts([*items, *held_out])
        for overlap in overlaps(texts[: len(items)], texts[len(items) :]):
            name = held_out[overlap.held_out].problem.id
            reasons.setdefault(overlap.train, f"measured ({overlap.how}): {name}: {overlap.shared[:80]}")
        variants = {item.cluster: item.problem.id for item in held_out if item.cluster}
        for place, item in enumerate(items):
            if item.cluster in variants:
                name = variants[item.cluster]
                reasons.setdefault(place, f"measured (cluster): {name}: both are variants of {item.cluster[:80]}")
    leaks = {leak.problem_id: leak.shared for leak in answer_leaks(items)}
    first: dict[str, str] = {}
    for place, item in enumerate(items):
        same = first.setdefault(normalised(prompt_text(item)), item.problem.id)
        if same != item.problem.id:
            reasons.setdefault(place, f"duplicate: {same}")
        if item.problem.id in leaks:
            reasons.setdefault(place, f"tells its answer: {leaks[item.problem.id][:80]}")
    left = [item for place, item in enumerate(items) if place not in reasons]
    return Prompts(left, [(items[place].problem.id, reasons[place]) for place in sorted(reasons)])
