"""The mathematics verifier: pairs, hostile inputs, policies, published verdicts."""

from __future__ import annotations

import asyncio
import collections
import gzip
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.timing import patience
from tests.ttc.hostile import hostile_texts
from tests.ttc.kept_verifiers import KeptVerifiers
from ttc.core import Submission, TargetLike
from ttc.errors import ConfigError
from ttc.verifiers.math import math

ROWS = [
    json.loads(line)
    for line in pathlib.Path(__file__).with_name("data").joinpath("math_pairs.jsonl").read_text("utf-8").splitlines()
]
IN_A_BOX = ("so the answer is $\\boxed{", "}$.")

KEPT = KeptVerifiers(math)
judge = KEPT.judge
ended = KEPT.ended()


def statuses(pairs: Sequence[tuple[TargetLike, str | Submission]], **options: Any) -> list[str]:
    return [verdict.status for verdict in judge(pairs, **options)]


@pytest.mark.parametrize("rules", ["asked", "value"])
def test_every_pair_gets_its_verdict_within_the_limit(rules: str) -> None:
    """`expected` is by the value alone; `asked`, where it differs, by what the gold asks for."""
    assert len(ROWS) >= 200
    verdicts = judge([(row["target"], row["text"]) for row in ROWS], rules=rules)
    wrong = [
        (row["target"], row["text"], verdict.status, verdict.reason)
        for row, verdict in zip(ROWS, verdicts, strict=True)
        if verdict.status != row.get(rules, row["expected"])
    ]
    assert wrong == []
    assert max(verdict.seconds for verdict in verdicts) < 2.0 * patience()


def test_verdicts_are_symmetric_in_target_and_answer() -> None:
    rows = [row for row in ROWS if row["text"].startswith(IN_A_BOX[0]) and row["text"].endswith(IN_A_BOX[1])]
    answers = [row["text"].removeprefix(IN_A_BOX[0]).removesuffix(IN_A_BOX[1]) for row in rows]
    swapped = [(answer, row["target"].join(IN_A_BOX)) for row, answer in zip(rows, answers, strict=True)]
    assert len(rows) > 250
    unlike = [
        (pair, status)
        for pair, row, status in zip(swapped, rows, statuses(swapped, rules="value"), strict=True)
        if (status == "correct") != (row["expected"] == "correct")
    ]
    assert unlike == []


def test_every_gold_of_the_pairs_verifies_against_itself() -> None:
    verifier = math()
    for row in ROWS:
        verifier.check_gold(row["target"])
    asyncio.run(verifier.close())


def test_hostile_inputs_end_in_a_verdict_within_two_seconds_and_leave_the_pool_healthy() -> None:
    # The same answers after a phrase are read by the tests of extraction.
    texts = {name: text for name, text in hostile_texts().items() if not name.startswith("phrase ")}
    assert len(texts) >= 150
    root = r"\sqrt{2}"

    async def main() -> tuple[dict[str, tuple[str, float]], int, str]:
        verifier = math()
        await verifier.verify(root, Submission(r"\boxed{2^{1/2}}"))
        found = {}
        for name, text in texts.items():
            start = time.perf_counter()
            verdict = await verifier.verify(root, Submission(text))
            found[name] = (verdict.status, time.perf_counter() - start)
        healthy = await verifier.verify(root, Submission(r"\boxed{2^{1/2}}"))
        await verifier.close()
        return found, len(found), healthy.status

    found, count, healthy = asyncio.run(main())
    assert count == len(texts)
    assert healthy == "correct"
    assert {name: result for name, result in found.items() if result[1] > 2.0 * patience()} == {}
    assert {name for name, (status, _) in found.items() if status in ("correct", "error")} == set()
    assert not pathlib.Path("/tmp/ttc_was_here").exists()


def test_many_verdicts_at_once_are_those_of_one_at_a_time() -> None:
    pairs = [(r"\sqrt{8}", rf"\boxed{{{n}\sqrt{{2}}}}") for n in range(40)]

    async def main() -> list[str]:
        verifier = math()
        verdicts = await asyncio.gather(*(verifier.verify(gold, Submission(text)) for gold, text in pairs))
        await verifier.close()
        return [verdict.status for verdict in verdicts]

    assert asyncio.run(main()) == ["correct" if n == 2 else "incorrect" for n in range(40)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("either", ["correct", "correct", "incorrect"]),
        ("unit", ["correct", "incorrect", "incorrect"]),
        ("value", ["incorrect", "correct", "incorrect"]),
        ("asked", ["incorrect", "correct", "incorrect"]),
    ],
)
def test_the_percent_policy_decides_what_a_percentage_equals(policy: str, expected: list[str]) -> None:
    assert statuses([("50", "50%"), ("0.5", "50%"), ("5", "50%")], percent=policy) == expected


def test_rounding_and_tolerance_are_policies() -> None:
    pairs: list[tuple[TargetLike, str]] = [("1/3", "0.333333"), (r"\pi", "3.1415927"), ("100", "101")]
    assert statuses(pairs) == ["correct", "correct", "incorrect"]
    assert statuses(pairs, rounding=0) == ["incorrect", "incorrect", "incorrect"]
    assert statuses(pairs, tolerance=0.02) == ["correct", "correct", "correct"]


def test_a_target_may_bring_alternatives_tolerance_unit_and_the_reading_of_lists() -> None:
    assert statuses(
        [
            ({"answer": "1", "alternatives": ["2", r"\sqrt{9}"]}, r"\boxed{3}"),
            ({"answer": "1", "alternatives": ["2"]}, r"\boxed{3}"),
            ({"answer": "10", "tolerance": 0.5}, r"\boxed{10.4}"),
            ({"answer": "10", "tolerance": 0.5}, r"\boxed{10.6}"),
            ({"answer": r"\pi", "tolerance": 0.01}, r"\boxed{3.14}"),
            ({"answer": "5", "unit": "cm"}, r"\boxed{5 m}"),
            ({"answer": "5", "unit": r"$\mathrm{cm}$"}, r"\boxed{50 mm}"),
            ({"answer": "90", "unit": r"^{\circ}"}, r"\boxed{90^\circ}"),
            ({"answer": "(1,2)", "type": "set"}, r"\boxed{\{2,1\}}"),
            ({"answer": "1,2", "type": "tuple"}, r"\boxed{(2,1)}"),
            (5, "5"),
        ]
    ) == [
        "correct", "incorrect", "correct", "incorrect", "correct", "incorrect", "correct", "correct", "correct",
        "incorrect", "correct",
    ]  # fmt: skip


DESIGNATIONS = (
    ("2024-01-05", "2018"), ("2024-03-04", "2024-04-03"), ("2019-2020", "-1"), ("555-1234", "-679"),
    ("A-1-2", "A-2-1"), ("SKU-007", "SKU-7"), ("SKU-7", "SKU-007"), ("007-12", "-5"), ("3/4/2024", "4/3/2024"),
    ("(555) 123-4567", "63768"),
)  # fmt: skip


