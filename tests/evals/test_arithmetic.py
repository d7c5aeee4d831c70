"""The procedural problems, their splits and the exact step checker."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.data.worked_steps import WorkedPath, evaluate, parse, parse_step, reductions
from evals.tasks.arithmetic import LEVELS, sample_expression

WORKED = ["23+48=71", "71*30=2130", "71*8=568", "2130+568=2698", "2698-17=2681"]


def follow(text: str, lines: list[str]) -> WorkedPath:
    progress = WorkedPath.start(parse(text))
    for written in lines:
        progress = progress.step(written)
    return progress


@settings(deadline=None, max_examples=60)
@given(st.integers(), st.sampled_from(sorted(LEVELS)), st.sampled_from(["train", "eval"]))
def test_a_sampled_expression_has_its_exact_value_and_its_split(seed, level, split):
    drawn = sample_expression(random.Random(seed), level, split)
    assert drawn.value == eval(drawn.text)
    assert drawn.split == split
    assert abs(drawn.value) <= LEVELS[level].max_value
    operations = sum(drawn.text.count(sign) for sign in "+-*")
    assert LEVELS[level].min_ops <= operations <= LEVELS[level].max_ops


@settings(deadline=None, max_examples=60)
@given(st.integers(), st.sampled_from(sorted(LEVELS)))
def test_every_legal_step_keeps_the_value(seed, level):
    drawn = sample_expression(random.Random(seed), level, "train")
    steps = list(reductions(parse(drawn.text)))
    assert steps
    for step in steps:
        assert evaluate(step.rest) == drawn.value
        assert step.value == eval(step.left)


@settings(deadline=None, max_examples=60)
@given(st.integers(), st.sampled_from(sorted(LEVELS)))
def test_any_order_of_legal_steps_ends_at_the_value(seed, level):
    rng = random.Random(seed)
    drawn = sample_expression(rng, level, "eval")
    node, progress = parse(drawn.text), WorkedPath.start(parse(drawn.text))
    while not isinstance(node, int):
        step = rng.choice(list(reductions(node)))
        node, progress = step.rest, progress.step(step.line)
        assert progress.on_track
    assert node == drawn.value
    assert progress.done


def test_the_same_seed_draws_the_same_expression():
    first, second = (sample_expression(random.Random(5), 4, "eval") for _ in range(2))
    assert first == second


def test_the_splits_share_no_expression_even_where_expressions_are_few():
    rng = random.Random(0)
    drawn = {split: {sample_expression(rng, 1, split).text for _ in range(3000)} for split in ("train", "eval")}
    assert len(drawn["eval"]) > 500
    assert not drawn["train"] & drawn["eval"]


def test_a_whole_right_solution_is_on_track_and_done():
    progress = follow("(23+48)*38-17", WORKED)
    assert progress.on_track
    assert progress.done


@pytest.mark.parametrize(
    "written", ["23+48=61", "48-17=31", "48*38=1824", "23+48", "23+48=71.", "", "Wait", "71*38=2698", "23 +48=71"]
)
def test_a_wrong_illegal_or_unreadable_first_step_leaves_the_track(written):
    progress = follow("(23+48)*38-17", [written])
    assert not progress.on_track
    assert not progress.done


def test_no_later_step_returns_to_the_track_without_wait():
    assert not follow("(23+48)*38-17", ["23+48=61", *WORKED[1:]]).on_track
    assert not follow("(23+48)*38-17", ["23+48=61", *WORKED]).on_track


def test_wait_with_the_right_step_mends_the_path():
    progress = follow("(23+48)*38-17", ["23+48=61", "Wait, 23+48=71", *WORKED[1:]])
    assert progress.done


def test_wait_with_a_wrong_step_mends_nothing():
    assert not follow("(23+48)*38-17", ["23+48=61", "Wait, 23+48=81"]).on_track


def test_wait_after_the_end_starts_a_second_pass():
    progress = follow("(23+48)*38-17", [*WORKED, "Wait, 23+48=71"])
    assert progress.on_track
    assert not progress.done
    assert follow("(23+48)*38-17", [*WORKED, "Wait, 23+48=71", *WORKED[1:]]).done


def test_a_step_that_fits_two_equal_pairs_keeps_both_readings():
    progress = follow("(3+4)*2-(3+4)", ["3+4=7", "3+4=7", "7*2=14", "14-7=7"])
    assert progress.done
    assert follow("(3+4)*2-(3+4)", ["3+4=7", "7*2=14", "3+4=7", "14-7=7"]).done


def test_negative_numbers_are_written_with_their_sign():
    assert follow("12-40+55", ["-40+55=15", "12+15=27"]).done
    assert follow("12-40+55", ["12-40=-28", "-28+55=27"]).done
    assert follow("5-(12-40)", ["12-40=-28", "5+28=33"]).done


@pytest.mark.parametrize("text", ["", "2+", "(2", "2)", "2/3", "x", "2**3", "()", "1" * 2000])
def test_what_is_not_such_an_expression_is_refused(text):
    with pytest.raises(ValueError, match="expression"):
        parse(text)


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="level: 9"):
        sample_expression(random.Random(0), 9, "train")


def test_a_step_line_is_read_or_refused():
    step = parse_step("Wait, -28+55=27")
    assert step is not None
    assert (step.wait, step.left, step.value) == (True, "-28+55", 27)
    assert parse_step("-28+55=27=27") is None
