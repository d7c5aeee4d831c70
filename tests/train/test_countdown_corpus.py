"""Worked searches of Countdown: every line is true, dead ends return, the answer verifies, and splits share nothing."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.data.decontamination import answer_leaks, overlaps, own_texts
from evals.experiment import check_golds
from evals.tasks.countdown import countdown as task
from evals.tasks.countdown import part_of
from train.corpora.countdown import BACK, countdown
from train.examples.examples import ShownTurn, corpus_examples
from ttc.core import Submission
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.verifiers.countdown import countdown as verifier

_LINE = re.compile(r"(\d+)([+\-*/])(\d+)=(\d+)((?:,\d+)*)")
_VALUES = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


def _game(turn: ShownTurn) -> tuple[int, list[int]]:
    target, *numbers = map(int, re.findall(r"\d+", turn.messages[0].content))
    return target, numbers


def _followed(turn: ShownTurn) -> int:
    """Walk the thought with a stack of what is left; returns the value it ends at."""
    _, numbers = _game(turn)
    stack, ends = [Counter(numbers)], [0]
    for line in turn.thinking.strip().split("\n"):
        if line == BACK:
            stack.pop()
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        a, sign, b, value, rest = match[1], match[2], match[3], match[4], match[5]
        assert _VALUES[sign](int(a), int(b)) == int(value)
        left = Counter(map(int, rest.split(",")[1:]))
        spent = Counter([int(a), int(b)])
        assert stack[-1] == spent + left, line
        if left:
            stack.append(left + Counter([int(value)]))
        ends.append(int(value))
    return ends[-1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 4), st.sampled_from([30, 99]))
def test_every_line_is_true_every_return_is_to_an_open_place_and_the_end_is_the_target(
    seed: int, dead_ends: float, largest: int
) -> None:
    turn = countdown(dead_ends=dead_ends, largest=largest, most=120).turn
    assert turn is not None
    one = turn(random.Random(seed))
    target, numbers = _game(one)
    assert _followed(one) == target
    verdict = asyncio.run(verifier().verify({"numbers": numbers, "target": target}, Submission(one.answer)))
    assert verdict.correct
    assert part_of(numbers, target) == "train"
    assert max(numbers) <= largest


def test_searches_of_four_numbers_return_from_two_depths() -> None:
    turn = countdown(numbers=4, most=150).turn
    assert turn is not None
    rng = random.Random(3)
    turns = [turn(rng) for _ in range(12)]
    assert all(_followed(one) == _game(one)[0] for one in turns)
    assert any(f"{BACK}\n{BACK}" in one.thinking for one in turns)


def test_dead_ends_are_as_many_as_asked_and_thoughts_as_short() -> None:
    def thoughts(dead_ends: float) -> list[str]:
        turn = countdown(dead_ends=dead_ends).turn
        assert turn is not None
        rng = random.Random(5)
        return [turn(rng).thinking for _ in range(200)]

    none, some, many = (thoughts(mean) for mean in (0.0, 1.0, 3.0))
    assert not any(BACK in thought for thought in none)
    assert fmean(thought.count(BACK) for thought in some) < fmean(thought.count(BACK) for thought in many)
    assert all(len(thought.replace(BACK, "-")) <= 150 for thought in many)


def test_parts_share_neither_numbers_nor_targets_and_our_detectors_find_no_overlap() -> None:
    parts = {part: task(numbers=3, part=part, form="brief").items(300, 0) for part in ("train", "dev", "test")}
    for first, second in (("train", "dev"), ("train", "test"), ("dev", "test")):
        sets, targets = (
            [{read(item.target) for item in parts[part]} for part in (first, second)]
            for read in (lambda gold: tuple(sorted(gold["numbers"])), lambda gold: gold["target"])
        )
        assert not sets[0] & sets[1]
        assert not targets[0] & targets[1]
        assert not list(overlaps(own_texts(parts[first]), own_texts(parts[second]), n=5))
    for items in parts.values():
        assert len({item.target["target"] for item in items}) >= 12
        assert not list(answer_leaks(items))
        check_golds(items, verifier(), task(numbers=3))


def test_an_overlap_that_is_planted_is_found() -> None:
    items = task(numbers=3, part="test", form="brief").items(20, 0)
    train = own_texts(task(numbers=3, part="train", form="brief").items(20, 0))
    assert [overlap.train for overlap in overlaps([*train, own_texts(items)[4]], own_texts(items))] == [20]


def test_what_is_learnt_goes_through_the_template_of_the_model_that_learns(tmp_path: Path) -> None:
    corpus = countdown()
    tokenizer = corpus.tokenizer()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    examples = corpus_examples(corpus, Text(tmp_path), tokenizer.eos_token_id, 40, 1)
    assert len({example.key for example in examples}) == 40
    for example in examples:
        whole = tokenizer.decode([*example.prompt_ids, *example.token_ids])
        prompt = f"<|im_start|>user\n{example.key}<|im_end|>\n<|im_start|>assistant\n<think>\n"
        assert whole.startswith(prompt)
        assert re.fullmatch(r"(.+\n)+</think>\n[\d+\-*/()]+<\|im_end\|>", whole.removeprefix(prompt))
        assert len(example.prompt_ids) + len(example.token_ids) <= corpus.max_length


def test_a_corpus_that_cannot_be_is_refused_by_its_field() -> None:
    for message, fields in {
        "numbers must be 3 to 6": {"numbers": 2},
        "largest must be 10 to 99": {"largest": 100},
        "dead_ends must be at least 0": {"dead_ends": -1.0},
        "most": {"most": 10},
    }.items():
        with pytest.raises(ConfigError, match=message):
            countdown(**fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="part is of generated problems"):
        task(split="test", part="dev")
