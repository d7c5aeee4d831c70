"""The safe adapter to reasoning-gym: answers are right or wrong, and never run as code."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.loops import verdicts
from tests.timing import patience
from tests.ttc.hostile import hostile_texts
from ttc.core import Verdict
from ttc.errors import ConfigError, MissingExtra
from ttc.verifiers.procedural.methods import OURS, REFUSED, SCORERS, THEIRS, same
from ttc.verifiers.procedural.verifier import problems, procedural

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None
needs_gym = pytest.mark.skipif(not INSTALLED, reason="reasoning-gym is missing")


def judge_all(cases: list[tuple[object, str]]) -> list[Verdict]:
    return verdicts(procedural(), cases)


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("7", "7", True),
        ("7.0", "7", True),
        ("1,000", "1000", True),
        ("2/4", "1/2", True),
        ("7 or 5", "7", False),
        ("The answer is 7", "7", False),
        ("TRUE", "True", True),
        ("hELLO", "Hello", False),
        ("[[1,2],[3]]", "[[1, 2], [3]]", True),
        ("1  2\n3 4 ", "1 2\n3 4", True),
        ("1 2 3 4", "1 2\n3 4", False),
        (r"$\dfrac{1}{2}$", r"$\frac{1}{2}$", True),
        ("", "7", False),
        ("1/0", "7", False),
        ("9" * 5000, "7", False),
    ],
)
def test_an_answer_is_the_stored_one_or_wrong(answer: str, gold: str, equal: bool) -> None:
    assert same(answer, gold) is equal


@pytest.mark.parametrize(
    ("task", "metadata", "gold", "right", "wrong"),
    [
        ("countdown", {"numbers": [1, 2, 3], "target": 7}, "1+2*3", "(3*2)+1 = 7", "7"),
        ("puzzle24", {"numbers": [1, 1, 4, 6]}, "4*6*1*1", "6*4/(1*1)", "4*6"),
        ("number_sorting", {}, "['-1.5', '2']", '["-1.5", "2.0"]', "__import__('os').getcwd()"),
        ("n_queens", {"valid_answers": ["_ Q\nQ _", "Q _\n_ Q"]}, "", "Q  _\n_ Q", "Q Q\n_ _"),
        ("polynomial_multiplication", {}, "2*x**2 - 3*x + 1", "1 + 2x^2 - 3x", "(2*x - 1)*(x - 1)"),
    ],
)
def test_the_scorers_written_here_know_right_from_wrong(
    task: str, metadata: Mapping[str, Any], gold: str, right: str, wrong: str
) -> None:
    assert SCORERS[task](right, metadata, gold)
    assert not SCORERS[task](wrong, metadata, gold)
    for text in hostile_texts().values():
        assert not SCORERS[task](text[:4096], metadata, gold)


def test_every_replaced_task_has_its_scorer() -> None:
    assert set(SCORERS) == OURS
    assert not OURS & set(THEIRS)
    assert not set(REFUSED) & (OURS | set(THEIRS))


def test_the_stored_answer_decides_without_the_package() -> None:
    target = {"task": "gcd", "answer": "7"}
    texts = ["<answer>7</answer>", r"\boxed{7}", "<answer>7 or 5</answer>", "", "The answer is 7."]
    found = [verdict.status for verdict in judge_all([(target, text) for text in texts])]
    assert found == ["correct", "correct", "incorrect", "no_answer", "correct"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (5, "target must be an object"),
        ({"task": "gcd"}, r"target\.answer must be a str"),
        ({"task": "gcd", "answers": "7"}, "did you mean 'answer'"),
        ({"task": "codeio", "answer": "7"}, "'codeio' is refused"),
        ({"task": "jugs", "answer": "[]"}, r"target\.seed must be a int"),
    ],
)
def test_a_broken_target_names_its_field(target: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"row 7: .*{message}"):
        procedural().check_gold(target, "row 7")
    assert judge_all([(target, "<answer>7</answer>")])[0].status == "error"


@pytest.mark.skipif(INSTALLED, reason="reasoning-gym is installed")
def test_a_missing_package_gives_its_install_command() -> None:
    with pytest.raises(MissingExtra, match=r"pip install .*\[procedural\]"):
        next(problems("gcd", seed=1, count=1))


@needs_gym
@pytest.mark.parametrize(
    "task", ["jugs", pytest.param("countdown", marks=pytest.mark.slow), pytest.param("sokoban", marks=pytest.mark.slow)]
)
def test_the_packages_own_answers_are_correct_and_others_are_not(task: str) -> None:
    made = list(problems(task, seed=3, count=3))
    forms = ("{}", "{} or 5", "nonsense")
    cases = [(one.target, f"<answer>{form.format(one.target['answer'])}</answer>") for one in made for form in forms]
    assert [verdict.correct for verdict in judge_all(cases)] == [True, False, False] * 3


@needs_gym
def test_problems_are_the_same_every_time_also_where_the_hash_seed_matters() -> None:
    first = list(problems("isomorphic_strings", seed=3, count=30))
    assert first[:10] == list(problems("isomorphic_strings", seed=3, count=10))
    assert len({one.question for one in first}) > 20


@needs_gym
@pytest.mark.slow
def test_a_problem_that_the_package_would_make_differently_today_has_no_verdict() -> None:
    (made,) = problems("jugs", seed=3, count=1)
    (verdict,) = judge_all([({**made.target, "digest": "0" * 16}, "<answer>[]</answer>")])
    assert (verdict.status, verdict.score) == ("error", None)
    assert "another problem" in verdict.reason


@needs_gym
def test_no_scorer_of_the_package_that_is_used_runs_text_as_code() -> None:
    from reasoning_gym.factory import DATASETS

    running = re.compile(r"(?<![\w.])(?:eval|exec|parse_expr|sympify)\s*\(")
    for task in THEIRS:
        assert not running.search(inspect.getsource(DATASETS[task][0].score_answer)), task


@needs_gym
def test_the_guard_stops_a_scorer_that_runs_code() -> None:
    from ttc.verifiers.procedural.worker import Guard

    guard = Guard()
    assert eval("1 + 1") == 2
    guard.armed = True
    try:
        with pytest.raises(RuntimeError, match="may not cause exec"):
            eval("1 + 1")
        with pytest.raises(RuntimeError, match="may not cause open"):
            pathlib.Path("never-written").write_text("")
    finally:
        guard.armed = False
    assert guard.caught == "exec"


@needs_gym
@pytest.mark.slow
def test_hostile_answers_are_judged_in_time() -> None:
    (made,) = problems("jugs", seed=3, count=1)
    (board,) = problems("game_of_life", seed=3, count=1)
    texts = [text for text in hostile_texts().values() if len(text) < 20_000]
    verdicts = judge_all([(target, text) for text in texts for target in (made.target, board.target)])
    assert {verdict.status for verdict in verdicts} <= {"incorrect", "no_answer", "limit", "timeout"}
    assert max(verdict.seconds for verdict in verdicts) < procedural().card.max_s * patience()