def test_dates_telephone_numbers_and_codes_are_compared_by_their_spelling() -> None:
    boxed = [rf"\boxed{{{answer}}}" for _, answer in DESIGNATIONS]
    assert statuses([(gold, text) for (gold, _), text in zip(DESIGNATIONS, boxed, strict=True)]) == ["incorrect"] * 10
    assert statuses([(gold, f"The answer is {gold}.") for gold, _ in DESIGNATIONS]) == ["correct"] * 10
    assert statuses([("SKU-007", r"\boxed{\text{SKU-007}}"), ("2019-2020", "2019–2020")]) == ["correct"] * 2


def test_one_date_in_two_forms_is_one_date() -> None:
    forms = ("5.1.2024", "2024/01/05", "January 5, 2024", "5th of Jan 2024", r"\text{5 January 2024}")
    assert statuses([("2024-01-05", rf"\boxed{{{form}}}") for form in forms]) == ["correct"] * len(forms)
    assert statuses([("3/14/2024", "14/3/2024"), ("2024-01-05", "1/5/2024")]) == ["correct", "incorrect"]


def test_minutes_seconds_and_halves_of_the_day_are_read_in_their_usual_spellings() -> None:
    golds = ("15", "15", "15 min", "120 min", "15 minutes", "3:00 PM", "3:00 a.m.")
    answers = ("15 min", "15 sec", "15 minutes", "2 hours", "15 min", "3:00 p.m.", "3:00 am")
    pairs = [(gold, rf"\boxed{{{answer}}}") for gold, answer in zip(golds, answers, strict=True)]
    for kind in ("math", "number"):
        assert statuses(pairs, kind=kind) == ["correct"] * len(pairs)
    assert statuses([("3:00 PM", "The answer is 3:00 p.m."), ("3:00 PM", "3:00 a.m.")]) == ["correct", "incorrect"]


def test_a_word_is_a_product_only_beside_a_formula_of_its_letters() -> None:
    formulas = (r"a\cdot b", "b*a", r"\frac{2ab}{2}", r"b \times a")
    assert statuses([("ab", rf"\boxed{{{formula}}}") for formula in formulas]) == ["correct"] * 4
    assert statuses([(r"a\cdot b", r"\boxed{ab}"), ("$rt$", r"\boxed{r \times t}")]) == ["correct"] * 2
    wrong = [("cat", "act"), ("cat", "a c t"), ("ab", "2ab"), ("ab", r"a\cdot c"), ("ab", "a+b"), ("cat", r"c\cdot a")]
    assert set(statuses([(gold, rf"\boxed{{{answer}}}") for gold, answer in wrong])) == {"incorrect"}


def test_differences_of_numbers_and_letters_are_computed_as_ever() -> None:
    golds = ("x-1-2", "5-3", "ab-1", "AB-2", "2020-2019", "10-5-3")
    answers = ("x-3", "2", "-1+ab", "-2+AB", "1", "2")
    pairs = [(gold, rf"\boxed{{{answer}}}") for gold, answer in zip(golds, answers, strict=True)]
    assert statuses(pairs) == ["correct"] * len(pairs)


def test_a_text_that_was_cut_has_no_answer_unless_the_policy_allows_it() -> None:
    cut = [("4", Submission(r"\boxed{4}", "", "length")), ("4", Submission(r"\boxed{4}", "", "abort"))]
    verdicts = judge(cut)
    assert [(verdict.status, verdict.reason) for verdict in verdicts] == [
        ("no_answer", "truncated"),
        ("no_answer", "aborted"),
    ]
    assert statuses(cut, allow_truncated=True) == ["correct", "correct"]


def test_an_answer_in_the_thinking_does_not_count() -> None:
    assert statuses([("4", Submission("I am done.", r"\boxed{4}"))]) == ["no_answer"]


def test_a_verdict_names_the_extracted_answer_and_its_place() -> None:
    text = r"Thus $\boxed{\frac{1}{2}}$."
    (verdict,) = judge([("0.5", text)])
    assert verdict.extracted == r"\frac{1}{2}"
    assert verdict.span is not None
    assert text[slice(*verdict.span)] == verdict.extracted
    assert verdict.score == 1.0
    assert verdict.seconds > 0


def test_no_verdict_has_no_score() -> None:
    verdicts = judge([("4", "no idea at all, sorry"), ("4", r"\boxed{4} or \boxed{5}"), ("4", r"\boxed{@#}")])
    assert [verdict.status for verdict in verdicts] == ["no_answer", "no_answer", "unparseable"]
    assert [verdict.score for verdict in verdicts] == [None, None, None]


