"""The mathematics verifier knows what was asked: wrong answers and wrong refusals that were seen, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evals.task import Item
from tests.ttc.kept_verifiers import KeptVerifiers
from ttc.answers.grammar import parse
from ttc.answers.normal import identical
from ttc.answers.plain import plain
from ttc.core import Message, Problem, Target, TargetLike
from ttc.errors import ConfigError
from ttc.verifiers.math import math
from ttc.verifiers.maths.asked import with_question
from ttc.verifiers.shared.contract import read_gold

Pairs = Sequence[tuple[TargetLike, str]]

KEPT = KeptVerifiers(math)
judge = KEPT.judge
ended = KEPT.ended()


def statuses(pairs: Pairs, **options: Any) -> list[str]:
    """Their statuses."""
    return [verdict.status for verdict in judge(pairs, **options)]


def asked(question: str, answer: str, **more: Any) -> dict[str, Any]:
    """A target with its question."""
    return {"answer": answer, "question": question, **more}


WRONG: dict[str, Pairs] = {
    "left unevaluated": [
        ("14", r"\boxed{2+3\cdot4}"), ("5", r"\boxed{10/2}"), ("7", r"\boxed{7+0}"), ("6", r"\boxed{3!}"),
        (r"\frac{\sqrt{3}}{2}", r"\boxed{\sin 60^\circ}"), ("2", r"\boxed{2 = 1+1}"), ("3", r"\boxed{(1+2)}"),
    ],
    "restated": [
        (asked("Factor $x^2-1$.", "(x-1)(x+1)"), r"\boxed{x^2-1}"),
        (asked("Factor $x^2-1$.", "(x-1)(x+1)"), r"\boxed{x^2-1+0}"),
        (asked("Expand $(x+1)^2$.", "x^2+2x+1"), r"\boxed{(x+1)^2}"),
        (asked(r"Simplify $\sqrt{48}$.", r"4\sqrt{3}"), r"\boxed{\sqrt{48}}"),
        (asked(r"Simplify $\sqrt{48}$.", r"4\sqrt{3}"), r"\boxed{2\sqrt{12}}"),
        (asked(r"Write $\frac{x^2-1}{x-1}$ in another way.", "x+1"), r"\boxed{\frac{x^2-1}{x-1}}"),
    ],
    "white space": [
        ("56", r"\boxed{5 6}"), ("11/2", r"\boxed{1 1/2}"), ("23/4", r"\boxed{2 3/4}"), ("680", r"\boxed{6 80}"),
        ("56", r"\boxed{5\ 6}"), ("1234", r"\boxed{12 34}"),
    ],
    "words in the box": [
        ("5", r"\boxed{5 \text{ or any other number}}"), ("3", r"\boxed{3 \text{ is wrong, it is 4}}"),
        ("5 million", r"\boxed{5}"), ("5", r"\boxed{5 \text{ million}}"), ("5", r"\boxed{5 \text{ dozen}}"),
        ("5", r"\boxed{5 \text{ squared}}"), ("5", r"\boxed{\text{not } 5}"),
    ],
    "beyond a breakpoint": [
        ("10-x", r"\boxed{|x-10|}"), ("x", r"\boxed{\min(x,10)}"), ("x", r"\boxed{\max(x,-100000)}"),
        (r"\lfloor\sqrt{n-1}\rfloor", r"\boxed{\lfloor n-1\rfloor}"), ("x+12345", r"\boxed{\sqrt{(x+12345)^2}}"),
        ("x", r"\boxed{\lfloor x+\frac12\rfloor}"),
    ],
    "a trifle": [
        ("x^2", r"\boxed{x^2+10^{-150}}"), (r"\sin(x)", r"\boxed{\sin(x+10^{-200})}"),
        (r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}"),
    ],
    "phrases": [
        ("5", "The answer is not 5."), ("4", "The answer is one of $4$, $5$, $6$."),
        ("5", "The answer is less than 5."),
        ("3", "The answer is somewhere between $3$ and $10$."), ("5", "The answer is 5 or so, maybe 6."),
        ("5", "The answer is at most 5."), ("5", "The answer is twice 5."), ("5", "The answer is 5 dozen."),
        ("5", "The answer is 5x."), ("5", r"The answer is $5$ or maybe $6$."),
    ],
    "taken back": [
        ("7", r"\boxed{7}. Wait, that is wrong. The answer is 8."), ("14", r"\boxed{14} is wrong."),
        ("14", r"The answer is not \boxed{14}."), ("14", r"\boxed{14} is not the answer."),
    ],
    "times": [
        ("12:00", r"\boxed{1:00}"), ("12:00", r"\boxed{7:00}"), ("10:20", r"\boxed{5:10}"),
        (r"7:05 \text{ am}", r"\boxed{7:05 \text{ pm}}"), ("2:3", r"\boxed{0:3}"),
    ],
    "percent": [
        ("0.25", r"\boxed{0.25\%}"), ("1/4", r"\boxed{\frac14\%}"), (r"28\%", r"\boxed{27\%}"),
        (asked("What percent are red?", "50"), r"\boxed{0.5}"),
    ],
    "lists": [
        ("1,1,2", r"\boxed{1,2,2}"), ("x=1, y=2", r"\boxed{2, 1}"), ("x=1, y=2", r"\boxed{x=2, y=1}"),
        ("3", r"\boxed{3 \approx 4}"), ("3", r"\boxed{3, 4}"),
    ],
    "thinking": [("4", r"<think >\boxed{4}"), ("4", r"< think>\boxed{4}</ think>I do not know.")],
    "units": [("5 cm", r"\boxed{5 \text{ m}}"), (r"30 \text{ cm}", r"\boxed{30 \text{ cm}^2}")],
}  # fmt: skip
RIGHT: dict[str, Pairs] = {
    "percent": [
        (r"28\%", r"\boxed{28 \text{ percent}}"), (r"28\%", "The answer is 28 percent."), ("0.28", r"\boxed{28\%}"),
        (asked("What percent of the balls are red?", "50"), r"\boxed{50\%}"), (r"50\%", r"\boxed{50}"),
        (asked("If 20% of 10 balls are red, how many are red?", "2"), r"\boxed{2}"),
    ],
    "digits": [
        ("11111111100", r"\boxed{11,\! 111,\! 111,\! 100}"), ("12345", r"\boxed{12\,345}"),
        ("12345", r"\boxed{12{,}345}"),
        ("5000000", r"\boxed{5 \text{ million}}"), ("5 million", r"\boxed{5,000,000}"),
        ("1500", r"\boxed{1.5 \times 10^3}"),
        ("11/4", r"\boxed{2 3/4}"), ("11/4", r"\boxed{2\frac34}"),
    ],
    "sentences": [
        ("4", "Final: 4"), ("18", "She sells all of them every day. #### 18"), ("34", "The largest $n$ is 34."),
        ("34", "The largest $n$ is $34$."), ("5", "The answer is 5 apples."), ("5", "**Answer:** 5"),
        ("8", r"\boxed{7}. Wait, that is wrong. The answer is 8."), ("8", r"It is not prime, so \boxed{8}."),
    ],
    "inequalities": [
        ("x>2", r"\boxed{-x<-2}"), ("2<x<5", r"\boxed{x>2 \text{ and } x<5}"), ("x>2", r"\boxed{2<x}"),
    ],
    "several boxes": [("1, 2", r"\boxed{1} and \boxed{2}"), ("x=1, y=2", r"$x=\boxed{1}$, $y=\boxed{2}$")],
    "values": [
        ("6/8", r"\boxed{\frac{3}{4}}"), (r"\frac{3}{4}", r"\boxed{0.75}"), ("2^{10}", r"\boxed{1024}"),
        ("7:05", r"\boxed{07:05}"),
        ("1:2", r"\boxed{10:20}"), (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"), ("x=1, y=2", r"\boxed{y=2, x=1}"),
        ("14", r"\boxed{2+3\cdot 4 = 14}"), (r"e^{16}", r"\boxed{\exp(16)}"), (r"\{-3,3\}", r"\boxed{\pm 3}"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_of_this_class_does_not_count_and_has_a_verdict(name: str) -> None:
    verdicts = judge(WRONG[name])
    accepted = [pair for pair, verdict in zip(WRONG[name], verdicts, strict=True) if verdict.correct]
    assert accepted == []
    assert {verdict.status for verdict in verdicts} <= {"incorrect", "no_answer", "unparseable"}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_of_this_class_counts(name: str) -> None:
    verdicts = judge(RIGHT[name])
    assert [
        (pair, verdict.status, verdict.reason)
        for pair, verdict in zip(RIGHT[name], verdicts, strict=True)
        if not verdict.correct
    ] == []


def test_a_power_of_ten_is_a_numeral_where_the_question_has_none() -> None:
    pairs: Pairs = [("1000000", r"\boxed{10^6}"), ("0.001", r"\boxed{10^{-3}}"), ("-100", r"\boxed{-10^2}")]
    assert statuses([*pairs, ("1000 m", r"\boxed{10^3\text{ m}}")]) == ["correct"] * 4
    question = "What is $10^6$?"
    assert statuses([(with_question("1000000", question), r"\boxed{10^6}")]) == ["incorrect"]
    assert with_question("1000000", "How many people live there?") == Target("1000000")


def test_a_power_of_a_number_is_as_good_as_a_numeral_where_the_question_has_no_powers() -> None:
    pairs: Pairs = [
        ("0.125", r"\boxed{2^{-3}}"), ("0.125", r"\boxed{\frac{1}{2^3}}"), ("0.125", r"\boxed{8^{-1}}"),
        (r"\frac{1}{1024}", r"\boxed{(\frac12)^{10}}"), ("1024", r"\boxed{2^{10}}"), ("72", r"\boxed{2^3\cdot 3^2}"),
        (r"\frac{27}{64}", r"\boxed{\left(\frac34\right)^3}"), ("-8", r"\boxed{-2^3}"),
        ("8 m", r"\boxed{2^3\text{ m}}"),
    ]  # fmt: skip
    assert statuses(pairs) == ["correct"] * len(pairs)
    questions = "Calculate $2^{5}$.", "What is 2**5?", "What is two to the fifth power?", "Find the square of 2."
    copied: Pairs = [(with_question("32", question), r"\boxed{2^5}") for question in questions]
    undone: Pairs = [("4", r"\boxed{2^5/2^3}"), ("9", r"\boxed{2^3+1}"), ("27/64", r"\boxed{1-\frac{37}{64}}")]
    wrong: Pairs = [("0.125", r"\boxed{2^3}"), ("1/1024", r"\boxed{2^{-9}}")]
    assert statuses([*copied, *undone, *wrong]) == ["incorrect"] * 9
    assert with_question("32", "How many subsets are there, at 30^\\circ, of five things?") == Target("32")


def test_a_fraction_is_reduced_where_the_question_says_so() -> None:
    questions = r"Simplify $\frac{24}{36}$.", "Express it in lowest terms.", "Reduce the fraction 24/36."
    for target in (with_question(r"\frac{2}{3}", question) for question in questions):
        pairs = [(target, rf"\boxed{{{answer}}}") for answer in (r"\frac{24}{36}", "4/6", r"-\frac{-4}{6}")]
        assert statuses(pairs) == ["incorrect"] * 3
        assert statuses([(target, r"\boxed{2/3}"), (target, r"\boxed{\frac{-2}{-3}}")]) == ["correct"] * 2
    assert statuses([(with_question(r"\frac{2}{3}", "What share is it?"), r"\boxed{4/6}")]) == ["correct"]


def test_a_sum_of_like_terms_is_left_unevaluated() -> None:
    undone: Pairs = [
        (r"7\sqrt{2}", r"\boxed{5\sqrt2+\sqrt8}"), (r"3\pi", r"\boxed{2\pi+\pi}"), (r"3+\sqrt2", r"\boxed{1+2+\sqrt2}"),
        ("2+3i", r"\boxed{2+4i-i}"), (r"\pi", r"\boxed{\pi+0}"),
    ]  # fmt: skip
    assert statuses(undone) == ["incorrect"] * 5
    done: Pairs = [
        (r"7\sqrt{2}", r"\boxed{\sqrt{98}}"), (r"\frac{1+\sqrt3}{2}", r"\boxed{\frac12+\frac{\sqrt3}{2}}"),
        (r"\sqrt2+\sqrt3", r"\boxed{\sqrt3+\sqrt2}"), (r"2\pi+\pi", r"\boxed{\pi+2\pi}"), ("2+3i", r"\boxed{3i+2}"),
    ]  # fmt: skip
    assert statuses(done) == ["correct"] * 5


def test_a_numeral_goes_without_its_base_where_the_question_names_it() -> None:
    named = "Write 11 in base 2.", "Write eleven in base $2$.", "What is 11 in binary?", "Give the base-two numeral."
    right: Pairs = [(with_question("1011_2", question), r"\boxed{1011}") for question in named]
    right += [(with_question("2A3_{16}", "What is 675 in hexadecimal?"), r"\boxed{2A3}")]
    assert statuses(right) == ["correct"] * len(right)
    unnamed = "Add $101_2$ and $110_2$.", "Write $1011$ from base 10 in base 21.", "What is it in base 3?"
    wrong: Pairs = [(with_question("1011_2", question), r"\boxed{1011}") for question in unnamed]
    unlike = ("11", "1011_{10}", "1101", "1011_3")
    wrong += [(with_question("1011_2", named[0]), rf"\boxed{{{answer}}}") for answer in unlike]
    assert statuses(wrong) == ["incorrect"] * len(wrong)


TOO_MUCH = (
    r"100000!", r"\sin(10^{300})", "1" * 5000, "1" * 1200, r"\sum_{k=1}^{10^9}\frac{1}{k^2}", r"9^{9^{9}}",
    r"\int_0^{100} e^{\sin(x^5)}dx", "(" * 200 + "5" + ")" * 200, "+".join(["1"] * 3000),
)  # fmt: skip


@pytest.mark.parametrize("gold", ["5", r"\sqrt{5}", "x^2", r"\sum_{k=1}^{5} k"])
def test_no_answer_can_choose_to_have_no_verdict(gold: str) -> None:
    verdicts = judge([(gold, rf"\boxed{{{answer}}}") for answer in TOO_MUCH])
    assert {verdict.status for verdict in verdicts} <= {"incorrect", "unparseable", "no_answer"}


def test_the_verdict_says_how_equality_was_found() -> None:
    pairs: Pairs = [
        ("x+1", r"\boxed{x + 1}"), ("x^2-1", r"\boxed{(x-1)(x+1)}"), (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
        (r"\sin(2x)", r"\boxed{2\sin x\cos x}"), (r"1+\sqrt{2}", r"\boxed{\sqrt{3+2\sqrt{2}}}"),
    ]  # fmt: skip
    verdicts = judge(pairs)
    assert [verdict.reason for verdict in verdicts] == ["spelled", "proved", "proved", "sampled", "sampled"]
    assert [verdict.status for verdict in judge(pairs, require="proved")] == ["correct"] * 3 + ["incorrect"] * 2


def test_a_declared_form_or_the_old_rules_overrule_what_is_read_from_the_gold() -> None:
    pairs: Pairs = [
        ({"answer": "14", "form": "any"}, r"\boxed{2+3\cdot4}"), ({"answer": "(1,2)", "form": "set"}, r"\boxed{(1,2)}"),
        ({"answer": "x>2", "form": "number"}, r"\boxed{x>2+0}"),
    ]  # fmt: skip
    assert [verdict.status for verdict in judge(pairs)] == ["correct", "correct", "incorrect"]
    assert judge([("14", r"\boxed{2+3\cdot4}")], rules="value")[0].correct
    assert math().version != math(rules="value").version


def test_a_declared_domain_says_where_expressions_are_compared() -> None:
    gold, answer = "n", r"\boxed{\lfloor n+\frac12\rfloor}"
    targets: list[TargetLike] = [
        gold,
        {"answer": gold, "domain": {"n": "integer"}},
        asked("For each integer $n$, find it.", gold),
    ]
    assert [verdict.correct for verdict in judge([(target, answer) for target in targets])] == [False, True, True]
    with pytest.raises(ConfigError, match="domain"):
        math().check_gold({"answer": "n", "domain": {"n": "prime"}}, "item-7")
    with pytest.raises(ConfigError, match="form"):
        math().check_gold({"answer": "n", "form": "poem"}, "item-7")


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (r"\sqrt{12}", r"2\sqrt{3}", True), (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1", True), ("(1+i)^2", "2i", True),
        (r"\sqrt[3]{16}", r"2\sqrt[3]{2}", True), (r"\frac{x^2-1}{x-1}", "x+1", True), ("x^2", "x^2+10^{-150}", False),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}", False), (r"\pi", "3", False), (r"\sin 2x", r"2\sin x\cos x", None),
        (r"\pi+e", "6", None), ("(x+1)^{39}", "x^{39}", False), ("(x+y+z+1)^{39}", "x", None),
    ],
)  # fmt: skip
def test_identities_of_fractions_and_roots_are_proved_and_others_left_open(
    left: str, right: str, equal: bool | None
) -> None:
    assert identical(parse(plain(left)), parse(plain(right))) is equal


def test_a_target_is_declared_as_one_value_or_in_json_and_both_mean_the_same() -> None:
    declared = Target("1/2", "What fraction?", "number", (("n", "integer"),), 0.1, "cm", "unit", "set", ("2/4",))
    assert read_gold(declared) == read_gold(declared.written()) == declared
    assert Target("5").written() == "5"
    assert statuses([(Target("5"), r"\boxed{5}"), (Target("5"), r"\boxed{6}")]) == ["correct", "incorrect"]


def test_a_target_may_say_what_per_cent_is() -> None:
    readings = {"unit": "correct", "value": "incorrect", "either": "correct"}
    targets: list[TargetLike] = [Target("50", percent=name) for name in ("unit", "value", "either")]
    assert statuses([(target, r"\boxed{50\%}") for target in targets]) == list(readings.values())


def test_items_hold_the_json_form_of_a_declared_target() -> None:
    problem = Problem("p", (Message("user", "Compute $2+3$."),))
    assert Item(problem, Target("5")).target == "5"
    assert Item(problem, Target("5", "Compute $2+3$.")).target == {"answer": "5", "question": "Compute $2+3$."}


def test_a_number_inside_a_pair_a_sum_a_bound_or_a_longer_number_is_not_the_last_number() -> None:
    pairs: list[tuple[TargetLike, str]] = [
        ("6", "the pair is $(7, 6)$."), ("2", "Thus $x <= 2$ holds"), ("5", "The solution is $x != 5$"),
        ("1", r"Answer \( (9+1) \)"), ("74", "it costs 2,74 in all"), ("3", "total: 5 + 3"),
    ]  # fmt: skip
    assert not [status for status in statuses(pairs, kind="number") if status == "correct"]
    right: list[tuple[TargetLike, str]] = [("8", "We get 5+3=8."), ("4", "(in all, 4)"), ("3", "It is 16 - 13 = 3")]
    assert statuses(right, kind="number") == ["correct"] * 3


def test_what_a_clause_gives_a_value_to_is_not_the_answer_and_spaces_in_thousands_are_read() -> None:
    assert statuses(
        [
            ("120", "Final Answer: The volume of $ABCDEFGH$ is 120. I hope it is correct."),
            ("14916", r"\boxed{14 {, }916}"),
            (r"12 \text{ and } 13", r"It lies between \boxed{12\text{ and }13}."),
            ("3", r"It lies between \boxed{3} and 10."),
        ]
    ) == ["correct", "correct", "correct", "no_answer"]


def test_a_member_counts_as_often_as_it_stands_however_it_is_spelt() -> None:
    wrong, right = r"\boxed{12, -8, -8 \text{ apples}}", r"\boxed{12, 12, -8 \text{ apples}}"
    assert statuses([("12,12,-8", wrong), ("12,12,-8", right)]) == ["incorrect", "correct"]
    assert statuses([("19,19,-3", r"\boxed{$19,-3,-3 \text{ apples}$")]) == ["incorrect"]
    assert statuses([("1/2, 0.5, 3", r"\boxed{3, 2/4, 0.50}")]) == ["correct"]
    assert statuses([("25", r"25\,\text{\,dozen} \text{ apples}")], kind="number") != ["correct"]
    assert statuses([("91", r"９１~\text{~and~a~half} \text{ apples}")], kind="number") != ["correct"]


def test_several_boxes_for_a_gold_beyond_the_caps_are_a_verdict() -> None:
    # The gold is at fault, so that there is no verdict on the answer.
    assert statuses([("9" * 1200, r"The roots are \boxed{2} and \boxed{3}")]) == ["error"]
