"""The numbers games as tasks: the exact prompts, solvable problems, and both published formats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evals.experiment import check_golds
from evals.tasks.countdown import countdown
from evals.tasks.game24 import game24
from tests.evals.local_data import write_hub_copy, write_lines
from ttc.core import Message
from ttc.errors import ConfigError, RecordError
from ttc.verifiers.countdown import countdown as countdown_verifier
from ttc.verifiers.game24 import game24 as game24_verifier

DATA = os.environ.get("TTC_DATA")
COUNTDOWN = """\
Using the numbers [44, 19, 35], create an expression that equals 98. You can use the basic arithmetic operations \
(+, -, *, /) and parentheses, and you must use every number exactly once.

Think step by step, then put the final expression between <answer> and </answer>, for example \
<answer>(1 + 2) / 3</answer>."""
GAME24 = """\
Use the numbers 1 1 4 6 and basic arithmetic operations (+, -, *, /) and parentheses to obtain 24. Use every number \
exactly once.

Think step by step, then put the final expression between <answer> and </answer>, for example \
<answer>(1 + 2) * 8 * 1</answer>."""
ROW = {"id": "c-0", "numbers": [44, 19, 35], "target": 98, "solution": "44 + (19 + 35)"}


def test_the_published_countdown_problems_are_asked_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    write_lines(tmp_path / "countdown_test.jsonl", [ROW])
    (local,) = countdown(data=str(tmp_path), split="test").items(None, 0)
    assert local.problem.messages == (Message("user", COUNTDOWN),)
    assert (local.problem.id, local.problem.kind, local.difficulty) == ("c-0", "expression", "3")
    assert local.target == {"numbers": [44, 19, 35], "target": 98, "solution": "44 + (19 + 35)"}
    hub = tmp_path / "hub" / "Jiayi-Pan" / "Countdown-Tasks-3to4"
    write_hub_copy(hub, [{"nums": [44, 19, 35], "target": 98}], split="train")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (row,) = countdown(data=str(tmp_path / "hub"), split="train").items(None, 0)
    assert row.problem.messages == local.problem.messages
    assert row.problem.id == "countdown-train-0"


@pytest.mark.parametrize("size", [3, 4, 6])
def test_generated_problems_have_a_solution_and_do_not_depend_on_the_limit(size: int) -> None:
    task = countdown(numbers=size)
    items = task.items(200, 7)
    assert items[:50] == task.items(50, 7)
    check_golds(items, countdown_verifier(), task)
    assert all(item.target["solution"] and len(item.target["numbers"]) == size for item in items)
    assert len({(tuple(sorted(item.target["numbers"])), item.target["target"]) for item in items}) == 200
    assert items[0].problem.id == f"countdown-n{size}-s7-0"
    assert {item.target["solution"] for item in items} != {item.target["solution"] for item in task.items(200, 8)}


def test_countdown_refuses_what_it_cannot_make_or_find() -> None:
    with pytest.raises(ConfigError, match="numbers must be 3 to 6, got 7"):
        countdown(numbers=7)
    with pytest.raises(ConfigError, match="read from a copy only"):
        countdown(split="test").items(1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": "44 19"}, "line 1: numbers: expected a list of whole numbers"),
        ({"numbers": [44, "x"]}, "line 1: numbers: expected a whole number"),
        ({"target": 1.5}, "line 1: target: expected a whole number"),
        ({"solution": 3}, "line 1: solution: expected a string"),
    ],
)
def test_a_broken_countdown_row_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_lines(tmp_path / "countdown_test.jsonl", [{**ROW, **change}])
    with pytest.raises(RecordError, match=message):
        countdown(data=str(tmp_path), split="test").items(None, 0)


def test_the_game_of_24_is_asked_so_from_either_format(tmp_path: Path) -> None:
    write_lines(tmp_path / "local" / "game24.jsonl", [{"id": "game24-1", "numbers": [1, 1, 4, 6], "rank": 1}])
    (tmp_path / "game24.csv").write_text("Rank,Puzzles,AMT (s)\n1,1 1 4 6,4.4\n901,1 2 4 7,9\n")
    (local,) = game24(data=str(tmp_path / "local")).items(None, 0)
    first, second = game24(data=str(tmp_path)).items(None, 0)
    assert local == first
    assert local.problem.messages == (Message("user", GAME24),)
    assert (local.target, local.difficulty, second.difficulty) == ([1, 1, 4, 6], "1", "4")
    assert game24(data=str(tmp_path), subset="hard").items(None, 0) == [second]
    game24_verifier().check_gold(local.target)
    write_lines(tmp_path / "broken" / "game24.jsonl", [{"id": "a", "numbers": [1, 1, 4], "rank": 1}])
    with pytest.raises(RecordError, match="line 1: numbers: expected four whole numbers"):
        game24(data=str(tmp_path / "broken")).items(None, 0)


@pytest.mark.skipif(not DATA, reason="TTC_DATA names no data folder")
def test_the_published_files_load_whole_and_their_targets_verify() -> None:
    for split, count in (("test", 1024), ("train", 10240)):
        task = countdown(data=DATA, split=split)  # type: ignore[arg-type]
        items = task.items(None, 0)
        assert len(items) == count
        check_golds(items, countdown_verifier(), task)
    task = game24(data=DATA)
    items = task.items(None, 0)
    assert (len(items), len(game24(data=DATA, subset="hard").items(None, 0))) == (1362, 100)
    assert {item.difficulty for item in items} == set("12345")
    check_golds(items, game24_verifier(), task)