def test_the_version_names_the_policy() -> None:
    versions = {math(percent=percent).version for percent in ("either", "unit", "value")}
    assert len(versions) == 3
    assert math().version == math().version


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "item-7.*empty"),
        (None, "item-7.*string or a number"),
        (["2", "two"], "item-7.*several right answers.*alternatives"),
        ("1 or 4", "item-7.*'1 or 4'.*hedge"),
        ({"answer": "4", "alternative": ["5"]}, "item-7.*'alternative'"),
        ({"answer": "4", "tolerance": "small"}, "item-7.*tolerance"),
        ({"answer": "4", "type": "interval"}, "item-7.*type"),
        ({"alternatives": ["4"]}, "item-7.*answer"),
        ("9" * 3000, "item-7.*too large"),
        ("9" * 5000, "item-7.*characters"),
    ],
)
def test_a_broken_gold_is_refused_by_name(target: TargetLike, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        math().check_gold(target, "item-7")


def test_a_broken_gold_met_in_a_run_is_an_error_and_not_wrong() -> None:
    (verdict,) = judge([({"gold": "4"}, "4")])
    assert (verdict.status, verdict.score) == ("error", None)


@pytest.mark.parametrize("kind", ["math", "number"])
def test_published_verdicts_of_gsm8k_model_outputs_are_reproduced(data_dir: pathlib.Path, kind: str) -> None:
    """The rule: the phrase `A: ...` that closes each output, and for the kind number else the last number."""
    with gzip.open(data_dir / "gsm8k_model_outputs.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    pairs = [(row["answer"], output) for row in rows for output in row["outputs"]]
    verdicts = judge([(gold, output["text"]) for gold, output in pairs], kind=kind)
    agreement = collections.Counter(
        verdict.correct == output["is_correct"] for (_, output), verdict in zip(pairs, verdicts, strict=True)
    )
    assert agreement == {True: 5276}


def test_golds_of_olympiadbench_verify_against_themselves(data_dir: pathlib.Path) -> None:
    with gzip.open(data_dir / "olympiadbench_math.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    verifier = math()
    for row in rows:
        for answer in row["final_answer"]:
            verifier.check_gold(answer, row["id"])
    verdicts = judge([(row["answer"], rf"\boxed{{{row['answer']}}}") for row in rows])
    assert {verdict.status for verdict in verdicts} == {"correct"}


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{12~345}",
        r"\boxed{12\ 345}",
        "\\boxed{12\u00a0345}",
        "\\boxed{12\u202f345}",
        r"\boxed{12~345\text{ dollars}}",
        "The answer is 12\u00a0345.",
        "The answer is 12\u202f345 dollars.",
    ],
)
def test_thousands_that_a_space_parts_are_one_number_and_not_the_last_of_its_parts(text: str) -> None:
    for kind in ("math", "number"):
        targets = ("12345", "12", "345")
        assert statuses([(target, text) for target in targets], kind=kind)[0] == "correct", kind
        assert "correct" not in statuses([(target, text) for target in targets[1:]], kind=kind), kind


def test_of_digits_parted_by_a_plain_space_neither_part_is_the_answer() -> None:
    for text in ("The answer is 12 345.", "The answer is 12 345 dollars.", "So she has 12 345"):
        assert "correct" not in statuses([("12", text), ("345", text)])
        assert "correct" not in statuses([("12", text), ("345", text)], kind="number"), text


def test_a_space_in_other_numbers_parts_no_thousands() -> None:
    assert statuses([("15.5", r"\boxed{3 100/200}"), ("3.5", r"\boxed{3 100/200}")]) == ["incorrect", "correct"]
    assert "correct" not in statuses(
        [("1234", r"\boxed{1 23 4}"), ("12345", r"\boxed{1 2345}"), ("0.1234", r"\boxed{0.1 234}")]
    )


@pytest.mark.parametrize(
    "text",
    [
        "$$\n12\n$$",
        "Ans: 12",
        "So.\nAns. 12",
        "Result: **12**",
        "We add. The result is 12.",
        "Therefore, the value of $n$ is 12.",
        "The solution is $x = 12$.",
        "The value of $n$ is 12 apples.",
        "The answer is 12 (twelve).",
        "<answer>The answer is 12.</answer>",
        r"\boxed{12\text{ (in cm)}}",
        r"\boxed{12\,\text{(option C)}}",
        r"\boxed{\text{ANS: }12}",
        r"\boxed{12\checkmark}",
        r"\boxed{\texttt{12}}",
    ],
)
def test_what_stands_around_an_answer_and_says_nothing_more_of_it_is_passed_over(text: str) -> None:
    assert statuses([("12", text), ("13", text)]) == ["correct", "incorrect"]


@pytest.mark.parametrize(
    "text",
    [
        "Ans: 12 or 13",
        "The answer is 12 remainder 1.",
        "The answer is 12 with a remainder of 1.",
        "The answer is 12 (thirteen).",
        "The value of $n$ is 12 dozen.",
        "The solution is $x = 12$ or $x = 13$.",
        "Suppose the value is 12.",
        "It is false that the result is 12.",
        "<answer>The answer is not 12.</answer>",
        r"\boxed{12\text{ (in thousands)}}",
        r"\boxed{12\text{ (or 13)}}",
        r"\boxed{12\text{ (wrong)}}",
    ],
)
def test_what_stands_around_an_answer_and_makes_it_another_is_not_passed_over(text: str) -> None:
    assert statuses([("12", text)]) != ["correct"]


def test_a_unit_behind_a_sum_is_that_of_the_whole_sum() -> None:
    area = r"4\sqrt{3}-2\pi"
    answers = {rf"{area}\text{{ cm}}^2": True, rf"{area}\text{{ cm}}": True, r"4\sqrt{3}-\pi\text{ cm}^2": False}
    assert [status == "correct" for status in statuses([(area, rf"\boxed{{{answer}}}") for answer in answers])] == [
        *answers.values()
    ]
    assert statuses([(rf"{area}\text{{ cm}}^2", rf"\boxed{{{area}\text{{ m}}^2}}")]) == ["incorrect"]


def test_a_list_of_groups_as_in_india_is_a_number_beside_a_gold_that_is_one() -> None:
    pairs = [("1234567", "12,34,567"), ("12,34,567", "34, 12,567"), ("1234568", "12,34,567"), ("1234", "12,34")]
    found = statuses([(target, rf"\boxed{{{answer}}}") for target, answer in pairs])
    assert found == ["correct", "incorrect", "incorrect", "incorrect"]


def test_a_gold_that_is_a_letter_takes_its_letter_with_the_value_behind_it() -> None:
    boxed = {r"\textbf{(B)}\ 12": True, "(B) 12": True, r"\textbf{(C)}\ 12": False, "(B) or (C)": False, "12": False}
    found = statuses([(r"\text{(B)}", rf"\boxed{{{answer}}}") for answer in boxed])
    assert [status == "correct" for status in found] == [*boxed.values()]


def test_an_answer_below_a_heading_is_one_where_it_ends_the_text() -> None:
    pairs = [
        ("42", "We add.\n\n### Answer\n42"),
        ("42", "**Final Answer**\n\n$42$"),
        ("5", "### Answer\nThere are 5 boxes.\nOf these\nsome."),
    ]
    assert statuses(pairs) == ["correct", "correct", "no_answer"]


def test_all_real_numbers_are_an_answer_in_words_but_not_all_but_some() -> None:
    reals = r"\mathbb{R}"
    texts = ("The answer is all real numbers.", "all real numbers", "So the answer is all reals, as shown.")
    assert statuses([(reals, text) for text in texts]) == ["correct"] * 3
    wrong = (
        "The answer is all real numbers except 0.",
        "The answer is all real numbers but 0.",
        "The answer is all real numbers other than $0$.",
        "The answer is not all real numbers.",
        "The answer is all real numbers greater than 0.",
        r"The answer is $\mathbb{R}$ except 0.",
        r"$\boxed{\mathbb{R}}$ except 0.",
        r"\boxed{\mathbb{R}} \setminus \{0\}",
        r"$\boxed{\text{all real numbers}}$, except 0.",
    )
    for kind in ("math", "number"):
        assert "correct" not in statuses([(gold, text) for text in wrong for gold in (reals, "0")], kind=kind)
    assert statuses([("5", r"So $x = \boxed{5}$, excluding the negative root.")]) == ["correct"]


def test_a_time_in_several_units_is_read_in_a_sentence_and_has_no_bare_value() -> None:
    gold = "200 minutes"
    texts = ("The answer is 3 hours 20 minutes.", "The answer is 3 hours and 20 minutes.", "3 h 20 min")
    for kind in ("math", "number"):
        assert statuses([(gold, text) for text in texts], kind=kind) == ["correct"] * 3
        for part in ("3", "20", "23", "320", "200", "3 hours", "20 minutes"):
            assert "correct" not in statuses([(part, text) for text in texts], kind=kind), part
    target: TargetLike = {"answer": "200", "unit": "minutes"}
    assert statuses([(target, texts[0]), (target, "The answer is 3 hours 2 minutes.")]) == ["correct", "incorrect"]


def test_words_are_no_product_of_their_letters_for_math_verify() -> None:
    for gold, answer in (("3 apples 20 pears", "20 apples 3 pears"), ("2 stop 3", "3 pots 2")):
        assert statuses([(gold, rf"\boxed{{{answer}}}")])[0] != "correct"
        assert statuses([(gold, rf"\boxed{{{gold}}}")]) == ["correct"]


def test_letters_with_negative_powers_that_are_no_units_stay_letters() -> None:
    pairs = [("m^{-1}", r"\frac{1}{m}"), ("5m^{-1}", r"\frac{5}{m}"), (r"5\, s^{-1}", r"\frac{5}{s}")]
    assert statuses([(gold, rf"\boxed{{{answer}}}") for gold, answer in pairs]) == ["correct"] * 3
    wrong = [("5", r"5 \cdot m \cdot s"), ("5", "5 s^{-1}"), ("5 m/s", "5 m^{-1} s^{-1}"), ("6 apples per m", "6 m")]
    assert "correct" not in statuses([(gold, rf"\boxed{{{answer}}}") for gold, answer in wrong])


def test_the_letter_of_a_choice_before_its_value_is_no_factor_and_two_of_them_are_a_hedge() -> None:
    assert statuses([("5", r"The answer is $\textbf{(B)}\ 5$."), ("B", r"\boxed{\textbf{(B)}}")]) == ["correct"] * 2
    hedges = (
        r"\boxed{\textbf{(B)}\ \text{or}\ \textbf{(C)}}",
        r"\boxed{\textbf{(B)}\ 5 \text{ or } \textbf{(C)}\ 6}",
        r"\boxed{\textbf{(B)}\ 5 \text{ or } 6}",
    )
    for text in hedges:
        assert "correct" not in statuses([(gold, text) for gold in ("5", "6", "B", "C", "(B)")]), text


LABELLED = (
    r"\boxed{(B)\ 5}",
    r"\boxed{(B) 5}",
    r"\boxed{(B)~5}",
    r"\boxed{(B)5}",
    r"\boxed{(B)\ \ 5\text{ cm}}",
    r"\boxed{B) 5}",
    r"\boxed{B. 5}",
    r"\boxed{\text{B) } 5}",
    r"\boxed{\text{(B) 5}}",
    r"\boxed{\textbf{B.}\ 5}",
    "The answer is (B) 5.",
    r"The answer is $(B)\ 5$.",
    "**Answer: (B) 5**",
)


@pytest.mark.parametrize("text", LABELLED)
def test_the_letter_of_a_choice_needs_no_style_before_its_value(text: str) -> None:
    assert statuses([("5", text), ("6", text), ("-5", text)]) == ["correct", "incorrect", "incorrect"]


def test_letters_in_brackets_that_label_nothing_stay_factors_and_terms() -> None:
    pairs = [("5A", "(A)(5)"), ("5A", r"(A)\cdot 5"), ("B-5", "(B) - 5"), ("C+5", "(C) + 5"), ("B", "(B)")]
    assert statuses([(gold, rf"\boxed{{{answer}}}") for gold, answer in pairs]) == ["correct"] * 5
    wrong = [("5", "(A)(5)"), ("5", r"(B)\ - 5"), ("5", r"(B)\ 5, (C)\ 6"), ("6", "A) 5, B) 6"), ("5", "A. 5, B. 6")]
    wrong += [("5", "(Q) 5"), ("5", "(B) 5 or 6"), ("6", "(B) 5 or (C) 6")]
    assert "correct" not in statuses([(gold, rf"\boxed{{{answer}}}") for gold, answer in wrong])


@pytest.mark.parametrize(
    "exception",
    [
        "every number save", "every number save for", "every integer but", "all of them but", "anything bar",
        "any number besides", "every number apart from", "all numbers aside from", "every number except for",
        "every number excepting", "any real number other than", "every value with the exception of", "everything save",
    ],
)  # fmt: skip
def test_what_an_answer_leaves_out_is_not_the_answer(exception: str) -> None:
    for kind in ("math", "number"):
        texts = [f"{lead} {exception} {value}." for lead in ("The answer is", "Answer:") for value in ("3", "$3$")]
        assert "correct" not in statuses([("3", text) for text in texts], kind=kind), kind
    assert statuses([("3", f"So x may be {exception} 3.")], kind="number") == ["no_answer"]


def test_but_and_save_that_leave_nothing_out_deny_no_number() -> None:
    texts = ("He can save 3.", "So he will save $3.", "He had no choice but to eat 3.", "That is few, but it is 3.")
    assert statuses([("3", text) for text in texts], kind="number") == ["correct"] * 4
    assert statuses([("3", "The answer is that they will save 3 dollars.")]) == ["correct"]
    assert statuses([("3", r"It is defined for every $x$ except $\boxed{3}$.")]) == ["correct"]


def test_boxes_with_units_are_one_answer_with_its_units() -> None:
    gold = r"\boxed{1} hour and \boxed{30} minutes"
    spellings = (
        gold,
        r"$\boxed{1}$ hour and $\boxed{30}$ minutes.",
        r"$\boxed{1}\text{ hour and }\boxed{30}\text{ minutes}$",
        r"\boxed{1 \text{ hour}} and \boxed{30 \text{ minutes}}",
        r"\boxed{1} h, \boxed{30} min",
    )
    for gold in ("1 hour and 30 minutes", "1 hour 30 minutes", "90 minutes", r"1.5 \text{ hours}", "1,30"):
        assert statuses([(gold, text) for text in spellings]) == ["correct"] * 5, gold
    turned = (r"\boxed{30} hours and \boxed{1} minute", r"\boxed{1} minute and \boxed{30} hours")
    for text in (*turned, r"\boxed{1} hour and \boxed{20} minutes", r"\boxed{1} hour or \boxed{30} minutes"):
        golds = ("1 hour and 30 minutes", "1 hour 30 minutes", "90 minutes", "90", "1", "30")
        assert "correct" not in statuses([(gold, text) for gold in golds]), text
    assert "correct" not in statuses([(gold, text) for gold in ("90", "1", "30", "1 hour") for text in spellings])
    other = r"\boxed{5} feet and \boxed{6} inches"
    assert statuses([("5 feet, 6 inches", other), ("6 feet, 5 inches", other)]) == ["correct", "incorrect"]
    fruit = r"\boxed{3} apples and \boxed{5} pears"
    assert statuses([("3 apples and 5 pears", fruit), ("5 apples and 3 pears", fruit)]) == ["correct", "incorrect"]
    assert statuses([("3,5", r"The roots are \boxed{3} and \boxed{5} in the real numbers.")]) == ["correct"]


@pytest.mark.parametrize(
    "answer",
    [
        "= 75", r"\approx 75", r"\text{Total} = 75", r"\text{Total: } 75", r"\text{Total area} = 75\text{ cm}^2",
        r"\text{The answer is } 75", r"\textbf{Answer: } 75", r"\text{Minimum} = 75", r"\text{Area} = 3 \cdot 25 = 75",
        "f(3) = 75", "P(2) = 75", r"P(X=1) = 75", r"P(A \mid B) = 75", r"\mathbb{P}(A) = 75", r"\Pr(A) = 75",
        "m+n = 75", r"\frac{a}{b} = 75", "|z| = 75", r"\sin\theta = 75", "a + b + c = 75", "x - y = 75", "xy = 75",
    ],
)  # fmt: skip
def test_a_value_may_say_what_it_is_the_value_of(answer: str) -> None:
    assert statuses([("75", rf"\boxed{{{answer}}}"), ("76", rf"\boxed{{{answer}}}")]) == ["correct", "incorrect"]


def test_what_denies_doubles_or_bounds_a_value_is_no_name_of_it() -> None:
    wrong = (
        "> 75", r"\neq 75", r"\text{not } 75", r"\text{not} = 75", r"\text{at most } 75", r"\text{less than } 75",
        r"\text{twice this is } 75", r"\text{half the answer} = 75", r"\text{The answer is not } 75", r"\sim 75",
        "2x = 75", "x^2 = 75", "x + 1 = 75", "-x = 75", r"\log_2 x = 75", "2m + n = 75", "x + y = 74 + 1", "-2 = 75",
        r"\text{Bob} = 75, \text{Ann} = 3", r"\text{Ann: } 3, \text{Bob: } 75", "75 = x + y = 76", "f(75) = 3",
    )  # fmt: skip
    assert [text for text in wrong if "correct" in statuses([("75", rf"\boxed{{{text}}}")])] == []
    assert statuses([("x+y=5", r"\boxed{5}"), ("x+y=5", r"\boxed{2x+2y=10}")]) == ["incorrect", "correct"]
    assert "correct" not in statuses([("x=5", r"\boxed{m+n=5}"), ("P(x)=x", r"\boxed{Q(x)=x}")])


def test_one_sample_point_met_three_times_is_no_agreement() -> None:
    gold, answer = r"\frac{1+\sqrt{1+8 n}}{2}", r"\frac{1+\sqrt{1-8 n}}{2}"
    assert statuses([(gold, rf"\boxed{{{answer}}}")])[0] != "correct"
    assert statuses([(gold, r"\boxed{\frac{1}{2}+\sqrt{\frac{1}{4}+2n}}")]) == ["correct"]


def test_braces_around_an_equation_are_not_shown_and_no_equation_defines_a_name_by_itself() -> None:
    assert statuses([("k=n+1", r"\boxed{{k=n+1}}"), (r"k \ge 2", r"\boxed{{{k \ge 2}}}")]) == ["correct"] * 2
    targets: list[TargetLike] = ["n+1", {"answer": "k=n+1", "alternatives": ["n+1"]}]
    assert [statuses([(target, r"\boxed{n=n+1}")]) for target in targets] == [["incorrect"]] * 2
    assert statuses([("n=n+1", r"\boxed{n=n+1}"), ("5", r"\boxed{5=5}")]) == ["correct"] * 2


def test_beside_a_time_of_the_morning_anything_else_is_wrong() -> None:
    for gold, texts in {"3:30 pm": ("330", "3.5", "15:30:00", "x", "(3,30)", "3:30 am", "3:2", "210 minutes")}.items():
        pairs: list[tuple[TargetLike, str]] = [(gold, rf"\boxed{{{text}}}") for text in texts]
        pairs += [(text, rf"\boxed{{{gold}}}") for text in texts]
        assert set(statuses(pairs)) == {"incorrect"}


@pytest.mark.parametrize(
    ("gold", "spellings", "wrong"),
    [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", (r"\begin{pmatrix}1&2\\[4pt]3&4\end{pmatrix}",), ("[4]",)),
        (r"\frac{1}{2}", (r"{1\over 2}", r"{1 \over {2}}"), (r"{2\over 1}",)),
        (r"\frac{3\pm\sqrt{5}}{2}", (
            r"\frac{3+\sqrt5}{2}, \frac{3-\sqrt5}{2}", r"x=\frac{3\pm\sqrt5}{2}", r"\frac{6 \pm \sqrt{20}}{4}",
            r"\frac32 \pm \frac{\sqrt5}{2}", r"\{\frac{3-\sqrt{5}}{2}, \frac{3+\sqrt5}{2}\}",
        ), (r"\frac{3+\sqrt5}{2}", r"\frac{3\pm\sqrt6}{2}", r"\frac{-3\pm\sqrt5}{2}", r"3\pm\sqrt5")),
        (r"\$12.50", (r"\text{\$}12.50", r"\text{USD } 12.50", r"\text{USD}\ 12.50"), (r"\text{EUR } 12.50",)),
        (r"60 \text{ miles per hour}", ("60 mph", r"60\text{ mph}", "1 mile per minute"), ("60 kph", "60 m/h")),
        ("3:30 pm", (r"3{:}30 \text{ pm}",), (r"3{:}03 \text{ pm}",)),
        (r"10 \text{ red}, 5 \text{ blue}",
            (r"10 \text{ red and } 5 \text{ blue}", r"10 \text{ red, and } 5 \text{ blue}"),
            (r"5 \text{ red and } 10 \text{ blue}",)),
        ("1,2,3", (r"1\text{, }2\text{, and }3", r"1 \text{, } 2 \text{ and } 3"), ("1.2.3", r"1\text{, }2")),
        (r"\ln 2", (r"\mathrm{ln}\, 2", r"\text{ln}(2)", r"\mathrm{ln}(2)"), (r"\mathrm{ln}\, 3", r"\text{ln } 2x")),
        (r"\mathbb{R}", (r"\R",), ()),
        (r"90^\circ", ("90^o", "90^{o}"), ("9^o", "90^0")),
        (r"\binom{10}{3}", (r"{10 \choose 3}",), (r"{3 \choose 10}",)),
    ],
)  # fmt: skip
def test_latex_of_several_schools_is_read(gold: str, spellings: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    assert [text for text in spellings if statuses([(gold, rf"\boxed{{{text}}}")]) != ["correct"]] == []
    assert [text for text in wrong if statuses([(gold, rf"\boxed{{{text}}}")]) == ["correct"]] == []


def verdicts_of(gold: str, right: Sequence[str], wrong: Sequence[str]) -> None:
    """Every boxed answer of `right` is correct for the gold, and none of `wrong` is."""
    pairs = [(gold, rf"\boxed{{{answer}}}") for answer in (*right, *wrong)]
    missed = [
        (answer, status)
        for (_, answer), status, expected in zip(
            pairs, statuses(pairs), [True] * len(right) + [False] * len(wrong), strict=True
        )
        if (status == "correct") != expected
    ]
    assert missed == [], gold


def test_a_value_is_that_of_the_name_that_was_asked_for() -> None:
    verdicts_of("f(3) = 5", ["f(3)=5", "5"], ["f(2)=5", "f(x)=5", "g(3)=5"])
    verdicts_of(r"f(x)=\frac{1}{x}", [r"f(t)=\frac1t", r"y=\frac1x"], [r"f(1)=\frac{1}{x}"])
    verdicts_of("(x,y)=(3,2)", ["(a,b)=(3,2)", "(3,2)"], ["(y,x)=(3,2)"])
    verdicts_of("|AB| = 5", ["AB = 5", "BA=5"], ["|CD| = 5", "AC=5"])
    verdicts_of(r"m_{\max} = n^2-1", ["m=n^2-1", r"m_{\text{max}}=n^2-1"], [r"m_{\min}=n^2-1", "k=n^2-1"])


def test_a_space_after_a_comma_makes_two_numbers_of_one() -> None:
    verdicts_of("1,500", ["1,500", r"1{,}500", r"1,\!500"], ["1, 500"])
    verdicts_of("100, 200", ["100,200", "200, 100"], [])


def test_the_frame_of_an_answer_changes_nothing() -> None:
    verdicts_of("6", [r"\sum_{k=1}^3 k = 6", r"\sum_{k=1}^3 k = 1+2+3 = 6"], [r"\sum_{k=1}^3 k = 5 = 6", r"\sum 6"])
    verdicts_of(r"\frac13", [r"\int_0^1 x^2\,dx = \frac13", r"\lim_{n\to\infty} \frac{n}{3n+1} = \frac13"], [])
    verdicts_of(r"\frac{n(n+1)}{2}", [r"1+2+\cdots+n = \frac{n(n+1)}{2}"], [r"1+2+\cdots+n = \frac{n(n-1)}{2}"])
    system = r"\begin{cases} x = 1 \\ y = -2 \end{cases}"
    aligned = r"\left\{\begin{aligned} x &= 1 \\ y &= -2 \end{aligned}\right."
    verdicts_of("x=1, y=-2", [system, aligned], [system.replace("-2", "2"), system.replace("x", "z")])
    verdicts_of(r"\binom{n}{2}", ["C_n^2", "C_{n}^{2}"], ["C_2^n"])
    verdicts_of("C_1^2", ["C_1^2"], ["0"])
    verdicts_of("3:2", [r"3\colon 2"], [r"2\colon 3"])


def test_the_integer_of_a_periodic_solution_has_any_letter() -> None:
    solution = r"x = \frac{\pi}{6} + 2k\pi"
    over = [
        rf"{solution}{tail}"
        for tail in ("", r", k\in\mathbb{Z}", r"\quad (k\in\mathbb{Z})", r"\text{ for } k \in \mathbb{Z}")
    ]
    over += [rf"{solution} \text{{, where }} k \text{{ is an integer}}", solution.replace("k", "n")]
    verdicts_of(solution, over, [solution.replace("2k", "k"), r"x = \frac{\pi}{6}", rf"{solution}, k\in\mathbb{{N}}"])
    verdicts_of(r"n\pi", [], [r"k\pi"])
    verdicts_of("[2,4]", [], [r"2 \le n \le 4, n\in\mathbb{Z}"])


def test_a_bound_on_an_absolute_value_is_its_interval_in_the_gold_alone() -> None:
    verdicts_of("|x|<1", ["|x|<1", "(-1,1)", "-1<x<1", r"x\in(-1,1)"], ["[-1,1]", "(0,1)", "x<1"])
    verdicts_of(r"|x-2|\ge 3", [r"(-\infty,-1]\cup[5,\infty)", r"x\le -1 \text{ or } x\ge 5"], ["[-1,5]"])
    verdicts_of("(-1,1)", ["-1<x<1"], ["|x|<1"])
    verdicts_of("|z|<1", [], ["(-1,1)"])


def test_a_union_of_intervals_that_meet_is_one_interval() -> None:
    verdicts_of("[2,4]", [r"[2,3)\cup[3,4]", r"[3,4]\cup[2,3]", r"(2,4)\cup\{2,4\}"], [r"[2,3)\cup(3,4]"])
    verdicts_of(r"(-\infty,\infty)", [r"(-\infty,0)\cup[0,\infty)"], [r"(-\infty,0)\cup(0,\infty)"])
    verdicts_of(r"(0,\sqrt2]", [r"(0,1]\cup(1,\sqrt{2}]"], [r"(0,1)\cup(1,\sqrt{2}]", r"(0,1)\cup[1,\sqrt{2})"])
    verdicts_of(r"(-\infty,0)\cup\{1\}", [r"x<0 \text{ or } x=1"], [r"(-\infty,1]"])


def test_all_alternatives_together_answer_a_question_for_all_values() -> None:
    verdicts_of("2,3", [r"2 \text{ or } 3", r"3 \text{ or } 2"], [r"2 \text{ or } 4", r"2 \text{ or } 3 \text{ or } 3"])
    verdicts_of("(1,2),(2,1)", [r"(2,1) \text{ or } (1,2)"], [r"(2,1) \text{ or } (1,3)"])
    verdicts_of(r"\frac12", [r"\frac12 \text{ or } 0.5", r"\frac12 \text{ or } 50\%"], [r"\frac12 \text{ or } 0.6"])
    verdicts_of("(2,3)", [], [r"2 \text{ or } 3"])
    verdicts_of("2", [], [r"2 \text{ or } 3"])


@pytest.mark.parametrize(
    "tail",
    [
        "(or 6)", "(maybe 6)", ", but it could be 6", ", though 6 is possible", "unless n is odd",
        "if n is even, 6 otherwise", "when n is even and 6 when n is odd",
    ],
)  # fmt: skip
def test_an_answer_that_another_may_replace_is_none(tail: str) -> None:
    tail = tail if tail[0] == "," else f" {tail}"
    texts = [f"{answer}{tail}." for answer in ("The answer is 5", r"The answer is $\boxed{5}$")]
    assert statuses([("5", text) for text in texts]) == ["no_answer"] * 2


def test_a_second_spelling_or_a_remark_behind_an_answer_takes_nothing_back() -> None:
    texts = (
        r"The answer is $\frac12$ (or 50%).", r"It is $\boxed{\frac12}$ (or 0.5 if you like).",
        "The answer is 1/2, though it may seem odd.", r"So \boxed{1/2} if we count both ends.",
    )  # fmt: skip
    assert statuses([("1/2", text) for text in texts]) == ["correct"] * 4


def test_long_white_space_behind_an_answer_is_read_in_linear_time() -> None:
    text = "The answer is 1" + " " * 4000 + "2."
    start = time.perf_counter()
    assert statuses([("5", text)]) == ["incorrect"]
    assert time.perf_counter() - start < 0.1 * patience()


def test_parts_of_one_are_no_units() -> None:
    parts = ("tenths", "eighths", "thousandths", "per thousand")
    verdicts_of("5", ["5 \\text{ slices}"], [rf"5 \text{{ {part}}}" for part in parts])


def test_units_of_physics_are_known_with_their_prefixes() -> None:
    verdicts_of("5", [r"5 \text{ N}", r"5\,\mathrm{N}", r"5\mathrm{~J}", r"5\ \Omega", r"5\ \mu\text{m}"], [])
    verdicts_of(r"5 \text{ mW}", ["5", r"0.005 \text{ W}", r"5 \text{ mJ/s}"], [r"5 \text{ MW}", r"5 \text{ W}"])
    verdicts_of(r"5 \text{ kJ}", [r"5000 \text{ J}", r"5 \text{ KJ}", r"5000\ \mathrm{N\cdot m}"], [r"5 \text{ J}"])
    verdicts_of(r"5 \text{ mg}", [r"0.005 \text{ g}"], [r"5 \text{ Mg}", r"5 \text{ g}", r"5 \text{ ml}"])
    verdicts_of(r"0.5 \text{ M}", [r"0.5 \text{ mol/L}"], [r"0.5 \text{ m}", r"0.5 \text{ mol}"])
    verdicts_of(r"12 \text{ J/(mol K)}", [r"12\ \mathrm{J\,mol^{-1}\,K^{-1}}", r"12 \text{ J/(mol·K)}"], ["12 J/mol"])
    verdicts_of(r"9.8 \text{ m/s}^2", [r"9.8 \text{ N/kg}", r"9.8\ \mathrm{m\,s^{-2}}"], [r"9.8 \text{ m/s}"])
    verdicts_of(r"1 \text{ L}", [r"1000 \text{ cm}^3", r"1000 \text{ mL}"], [r"1000 \text{ cm}^2", r"1 \text{ mL}"])
    verdicts_of(r"12\ \text{k}\Omega", [r"12000 \text{ ohms}", r"12\ \mathrm{k\Omega}"], [r"12\ \Omega"])
    verdicts_of(r"12^\circ\text{C}", [r"12\ \text{°C}", "12"], [r"12\ \text{°F}"])


def test_letters_of_units_stay_variables_beside_them() -> None:
    for gold, right in (
        ("2N", "2 N"),
        ("2N+1", "2 N + 1"),
        ("3AB", "3 A B"),
        ("2TV", "2 V T"),
        ("2mg", r"2 \cdot m \cdot g"),
    ):
        verdicts_of(gold, [right], [])
    verdicts_of(r"\frac{mV^2}{2} + mgh", [r"\frac{1}{2} mV^2 + mgh"], [r"\frac{1}{2} m^2V^2 + mgh"])
    verdicts_of(r"2\Omega", [r"2\Omega"], [r"2\mu"])


def test_words_and_signs_around_a_value_are_no_part_of_it() -> None:
    around = [r"\text{approximately } 12", r"\text{about } 12", r"\Rightarrow 12", r"\therefore x = 12", r"12\text{.}"]
    verdicts_of("12", [*around, r"\pounds 12"], [answer.replace("12", "13") for answer in around])


def test_a_reason_in_brackets_and_a_bound_behind_a_box_are_read() -> None:
    texts = ("Final answer: 12 (since 3*4=12)", "The answer is 12 (because 3*4 is 12).", r"\boxed{12} or more")
    assert statuses([("12", text) for text in texts]) == ["correct", "correct", "no_answer"]


def test_an_angle_in_degrees_may_be_given_as_a_fraction_of_pi() -> None:
    verdicts_of(
        r"135^\circ",
        [r"\frac{3\pi}{4}", r"\frac34\pi", r"\frac{3\pi}{4} \text{ radians}"],
        [r"\frac{\pi}{4}", r"\pi - \arctan 1", r"\frac{\pi}{2} + \frac{\pi}{4}"],
    )


def test_what_is_counted_or_given_behind_an_expression_is_no_part_of_it() -> None:
    verdicts_of(
        r"\frac{n(n+1)}{2}",
        [rf"\frac{{n(n+1)}}{{2}} \text{{ {thing}}}" for thing in ("handshakes", "ways", "cm")],
        [rf"\frac{{n(n+1)}}{{2}} \text{{ {thing}}}" for thing in ("odd", "plus", "or less")],
    )
    verdicts_of(
        "f(x) = x+1",
        [rf"f(x) = x+1 \text{{ for all }} {where}" for where in ("x>0", r"x \in \mathbb{R}", "x")],
        [r"f(x) = x-1 \text{ for all } x", r"f(x) = x+1 \text{ for all } x<2"],
    )
    verdicts_of(r"\frac{ab}{2}", [r"\frac12 ab", r"\frac{1}{2} ab"], [r"\frac13 ab"])
    verdicts_of(r"6\times10^{23}", [r"6\times10^{23}\ \text{mol}^{-1}"], [r"6\times10^{-23}\ \text{mol}^{-1}"])
    verdicts_of(r"5 \text{ Hz}", [r"5\ \text{s}^{-1}"], [r"5\ \text{s}"])


def test_a_numeral_of_base_ten_is_its_number() -> None:
    verdicts_of("32_{10}", ["32", "32_{10}"], ["32_8"])
    verdicts_of("32_8", [], ["32", "26"])


def test_a_set_of_sets_keeps_its_members_apart() -> None:
    verdicts_of(r"\{\{1\},\{2\},\{1,2\}\}", [r"\{\{2,1\},\{2\},\{1\}\}"], [r"\{1,2,\{1,2\}\}", r"\{\{1\},\{2\}\}"])
    verdicts_of(r"\{1,2\}, \{3,4\}", [r"\{4,3\}, \{1,2\}"], [r"\{1,3\}, \{2,4\}", r"\{1,2,3,4\}"])
    verdicts_of(r"\{1 \pm \sqrt 2\}", [r"\{1+\sqrt2, 1-\sqrt2\}"], [r"\{1+\sqrt2\}"])


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        ("By what percent did the price increase?", "increase", "decrease"),
        ("By what percent did sales fall?", "decrease", "increase"),
        ("What is the percent change?", "increase", "decrease"),
    ],
)
def test_a_change_has_the_direction_that_the_question_names(question: str, right: str, wrong: str) -> None:
    target = {"answer": r"20\%", "question": question}
    texts = [r"\boxed{{20\% \text{{ {} }}}}", "The answer is a 20% {}.", "So the answer is an {} of 20%."]
    assert {*statuses([(target, text.format(right)) for text in texts])} == {"correct"}
    assert {*statuses([(target, text.format(wrong)) for text in texts])} == {"incorrect"}


