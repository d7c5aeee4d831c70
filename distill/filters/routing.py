"""Keep, per domain, the answers of the teacher that measurably wins it: the most of its answers there are right.

Every teacher was asked the same problems as often, so shares of right answers are win rates, over the draws that all of
them answered: who was spared a hard problem by a call that failed does not win by it. A teacher that was given its
domains by hand is only compared there. A tie goes to the teacher that is named first. No verdict is not a win. It must
see all answers, so it stands before every other filter. Left out: routing within a domain.
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
    """Share of right answers by domain and teacher, in the order in which teachers come; 0 without a common draw."""
    right: dict[str, dict[str, dict[tuple[str, int], bool]]] = {}
    for sample in samples:
        is_right = sample.verdict is not None and sample.verdict.correct
        right.setdefault(sample.domain, {}).setdefault(sample.teacher, {})[sample.prompt, sample.index] = is_right
    return {domain: _rates(teachers) for domain, teachers in right.items()}


def _rates(teachers: Mapping[str, Mapping[tuple[str, int], bool]]) -> dict[str, float]:
    """Shares of right answers by teacher; `teachers` say of each (prompt, number of the draw) whether it was right."""
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
