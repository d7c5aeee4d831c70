"""MATH-500, AIME, AMC and GPQA from the hub's columns and from local files; what is broken is named."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from evals.experiment import check_golds
from evals.task import Item, Task, gold_text
from evals.tasks.aime24 import aime24
from evals.tasks.aime25 import aime25
from evals.tasks.amc23 import amc23
from evals.tasks.gpqa import LETTERS, gpqa
from evals.tasks.math500 import math500
from tests.evals.local_data import write_hub_copy, write_lines
from tests.loops import verdicts
from ttc.config.registry import VERIFIERS
from ttc.errors import ConfigError, RecordError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def statuses(task: Task, items: list[Item], text: Callable[[Item], str]) -> list[str]:
    """The statuses of `text` of each item under the task's own verifier, after its golds were checked."""
    verifier = VERIFIERS.load(task.check.verifier)(**task.check.params)
    check_golds(items, verifier, task)
    return [verdict.status for verdict in verdicts(verifier, [(item.target, text(item)) for item in items])]


MATH = [
    {
        "problem": "What is $\\frac{1}{4}+\\frac{1}{4}$?",
        "solution": "It is $\\boxed{\\frac{1}{2}}$.",
        "answer": "\\frac{1}{2}",
        "subject": "Prealgebra",
        "level": 1,
        "unique_id": "test/prealgebra/17.json",
    },
    {
        "problem": "Where is $x^2<4$?",
        "solution": "",
        "answer": "(-2,2)",
        "subject": "Intermediate Algebra",
        "level": 5,
        "unique_id": "test/intermediate_algebra/3.json",
    },
]


def test_math500_takes_ids_levels_and_subjects_from_the_hub(tmp_path: Path) -> None:
    write_hub_copy(tmp_path / "HuggingFaceH4" / "MATH-500", MATH)
    task = math500(data=str(tmp_path))
    first, second = task.items(None, 0)
    assert (first.problem.id, first.target, first.difficulty) == ("math500-prealgebra-17", "\\frac{1}{2}", "1")
    assert (second.problem.id, second.difficulty) == ("math500-intermediate_algebra-3", "5")
    assert second.problem.meta == {"subject": "Intermediate Algebra", "level": "5"}
    assert first.problem.messages[0].content.endswith("put your final answer within \\boxed{}.")
    assert statuses(task, [first, second], lambda item: f"\\boxed{{{item.target}}}") == ["correct"] * 2
    assert statuses(task, [first], lambda item: "\\boxed{0.5}") == ["correct"]


def test_math500_reads_the_local_format_without_levels(tmp_path: Path) -> None:
    write_lines(tmp_path / "math500.jsonl", [{"id": "a", "problem": "1+1?", "answer": 2}])
    (item,) = math500(data=str(tmp_path)).items(None, 0)
    assert (item.problem.id, item.target, item.difficulty, item.problem.meta) == ("a", "2", None, {})


HUB_CONTESTS: list[tuple[Callable[..., Task], str, str, list[dict[str, Any]], list[tuple[str, str]]]] = [
    (
        aime24,
        "HuggingFaceH4/aime_2024",
        "train",
        [
            {"id": 60, "problem": "Find it.", "solution": "...", "answer": "204", "url": "u", "year": "2024"},
            {"id": 67, "problem": "And this.", "solution": "...", "answer": "025", "url": "u", "year": "2024"},
        ],
        [("aime24-60", "204"), ("aime24-67", "25")],
    ),
    (
        aime25,
        "math-ai/aime25",
        "test",
        [
            {"problem": "Find it.", "answer": "70", "id": "0"},
            {"problem": "The angle?", "answer": "336^\\circ", "id": "19"},
        ],
        [("aime25-0", "70"), ("aime25-19", "336")],
    ),
    (
        amc23,
        "math-ai/amc23",
        "test",
        [
            {"id": 0, "question": "How far?", "answer": 27.0, "url": "u"},
            {"id": 3, "question": "How many?", "answer": 3159.0, "url": "u"},
            {"id": 15, "question": "And below?", "answer": -1.0, "url": "u"},
        ],
        [("amc23-0", "27"), ("amc23-3", "3159"), ("amc23-15", "-1")],
    ),
]


@pytest.mark.parametrize(("factory", "repository", "split", "rows", "expected"), HUB_CONTESTS)
def test_contests_read_the_columns_of_the_hub(
    tmp_path: Path,
    factory: Callable[..., Task],
    repository: str,
    split: str,
    rows: list[dict[str, Any]],
    expected: list[tuple[str, str]],
) -> None:
    write_hub_copy(tmp_path / repository, rows, split=split)
    task = factory(data=str(tmp_path))
    items = task.items(None, 0)
    assert [(item.problem.id, item.target) for item in items] == expected
    assert task.kind == "number"
    assert statuses(task, items, lambda item: f"So we find {item.target}.") == ["correct"] * len(items)
    assert statuses(task, items, lambda item: "\\boxed{998}") == ["incorrect"] * len(items)


@pytest.mark.parametrize("factory", [aime24, aime25, amc23])
def test_contests_read_the_local_format(tmp_path: Path, factory: Callable[..., Task]) -> None:
    write_lines(tmp_path / f"{factory.__name__}.jsonl.gz", [{"id": "p7", "problem": "How many?", "answer": "073"}])
    (item,) = factory(data=str(tmp_path)).items(None, 0)
    assert item.problem.id == "p7"
    assert int(item.target) == 73


