"""Keep, per domain, the answers of its best teacher: the one with the largest share of right answers there.

Every teacher was asked the same problems equally often, so shares of right answers are win rates. They are over the
draws that all teachers answered: a failed call on a hard problem is no advantage. A teacher whose domains were set by
hand is compared only there. A tie goes to the teacher named first. No verdict is not a win. This filter must see all
answers, so it comes before every other one. Left out: routing within a domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distill.data.pipeline import Context, Filter, placed
from distill.spec.sample import Sample


@placed(10)
def routing() -> Filter:
    """Keep the answers of each domain's best teacher."""

    def judge(samples: Sequence[Sample], context: Context) -> list[str | None]:
        rates = win_rates(samples)
        best = winners(rates)
        return [_reason(sample, rates[sample.domain], best[sample.domain]) for sample in samples]

    return judge


def win_rates(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Share of right answers by domain and teacher, in the order of the teachers; 0 without a common draw."""
    right: dict[str, dict[str, dict[tuple[str, int], bool]]] = {}
    for sample in samples:
        is_right = sample.verdict is not None and sample.verdict.correct
        right.setdefault(sample.domain, {}).setdefault(sample.teacher, {})[sample.prompt, sample.index] = is_right
    return {domain: _rates(teachers) for domain, teachers in right.items()}


def _rates(teachers: Mapping[str, Mapping[tuple[str, int], bool]]) -> dict[str, float]:
    """Shares of right answers by teacher; `teachers` says for each (prompt, draw number) whether it was right."""
    common = set.intersection(*(set(answers) for answers in teachers.values()))
    return {name: sum(answers[draw] for draw in common) / max(len(common), 1) for name, answers in teachers.items()}


def winners(rates: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """The teacher of every domain."""
    return {domain: max(teachers, key=lambda name: teachers[name]) for domain, teachers in rates.items()}


def _reason(sample: Sample, rates: Mapping[str, float], best: str) -> str | None:
    if sample.teacher == best:
        return None
    return (
        f"another teacher's domain: {best} solves {rates[best]:.3f} of {sample.domain}, "
        f"{sample.teacher} {rates[sample.teacher]:.3f}"
    )
