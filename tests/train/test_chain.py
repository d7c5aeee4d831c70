"""The chain language: right answers, noticed mistakes, splits that share nothing, and texts the tokenizer can hold."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.tasks.chain import Chain, Chains
from evals.tasks.chain import chain as task
from train.corpora.chain import chain as corpus
from ttc.errors import ConfigError


@given(st.integers(0, 9), st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_value_is_the_last_digit_of_the_steps_done_in_order(first: int, steps: list[tuple[str, int]]) -> None:
    chain = Chain(first, tuple(steps))
    text = str(first)
    for operation, digit in steps:
        text = f"({text}{operation}{digit})"
    assert chain.value == eval(text) % 10
    assert re.fullmatch(r"\d([a-h][+\-*]\d)+=", chain.question)


def test_problems_are_distinct_the_same_for_every_limit_and_never_in_both_splits() -> None:
    train, measured = task(split="train", count=500).items(None, 0), task().items(500, 0)
    assert task(split="train").items(100, 0) == train[:100]
    assert len({item.problem.id for item in train}) == 500
    assert not {item.problem.messages for item in train} & {item.problem.messages for item in measured}
    with pytest.raises(ConfigError, match=r"fewer than 2000 different chains of 1 step\b"):
        task(length=1).items(None, 0)


def test_a_flag_stands_behind_the_question_and_is_one_token() -> None:
    (item,) = task(flag="no_think").items(1, 0)
    text = item.problem.messages[0].content
    assert text.endswith("=/no_think")
    tokenizer = corpus().tokenizer()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text))[-2:] == ["=", "/no_think"]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1), st.integers(1, 8))
def test_every_text_fits_is_known_and_ends_in_the_answer_of_its_steps(
    seed: int, noise: float, noticed: float, length: int
) -> None:
    texts = corpus(length=length, noise=noise, noticed=noticed)
    text = texts.sample(random.Random(seed))
    tokenizer = texts.tokenizer()
    ids = tokenizer.encode(text)
    assert len(ids) <= texts.max_length
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert re.findall(r"=[\d!]*(\d)\.", text)[-1] == text[-1]


def test_without_noise_the_steps_are_right_and_with_noise_all_noticed_the_answer_still_is() -> None:
    for noise, most in ((0.0, 3), (0.3, 99)):
        texts = corpus(noise=noise, noticed=1.0, most=most)
        for seed in range(20):
            text = texts.sample(random.Random(seed))
            question, _, rest = text.partition("<think>")
            steps = re.findall(r"([+\-*])(\d)", question)
            chain = Chain(int(question[0]), tuple((operation, int(digit)) for operation, digit in steps))
            assert rest.endswith(f"</think>{chain.value}")
            assert ("!" in rest) <= (noise > 0)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="noise must be in"):
        corpus(noise=1.5)
    with pytest.raises(ConfigError, match="operations must be some of"):
        Chains(3, "+/")
    with pytest.raises(ConfigError, match="length must be from 1 to 10"):
        task(length=0)
    with pytest.raises(ConfigError, match="count must be at least 1"):
        task(count=0)