@pytest.mark.parametrize("answer", ["1000", "-3", "12.5", "twelve", 7.5])
def test_an_aime_answer_that_is_no_whole_number_below_1000_is_named(tmp_path: Path, answer: object) -> None:
    write_lines(tmp_path / "aime24.jsonl", [{"id": "a", "problem": "?", "answer": answer}])
    with pytest.raises(RecordError, match=r"aime24.jsonl, line 1: answer: expected a whole number from 0 to 999"):
        aime24(data=str(tmp_path)).items(None, 0)


def test_an_amc_answer_that_is_no_number_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "amc23.jsonl", [{"id": "a", "problem": "?", "answer": "(C)"}])
    with pytest.raises(RecordError, match=r"amc23.jsonl, line 1: answer: expected a number, got '\(C\)'"):
        amc23(data=str(tmp_path)).items(None, 0)


COLUMNS = ("Record ID", "Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))


def science_rows(count: int) -> list[dict[str, str]]:
    """Invented questions with the columns of the published file."""
    return [
        dict(zip(COLUMNS, (f"rec{i}", f"Which? {i}\n", "right", "wrong 1", "wrong 2", "wrong 3"), strict=True))
        | {"Subdomain": "Genetics", "High-level domain": "Biology"}
        for i in range(count)
    ]


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def options(item: Item) -> dict[str, str]:
    """Letter to option, as the question shows them."""
    lines = item.problem.messages[0].content.splitlines()
    return {line[1]: line[4:] for line in lines if line[:1] == "(" and line[1:2] in LETTERS}


def test_gpqa_shuffles_options_the_same_way_every_time_and_points_at_the_right_one(tmp_path: Path) -> None:
    write_csv(tmp_path / "gpqa_diamond.csv", science_rows(60))
    task = gpqa(data=str(tmp_path))
    items = task.items(None, 0)
    assert items == gpqa(data=str(tmp_path)).items(None, 99)
    for item in items:
        assert options(item)[gold_text(item.target)] == "right"
        assert sorted(options(item).values()) == ["right", "wrong 1", "wrong 2", "wrong 3"]
    counts = [sum(gold_text(item.target) == letter for item in items) for letter in LETTERS]
    assert sum(counts) == 60
    assert min(counts) >= 6  # fewer has a chance below 0.1 % where every letter is equally likely
    assert (items[0].problem.id, items[0].difficulty) == ("gpqa-rec0", "Biology")
    assert items[0].problem.meta == {"domain": "Biology", "subdomain": "Genetics"}
    assert statuses(task, items[:2], lambda item: f"The answer is ({gold_text(item.target)}).") == ["correct"] * 2
    wrong = {"A": "B", "B": "C", "C": "D", "D": "A"}
    assert statuses(task, items[:2], lambda item: f"\\boxed{{{wrong[gold_text(item.target)]}}}") == ["incorrect"] * 2
    assert statuses(task, items[:2], lambda _: r"\boxed{\text{Right}}") == ["correct"] * 2
    assert statuses(task, items[:2], lambda _: r"\boxed{wrong 1}") == ["incorrect"] * 2


def test_gpqa_reads_the_local_format_and_other_subsets(tmp_path: Path) -> None:
    row = {"id": "g1", "problem": "Which?", "answer": "right", "incorrect": ["w1", "w2", "w3"]}
    write_lines(tmp_path / "gpqa_main.jsonl", [row])
    task = gpqa(data=str(tmp_path), subset="main")
    (item,) = task.items(None, 0)
    assert options(item)[gold_text(item.target)] == "right"
    assert task.params == {"subset": "main"}


def test_gpqa_reads_a_copy_of_the_hub_repository_but_never_asks_the_hub(tmp_path: Path) -> None:
    write_hub_copy(tmp_path / "Idavidrein" / "gpqa", science_rows(2), split="train", config="gpqa_diamond")
    assert len(gpqa(data=str(tmp_path)).items(None, 0)) == 2
    with pytest.raises(ConfigError, match="read from a copy only: give the file, --data FILE, or a folder"):
        gpqa().items(None, 0)


@pytest.mark.parametrize("incorrect", [None, "w1", ["w1", ""], ["w1", "w2"]])
def test_a_question_without_its_three_wrong_options_is_named(tmp_path: Path, incorrect: object) -> None:
    row = {"id": "g1", "problem": "Which?", "answer": "right", "incorrect": incorrect}
    write_lines(tmp_path / "gpqa_diamond.jsonl", [row])
    with pytest.raises(RecordError, match=r"gpqa_diamond.jsonl, line 1: incorrect: expected"):
        gpqa(data=str(tmp_path)).items(None, 0)


def test_a_csv_row_without_a_column_is_named(tmp_path: Path) -> None:
    write_csv(tmp_path / "gpqa_diamond.csv", [{"Record ID": "r", "Question": "Which?", "Correct Answer": "x"}])
    with pytest.raises(RecordError, match=r"gpqa_diamond.csv, row 1: Incorrect Answer 1: expected a non-empty string"):
        gpqa(data=str(tmp_path)).items(None, 0)
