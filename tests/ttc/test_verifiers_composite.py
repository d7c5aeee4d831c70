"""Rewards made of several verifiers: weights, vetoes, schedules, and parts without a verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.config.registry import VERIFIERS
from ttc.config.signatures import bind
from ttc.core import Status, Submission, TargetLike, Verdict, Verifier
from ttc.errors import ConfigError, UnknownName, VerifierError
from ttc.verifiers.composite import CompositeVerifier, Part, composite
from ttc.verifiers.service.service import Service
from ttc.verifiers.shared.contract import Canary

CANARIES = (Canary("t", "x", "correct"), Canary("t", "y", "incorrect"))


class Fixed(Verifier):
    """Says the same of everything, and keeps the target."""

    name = "fixed"

    def __init__(self, status: Status, score: float | None) -> None:
        self._verdict = Verdict(status, score, reason=f"it is {status}", version="1")
        self.version = f"fixed-{status}-{score}"
        self.target: TargetLike = "never asked"

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        self.target = target
        return self._verdict

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        raise ConfigError(f"{item} sees {target!r}")


RIGHT, WRONG, HALF = Fixed("correct", 1.0), Fixed("incorrect", 0.0), Fixed("incorrect", 0.5)
LATE, SILENT = Fixed("timeout", None), Fixed("no_answer", None)


def judge(*parts: Part, target: TargetLike = "t", step: int = 0) -> Verdict:
    return asyncio.run(CompositeVerifier(parts, CANARIES, step).verify(target, Submission("x")))


def test_the_score_is_the_mean_by_weight_and_every_part_is_logged() -> None:
    verdict = judge(Part("answer", RIGHT, 3.0), Part("form", HALF, 1.0))
    assert (verdict.status, verdict.score) == ("incorrect", 0.875)
    assert verdict.parts == {"answer": 1.0, "form": 0.5}
    assert verdict.reason == "form"
    assert judge(Part("answer", RIGHT), Part("form", RIGHT)).correct


def test_a_veto_makes_it_zero_whatever_the_others_say() -> None:
    verdict = judge(Part("answer", RIGHT), Part("late", LATE), Part("safe", HALF, 0.0, veto=True))
    assert (verdict.status, verdict.score, verdict.reason) == ("incorrect", 0.0, "vetoed by safe")
    assert verdict.parts == {"answer": 1.0, "safe": 0.5}
    assert judge(Part("answer", RIGHT), Part("safe", RIGHT, 0.0, veto=True)).score == 1.0


@pytest.mark.parametrize(("part", "status"), [(LATE, "timeout"), (SILENT, "no_answer")])
def test_a_needed_part_without_a_verdict_leaves_none_never_zero(part: Fixed, status: str) -> None:
    verdict = judge(Part("answer", RIGHT), Part("other", part))
    assert (verdict.status, verdict.score) == (status, None)
    assert verdict.reason == f"other: it is {status}"
    assert verdict.parts == {"answer": 1.0}
    assert judge(Part("answer", RIGHT), Part("other", part, 0.0, veto=True)).score is None


def test_an_optional_part_without_a_verdict_is_left_out() -> None:
    assert judge(Part("answer", HALF, 3.0), Part("other", LATE, 9.0, optional=True)).score == 0.5
    alone = judge(Part("other", LATE, optional=True))
    assert (alone.status, alone.score) == ("no_answer", None)


def test_a_part_without_weight_at_a_step_is_logged_but_does_not_count() -> None:
    verdict = judge(Part("answer", RIGHT), Part("form", WRONG, ((0.0, 0.0), (10.0, 1.0))), Part("late", LATE, 0.0))
    assert (verdict.status, verdict.score, verdict.parts) == ("correct", 1.0, {"answer": 1.0, "form": 0.0})


def test_weights_follow_the_steps_of_a_training() -> None:
    part = Part("form", RIGHT, ((0.0, 1.0), (100.0, 0.0), (200.0, 0.5)))
    assert [part.weight_at(step) for step in (-5, 0, 50, 100, 150, 200, 900)] == [1.0, 1.0, 0.5, 0.0, 0.25, 0.5, 0.5]
    whole = CompositeVerifier([Part("answer", WRONG), part], CANARIES)
    scores = {step: asyncio.run(whole.at(step).verify("t", Submission("x"))).score for step in (0, 50, 100)}
    assert scores == {0: 0.5, 50: 0.5 / 1.5, 100: 0.0}
    assert whole.at(50).version != whole.version == whole.at(0).version


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=6, unique=True), st.floats(-100, 1000))
def test_a_weight_lies_between_the_points_around_it(weights: list[float], step: float) -> None:
    part = Part("x", RIGHT, tuple((100.0 * i, weight) for i, weight in enumerate(weights)))
    assert min(weights) - 1e-9 <= part.weight_at(step) <= max(weights) + 1e-9


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan"), (), ((5.0, 1.0), (1.0, 1.0)), ((0.0, -1.0),)])
def test_impossible_weights_are_refused(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"x\.weight"):
        Part("x", RIGHT, weight)


def test_a_composite_without_weight_or_with_twin_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match="no part has a weight at step 7"):
        CompositeVerifier([Part("x", RIGHT, 0.0)], CANARIES, 7)
    with pytest.raises(ConfigError, match="one name"):
        CompositeVerifier([Part("x", RIGHT), Part("x", WRONG)], CANARIES)


def test_a_target_may_be_split_over_the_parts() -> None:
    one, two = Fixed("correct", 1.0), Fixed("correct", 1.0)
    parts = (Part("one", one), Part("two", two))
    judge(*parts, target={"parts": {"one": 1}})
    assert (one.target, two.target) == (1, None)
    judge(*parts, target={"answer": 2})
    assert one.target == two.target == {"answer": 2}
    with pytest.raises(ConfigError, match="row 3: one sees 1"):
        CompositeVerifier(parts, CANARIES).check_gold({"parts": {"one": 1}}, "row 3")


SPEC = r"""
[parts.answer]
verifier = "math"
weight = 1.0
params = { kind = "number" }

