"""What every filter and every selector keeps to, built in or a user's own: the suites that `test_conformance` runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from distill.data.pipeline import Context, place_of, read_filters, read_selection, run_pipeline, settings_of
from distill.spec.registries import FILTERS, SELECTORS
from distill.spec.sample import Sample
from tests.distill.pieces import sample
from ttc.errors import ConfigError

CONTEXT = Context(measured=("how much is the fish that nobody else in this town ever wanted to buy today",),
                  pass_rates={"task/p": 0.5, "task/easy": 1.0})  # fmt: skip


def samples() -> list[Sample]:
    """Answers of every kind: right, wrong, cut, empty, equal, looping, without a verdict, of easy problems."""
    texts = ["7", "it is 7", "It is  7", "", "a<think>7", "and then again " * 40, "\ud55c\uad6d\uc5b4\ub85c \uc4f4 7"]
    plain = [sample(text, index=index, tokens=index % 4 + 1) for index, text in enumerate(texts)]
    verdicts = [sample("8", status=status, index=20) for status in ("incorrect", "timeout", None)]
    cut, bare = sample("7", finish="length", index=30), sample("7", final=None, index=31)
    others = [cut, bare, sample("7", problem="easy", index=32, score=0.3), sample("9", others=["7", None], index=33)]
    return list({one.key: one for one in [*plain, *verdicts, *others]}.values())


def filter_describes_itself(name: str) -> None:
    """Its help says what it is for and what each of its parameters means; an unknown one is refused by name."""
    described = FILTERS.describe(name)
    assert described.doc and all(parameter.doc for parameter in described.parameters)
    with pytest.raises(ConfigError, match="no_such_field"):
        read_filters({name: {"no_such_field": 1}})


def filter_gives_one_reason_a_sample(name: str) -> None:
    """A reason or None for each, in order; none for none; the same again for the same answers."""
    (judge,) = read_filters({name: {}}).values()
    given = samples()
    before = list(given)
    reasons = list(judge(given, CONTEXT))
    assert given == before
    assert len(reasons) == len(given)
    assert all(reason is None or reason.partition(":")[0].strip() for reason in reasons)
    assert list(judge([], CONTEXT)) == []
    assert list(judge(given, CONTEXT)) == reasons


def filter_stands_in_the_pipeline(name: str) -> None:
    """A spec that names it has it once, before those of a higher place, and the funnel still adds up."""
    settings = settings_of({}, {name: True})
    numbers = [place_of(other).number for other in settings]
    assert name in settings and numbers == sorted(numbers)
    funnel = run_pipeline(samples(), read_filters(settings), CONTEXT, None, 1)
    assert {one.key for one in samples()} == {one.key for one in funnel.kept} | set(funnel.dropped)
    assert all(stage.came - stage.kept == sum(stage.reasons.values()) for stage in funnel.stages)


def selector_describes_itself(name: str) -> None:
    """As a filter does."""
    described = SELECTORS.describe(name)
    assert described.doc and all(parameter.doc for parameter in described.parameters)
    with pytest.raises(ConfigError, match="no_such_field"):
        read_selection({"rule": name, "no_such_field": 1})


def selector_orders_all_of_them(name: str) -> None:
    """It gives back every answer once, one of one, and changes nothing of what it was given."""
    order = read_selection({"rule": name}).order
    given = samples()
    before = list(given)
    assert sorted(one.key for one in order(given, 1)) == sorted(one.key for one in given)
    assert given == before
    assert [one.key for one in order(given[:1], 1)] == [given[0].key]


def selector_depends_on_answers_and_seed_alone(name: str) -> None:
    """Who answered first decides nothing."""
    order = read_selection({"rule": name}).order
    given = samples()
    assert [one.key for one in order(given, 3)] == [one.key for one in order(given[::-1], 3)]


FILTER_SUITE: tuple[Callable[[str], None], ...] = (
    filter_describes_itself, filter_gives_one_reason_a_sample, filter_stands_in_the_pipeline,
)  # fmt: skip
SELECTOR_SUITE: tuple[Callable[[str], None], ...] = (
    selector_describes_itself, selector_orders_all_of_them, selector_depends_on_answers_and_seed_alone,
)  # fmt: skip