def test_a_share_in_words_is_its_fraction_and_not_its_first_number() -> None:
    pairs = [("1/5", "1 in 5"), ("1/5", "1 out of 5"), ("1/5", "2 out of 10"), ("1", "1 out of 5"), ("1/5", "5 in 1")]
    found = statuses([(gold, f"The answer is {text}.") for gold, text in pairs])
    assert found == ["correct"] * 3 + ["incorrect"] * 2
    assert statuses([("5", "So it is 3 out of 5 people.")], kind="number") != ["correct"]


def test_directions_of_units_bearings_and_permutations_are_told_apart() -> None:
    verdicts_of(
        r"5\text{ m/s north}",
        [r"5\text{ m/s, north}", r"5\text{ m/s due north}", r"5\text{ m/s to the north}", r"5\text{ m/s}"],
        [r"5\text{ m/s south}", r"5\text{ m/s to the east}", r"5\text{ km/h north}"],
    )
    verdicts_of(r"N 30^\circ E", [r"\text{N }30^\circ\text{ E}"], [r"E 30^\circ N", r"N 30^\circ W", r"N 60^\circ E"])
    verdicts_of("(1 3 2)(4 5)", [r"(4\ 5)(2\ 1\ 3)", "(5 4)(3 2 1)"], ["(1 2 3)(4 5)", "(1 3 2)", "(1 3)(2 4 5)"])


