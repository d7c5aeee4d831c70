"""The numbers games: expressions are read exactly, every number counts once, nothing is evaluated as code."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ttc.hostile import hostile_texts
from ttc import answers
from ttc.answers.grammar import TooLarge, Unparsed
from ttc.answers.keys import ZeroDivision, expression_key, read_expression
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.countdown import countdown
from ttc.verifiers.game24 import game24

DATA = os.environ.get("TTC_DATA")
GAME = {"numbers": [3, 3, 8, 8], "target": 24}


def judge(text: str, target: object = GAME, verifier: Any = None, finish: Any = "stop") -> Verdict:
    made = verifier or countdown()
    verdict = asyncio.run(made.verify(target, Submission(text, finish_reason=finish)))
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.mark.parametrize(
    "answer",
    [
        "8/(3-8/3)",
        "8 ÷ (3 − 8 ÷ 3)",
        r"\frac{8}{3 - \frac{8}{3}}",
        r"8 \div \left(3 - \dfrac{8}{3}\right) = 24",
        "24 = 8/(3-8/3)",
        "-8/(8/3-3)",
        "８/(３-８/３)",
    ],
)
def test_an_exact_expression_is_correct_in_every_spelling(answer: str) -> None:
    for text in (rf"\boxed{{{answer}}}", f"<answer>{answer}</answer>", f"Answer: {answer}"):
        assert judge(text).correct, text


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ("8*3", "incorrect", "does not use 3"),
        ("8*3+8-8+3-3", "incorrect", "uses 3 more often"),
        ("24", "incorrect", "uses 24 more often"),
        ("8+8+3+3", "incorrect", "is worth 22, not 24"),
        ("8+8+3+3=24", "incorrect", "is worth 22"),
        ("8/(3-8/3)=25", "incorrect", "its own equation is false"),
        ("8*8/(3-3)", "incorrect", "a division by zero"),
        ("8*3 + 0*(8+3)", "incorrect", "uses 0 more often"),
        ("8^3-3*8", "unparseable", "a power"),
        ("8!/3", "unparseable", "a function"),
        ("8.0*3", "unparseable", "a decimal"),
        ("8 3/8*3", "unparseable", "a decimal or a mixed number"),
        ("8*3=24, 24+8=32", "unparseable", "a list"),
        ("eval('24')", "unparseable", ""),
        ("__import__('os').getcwd()", "unparseable", ""),
        ("(" * 60 + "8" + ")" * 60, "incorrect", "limit: nested deeper"),
        ("1+" * 600 + "1", "incorrect", "limit: more than"),
        ("9" * 400, "incorrect", "digits"),
    ],
)
def test_what_is_wrong_is_said(answer: str, status: str, reason: str) -> None:
    verdict = judge(f"<answer>{answer}</answer>")
    assert verdict.status == status
    assert reason in verdict.reason
    assert not verdict.score


def test_parts_tell_numbers_and_value_apart() -> None:
    assert judge("<answer>8*3</answer>").parts == {"numbers": 0, "value": 1}
    assert judge("<answer>8+8+3+3</answer>").parts == {"numbers": 1, "value": 0}


def test_two_expressions_or_none_or_a_cut_text_have_no_verdict() -> None:
    assert judge(r"\boxed{8*3} or \boxed{8+3}").status == "no_answer"
    assert judge("I do not know how to do it.").status == "no_answer"
    assert judge("<answer>8/(3-8/3)</answer>", finish="length").status == "no_answer"


def test_some_variants_let_numbers_be_left_out() -> None:
    assert judge("<answer>8*3</answer>", verifier=countdown(use_all=False)).correct
    assert judge("<answer>8*3+3-3-3</answer>", verifier=countdown(use_all=False)).status == "incorrect"


def test_game24_takes_the_numbers_alone() -> None:
    for target in ([1, 1, 4, 6], "1 1 4 6", {"numbers": [1, 1, 4, 6]}, {"numbers": [6, 4, 1, 1], "target": 24}):
        assert judge("<answer>4*6*1*1</answer>", target, game24()).correct
    with pytest.raises(ConfigError, match=r"row 1: target\.target must be 24, got 25"):
        game24().check_gold({"numbers": [1], "target": 25}, "row 1")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"numbers": [1, -2], "target": 3}, r"target\.numbers must be a list of whole numbers >= 0"),
        ({"numbers": [], "target": 3}, r"target\.numbers"),
        ({"numbers": "1 x", "target": 3}, r"target\.numbers"),
        ({"numbers": "9" * 5000, "target": 3}, r"target\.numbers"),
        ({"numbers": [1, True], "target": 3}, r"target\.numbers"),
        ({"numbers": [1]}, r"target\.target must be a whole number"),
        ({"numbers": [1], "target": 1, "solutions": "1"}, "did you mean 'solution'"),
        ({"numbers": [1, 2], "target": 3, "solution": "1*2"}, r"the solution '1\*2' does not verify: is worth 2"),
    ],
)
def test_a_broken_target_names_its_field(target: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"row 7: .*{message}"):
        countdown().check_gold(target, "row 7")


def test_equal_work_is_one_voting_class() -> None:
    assert expression_key("3*(4+5)") == expression_key(r"(5+4)\times 3 = 27")
    assert expression_key("3*9") != expression_key("3*(4+5)")
    assert answers.key("1/(2-2)", "expression") != answers.key("1/(3-3)", "expression")
    assert answers.extract("so 3*9 it is.\n<answer>3*9 = 27</answer>", "expression").final == "3*9 = 27"


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> tuple[str, Fraction | None, list[int]]:
    """An expression as text, its value by Python's own arithmetic, and its numbers."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(0, 99))
        return str(number), Fraction(number), [number]
    left, a, used = draw(trees(depth - 1))
    right, b, more = draw(trees(depth - 1))
    sign = draw(st.sampled_from("+-*/"))
    known = a is not None and b is not None and not (sign == "/" and b == 0)
    value = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[sign]() if known else None
    return f"({left}){sign}({right})", value, used + more


@given(trees())
def test_values_are_those_of_exact_arithmetic(tree: tuple[str, Fraction | None, list[int]]) -> None:
    text, value, used = tree
    if value is None:
        with pytest.raises(ZeroDivision):
            read_expression(text)
    else:
        assert read_expression(text) == read_expression(f"({text})")
        assert (read_expression(text).value, read_expression(text).numbers) == (value, tuple(sorted(used)))


@given(st.text(alphabet="0123456789+-*/()=., \\frac{}×÷−^!%√½eEx", max_size=60))
def test_no_text_makes_reading_fail_otherwise(text: str) -> None:
    with contextlib.suppress(Unparsed, TooLarge, ZeroDivision):
        read_expression(text)


def test_hostile_texts_are_judged_in_time() -> None:
    verifier = countdown()
    for text in hostile_texts().values():
        started = time.thread_time()
        verdict = judge(text, verifier=verifier)
        assert verdict.status in ("incorrect", "unparseable", "no_answer")
        assert time.thread_time() - started < verifier.card.max_s


@pytest.mark.skipif(not DATA, reason="TTC_DATA names no data folder")
def test_every_published_solution_is_correct() -> None:
    verifier = countdown()
    with gzip.open(Path(DATA or "") / "countdown_test.jsonl.gz", "rt") as file:
        for line in file:
            row = json.loads(line)
            target = {"numbers": row["numbers"], "target": row["target"]}
            assert judge(f"<answer>{row['solution']}</answer>", target, verifier).correct
            assert not judge(f"<answer>{row['solution']}+1</answer>", target, verifier).correct
