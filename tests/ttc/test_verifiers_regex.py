"""Regular expressions of tasks: each pattern has its result, and none can hang."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.loops import verdicts
from tests.timing import patience
from tests.ttc.hostile import hostile_texts
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.regex import regex


def judge_all(cases: list[tuple[object, str]], **options: Any) -> list[Verdict]:
    return verdicts(regex(**options), cases)


def test_required_and_forbidden_patterns_are_judged_one_by_one() -> None:
    target = {"require": [r"^\d+$", "b"], "forbid": ["c"]}
    first, second, third = judge_all([(target, "12\nb"), (target, "12\nabc"), (r"\d", "<think>1</think>x")])
    assert first.correct
    assert (second.status, second.reason) == ("incorrect", "forbid 0")
    assert second.parts == {"require 0": 1, "require 1": 1, "forbid 0": 0}
    assert second.score == pytest.approx(2 / 3)
    assert third.status == "incorrect"


def test_the_final_answer_alone_can_be_matched_whole() -> None:
    cases: list[tuple[object, str]] = [("[ab]+", r"b c \boxed{AB}"), ("[ab]+", r"\boxed{abc}"), ("a", "two\nlines")]
    verdicts = judge_all(cases, where="final", whole=True, ignore_case=True)
    assert [verdict.status for verdict in verdicts] == ["correct", "incorrect", "no_answer"]


def test_a_pattern_that_backtracks_for_ever_is_a_timeout_and_the_next_verdict_comes() -> None:
    started = time.perf_counter()
    slow, quick = judge_all([(r"(a+)+$", "a" * 60 + "!"), ("a", "a")], timeout_s=0.5)
    assert (slow.status, slow.score) == ("timeout", None)
    assert quick.correct
    assert time.perf_counter() - started < 10


@pytest.mark.long
def test_hostile_texts_are_judged_in_time() -> None:
    texts = [*hostile_texts().values(), "x" * 200_001]
    verdicts = judge_all([(r"(\w+\s?)*\d$", text) for text in texts], timeout_s=0.3)
    assert {verdict.status for verdict in verdicts} <= {"correct", "incorrect", "no_answer", "limit", "timeout"}
    assert max(verdict.seconds for verdict in verdicts) < 0.8 * patience()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("(", r"target\.require\[0\]: '\(' is not a regular expression"),
        (5, r"target\.require\[0\] must be a pattern"),
        ({}, "needs a pattern"),
        ({"require": "a"}, r"target\.require must be a list"),
        ({"forbids": ["a"]}, "did you mean 'forbid'"),
    ],
)
def test_a_broken_target_names_its_field(target: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"row 7: .*{message}"):
        regex().check_gold(target, "row 7")


def test_all_is_the_thinking_its_end_and_the_text() -> None:
    target = {"require": [r"\S</think>4$"]}
    judged = verdicts(regex(where="all"), [(target, Submission("4", "2+2")), (target, "4"), (target, "24")])
    assert [verdict.status for verdict in judged] == ["correct", "incorrect", "incorrect"]