def test_formulas_of_logic_are_compared_by_their_truth_tables() -> None:
    verdicts_of(
        r"\neg p \lor q",
        [r"q \vee \lnot p", r"\neg(p \land \neg q)", "q∨¬p"],
        [r"p \lor q", r"\neg p \land q", r"p \to q", r"\neg p \lor (q \land q)", r"\neg (p \lor q)"],
    )
    verdicts_of(r"(p\land q)\to r", [r"p\to q\to r"], [r"(p\to q)\to r", r"r\to(p\land q)"])


def test_a_question_of_several_parts_wants_each_of_them() -> None:
    gold = "(a) 5, (b) 12"
    right = [
        r"\boxed{(a)\ 5,\quad (b)\ 12}", r"\boxed{5, 12}", "(a) 5\n(b) 12", "(a) \\boxed{5}\n\n(b) \\boxed{12}",
        "**(a)** 2+3 gives 5, so the answer is 5.\n**(b)** The answer is $12$.", r"First \boxed{5}. Then \boxed{12}.",
    ]  # fmt: skip
    wrong = [
        r"\boxed{(a)\ 12, (b)\ 5}", r"\boxed{12, 5}", "(a) 5\n(b) 13", r"(a) 5, so \boxed{12}", r"\boxed{5}",
        "(b) 12\n(a) 5", "(a) 5\n(b) I do not know.",
    ]  # fmt: skip
    assert {*statuses([(gold, text) for text in right])} == {"correct"}
    assert "correct" not in statuses([(gold, text) for text in wrong])
    verdicts_of(gold, [r"\displaystyle (a) 5, (b) 12", r"\text{(a) } 5 \text{ and (b) } 12"], ["(a) 5"])


