"""Labels of the reward model, token by token, on work whose mistakes are known."""

import pytest

from evals.arithmetic import expression
from train.nano import tokenizer
from train.nano.labels import NONE, label
from train.nano.traces import HANDOVER

PROBLEM = expression("(23+48)*3-17")


@pytest.fixture(scope="module")
def nano():
    return tokenizer.build()


def read(nano, text, handover=False):
    """Return (token text, label) where there is a label, and the labels that are read as scores."""
    ids = nano.encode(text, add_special_tokens=False)
    found = label(nano, PROBLEM, ids, handover)
    labelled = [
        (nano.decode([token]), value)
        for token, value in zip(ids, found.values, strict=True)
        if value != NONE
    ]
    ends = [value for value, end in zip(found.values, found.ends, strict=True) if end]
    assert NONE not in ends
    return labelled, ends


def test_right_work_is_right_at_every_step_and_at_the_answer(nano):
    text = "23+48=71\n\n71*3=213\n\n213-17=196\n\n</think>\n\nThe answer is \\boxed{196}.<|im_end|>"
    _, ends = read(nano, text)
    assert ends == [1] * 6


def test_an_error_is_marked_from_its_first_wrong_digit(nano):
    labelled, _ = read(nano, "23+48=71\n\n71*3=223\n\n")
    assert labelled == [
        ("7", 1), ("1", 1), ("\n\n", 1), ("2", 1), ("2", 0), ("3", 0), ("\n\n", 0),
    ]  # fmt: skip


def test_a_right_sum_on_wrong_numbers_stays_off_track(nano):
    _, ends = read(nano, "23+48=61\n\n61*3=183\n\n183-17=166\n\n</think>\n\n")
    assert ends == [0, 0, 0, 0]


def test_a_correction_after_wait_is_on_track_again(nano):
    _, ends = read(nano, "23+48=61\n\nWait, 23+48=71\n\n71*3=213\n\n")
    assert ends == [0, 1, 1]


def test_ending_early_is_wrong_although_no_step_is(nano):
    _, ends = read(nano, "23+48=71\n\n</think>\n\n")
    assert ends == [1, 0]


def test_a_wrong_answer_after_right_work_is_wrong(nano):
    text = "23+48=71\n\n71*3=213\n\n213-17=196\n\n</think>\n\nThe answer is \\boxed{186}.<|im_end|>"
    _, ends = read(nano, text)
    assert ends == [1, 1, 1, 1, 0, 0]


def test_a_cut_thinking_is_labelled_up_to_its_last_whole_step(nano):
    for cut in ("23+48=71\n\n71*", "23+48=71\n\n"):
        text = cut + HANDOVER + "The answer is \\boxed{196}.<|im_end|>"
        _, ends = read(nano, text, handover=True)
        assert ends == [1, 1, 1]


def test_text_that_is_no_work_at_all_is_labelled_without_error(nano):
    for text in ("", "hello", "\n\n", "</think>", "=\n\n", "\\boxed{", "</think>\n\n\\boxed{"):
        read(nano, text)
    assert read(nano, "hello\n\n")[1] == [0]