[parts.form]
verifier = "format"
weight = [[0, 0.5], [200, 0.1]]

[[known]]
target = "4"
text = '\boxed{4}'
status = "correct"

[[known]]
target = "4"
text = 'the answer is 4'
status = "incorrect"
"""


def make(path: Path, text: str, **options: Any) -> CompositeVerifier:
    (path / "reward.toml").write_text(text)
    factory = VERIFIERS.load("composite")
    found = factory(**bind(factory, {"spec": str(path / "reward.toml"), **options}, supply={}))
    assert isinstance(found, CompositeVerifier)
    return found


def test_a_reward_is_read_from_a_file_and_its_known_cases_guard_the_start(tmp_path: Path) -> None:
    service = Service(make(tmp_path, SPEC))
    service.start()
    verdict = service.submit("4", Submission("the answer is 4")).result(10)
    assert verdict.score == pytest.approx((1.0 + 0.5 * 0.75) / 1.5)
    asyncio.run(service.close())
    assert "answer: target" in make(tmp_path, SPEC).card.inputs
    wrong = Service(make(tmp_path, SPEC.replace(r"'\boxed{4}'", r"'\boxed{5}'")))
    with pytest.raises(VerifierError, match="fails a known case"):
        wrong.start()
    asyncio.run(wrong.close())
    assert make(tmp_path, SPEC, step="200").version != make(tmp_path, SPEC).version


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('verifier = "math"', 'verifier = "maths"', "maths"),
        ('verifier = "math"', "", "parts.answer.verifier' is required"),
        ("weight = 1.0", 'weight = "heavy"', "parts.answer.weight must be"),
        ("weight = 1.0", "wait = 1.0", "parts.answer.wait'; did you mean 'weight'"),
        ("[parts.answer]", "[part.answer]", "nothing else"),
        ("[parts.answer]", "[parts]\nanswer = 5\n[parts.other]", "parts.answer must be a table"),
        ("params = { kind", "params = { sort", "sort"),
        ('status = "correct"', 'status = "good"', "known: status"),
        ('status = "correct"', 'status = "incorrect"', "canaries must show"),
        ("[[known]]", "[[known]", "cannot be read"),
    ],
)
def test_a_broken_reward_file_names_the_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises((ConfigError, UnknownName), match=message):
        make(tmp_path, SPEC.replace(old, new))
    assert composite.__name__ == "composite"