def test_a_gold_says_what_it_counts_in_brackets() -> None:
    assert statuses([("9 (apples)", text) for text in ("9", "9 apples", "The answer is 9.")]) == ["correct"] * 3
    assert statuses([("9 (apples)", text) for text in ("8", "90 apples", "19 apples")]) == ["incorrect"] * 3
    math().check_gold("9 (apples)")


def test_the_unit_behind_a_last_number_counts_where_the_question_asks_for_one() -> None:
    hours = {"answer": "2", "question": "How many hours does it take?"}
    texts = ["So it takes 2 hours.", "So it takes 120 minutes.", "So it takes 2 minutes.", "So it is 2."]
    assert statuses([(hours, text) for text in texts], kind="number") == ["correct"] * 2 + ["incorrect", "correct"]


def test_factors_that_are_no_primes_are_no_prime_factorisation() -> None:
    target = {"answer": r"2^4 \cdot 3 \cdot 7", "question": "Find the prime factorization of 336."}
    assert statuses([(target, rf"\boxed{{{text}}}") for text in (r"7\cdot3\cdot2^4", r"16\cdot21", "336")]) == [
        "correct", "incorrect", "incorrect",
    ]  # fmt: skip


def test_a_price_for_each_of_something_is_a_quantity() -> None:
    verdicts_of("18", [r"\$18/day", r"\$18 \text{ per day}", r"\$18\text{/day}", r"\$18 \text{ each}"], [r"\$81/day"])
    verdicts_of(
        r"18 \text{ dollars per day}", [r"\$18/day", "$18 a day"], [r"\$18/hour", "€18/day", r"\$18 \text{ per week}"]
    )
    verdicts_of(r"\$4.50 \text{ per pound}", [r"\$4.50/lb", "4.50"], [r"\$4.50 \text{ per person}", r"\$5.40/lb"])


def test_a_so_before_a_whole_answer_is_no_part_of_it() -> None:
    texts = ["Thus: 18", "So, 18 dollars.", "Hence $18.", "Therefore 18"]
    assert {*statuses([("18", text) for text in texts])} == {"correct"}
    assert {*statuses([("18", text) for text in texts], kind="number")} == {"correct"}
    assert statuses([("18", "Thus: 81"), ("18", "So 18 or 19")], kind="number") == ["incorrect", "no_answer"]


def test_a_thin_space_as_latex_writes_it_ends_no_sentence() -> None:
    assert statuses([(r"11,\! 111", r"The final answer is $11,\! 111$."), ("11111", r"It is $11,\! 112$.")]) == [
        "correct", "no_answer",
    ]  # fmt: skip


@pytest.mark.parametrize("gold", ["1 or 4", "9" * 1200])
def test_a_gold_that_no_answer_meets_is_an_error_and_not_a_wrong_answer(gold: str) -> None:
    (verdict,) = judge([(gold, r"\boxed{7}")])
    assert verdict.status == "error"
    assert gold[:80] in verdict.reason


def test_an_equation_of_constants_that_is_false_has_no_last_side() -> None:
    verdicts_of("3", [r"\log_2 8 = 3"], [r"\log_8 2 = 3", r"\sqrt{2} + 1 = 3"])
    verdicts_of("3.14", [r"\pi = 3.14"], [r"\pi = 4.14"])


def test_a_list_in_square_brackets_may_be_written_with_others_or_none() -> None:
    verdicts_of("[1, 4, 9, 16]", ["1, 4, 9, 16", "(1, 4, 9, 16)"], ["[16, 9, 4, 1]", "16, 9, 4, 1", "1, 4, 9"])
    verdicts_of("[1, 2]", ["[1,2]"], ["(1,2)", "1, 2"])


def test_a_family_of_solutions_need_not_say_that_its_letter_is_any_real_number() -> None:
    right = ["(t,2t,-t)", "t(1,2,-1)", r"\{(t,2t,-t) : t\in\mathbb{R}\}", r"(t,2t,-t),\ t\in\mathbb{R}"]
    verdicts_of(r"(t, 2t, -t), t \in \mathbb{R}", right, ["(t,2t,t)", r"\{(t,-2t,-t) : t\in\mathbb{R}\}"])


def test_amounts_degrees_and_dots_are_read_in_their_usual_spellings() -> None:
    verdicts_of("3,50 €", ["€3.50", r"3{,}50\text{ €}"], ["€350", "€3.05", r"3 \text{ or } 50"])
    verdicts_of(r"7.5^\circ", [r"7\frac12^\circ", "7 1/2°"], [r"7\frac13^\circ"])
    verdicts_of(r"\{2,4,6,\ldots\}", [r"\{2, 4, 6, \dots\}", r"\{2,4,6,...\}"], [r"\{2,4,6\}", r"\{2,4,8,\ldots\}"])
    texts = ["**Answer.** 256", "The result: 256", "∴ 256", "Answer: 256"]
    assert statuses([("256", f"We compute.\n\n{text}") for text in texts[:2]]) == ["correct"] * 2
    assert statuses([("256", text) for text in texts]) == ["correct"] * 4


def test_a_denial_before_an_integral_is_no_working() -> None:
    verdicts_of(r"\frac13", [r"\int_0^1 x^2\,dx = \frac13"], [r"\ne \int_0^1 x^2\,dx = \frac13", r"\int_0^1 x^2\,dx"])


@pytest.mark.parametrize("filler", [" ", "*", "(", "(a)", "\n(a) ", r"\text{", ", ", "- "])
def test_a_flood_beside_a_gold_of_several_parts_ends_in_a_verdict_in_time(filler: str) -> None:
    for text in (filler * 100_000, rf"\boxed{{{filler * 1000}}}", f"(a) 5{filler * 100_000}(b) 13"):
        (verdict,) = judge([("(a) 5, (b) 12", text)])
        assert verdict.status != "correct"
        assert verdict.seconds < 2.0 * patience()
