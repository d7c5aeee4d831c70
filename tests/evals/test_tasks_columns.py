"""Rows as published datasets have them: which column is what, options of every form, and files of every ending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.task import load_task
from evals.tasks._columns import Columns
from tests.evals.local_data import write_hub_copy, write_lines
from ttc.cli.cli import main
from ttc.config.signatures import call
from ttc.errors import ConfigError, RecordError

pytestmark = pytest.mark.usefixtures("without_matplotlib")

WORDS = ["red", "green", "blue", "black"]
ARC = {"id": "Mercury_1", "question": "Which?", "choices": {"text": WORDS, "label": list("ABCD")}, "answerKey": "B"}
MMLU = {"question": "Which?", "subject": "law", "choices": WORDS}
HELLASWAG = {"ind": 4, "ctx": "A man sits.", "ctx_a": "A man", "endings": WORDS, "label": "2", "split": "val"}
TRIVIA = {"question": "Who?", "answer": {"aliases": ["Goethe", "J. W. Goethe"], "value": "Goethe"}}
SQUAD = {"context": "Paris is.", "question": "Where?", "answers": {"text": ["Paris"], "answer_start": [0]}}
GPQA = {"Question": "Which?", "Correct Answer": "red", "Incorrect Answer 1": "green", "Incorrect Answer 2": "blue"}
TURN = [{"role": "user", "content": "What is 3*3?"}]
ROWS: list[tuple[dict[str, Any], dict[str, Any], str, Any]] = [
    (ARC, {}, "Which?", {"answer": "B", "alternatives": ["green"]}),
    ({**ARC, "choices": {"text": WORDS, "label": list("1234")}, "answerKey": "3"}, {}, "Which?", "blue"),
    ({"question_stem": "Which?", **{k: ARC[k] for k in ("choices", "answerKey")}}, {}, "Which?", "green"),
    ({**MMLU, "answer": 0}, {}, "Which?", "red"),
    ({**MMLU, "answer": 4}, {}, "Which?", "black"),
    ({**MMLU, "answer": 2}, {"first": "0"}, "Which?", "blue"),
    ({**MMLU, "answer": 2}, {"first": "1"}, "Which?", "green"),
    ({"question": "Which?", "options": dict(zip("ABCD", WORDS, strict=True)), "answer": "blue"}, {}, "Which?", "blue"),
    ({"question": "Which?", "options": {"A": "red", "B": "blue", "C": None}, "answer": "B"}, {}, "Which?", "blue"),
    ({"question": "Which?", "options": ["A)21", "B)7"], "correct": "B"}, {"answer": "correct"}, "Which?", "7"),
    (HELLASWAG, {"question": "ctx", "answer": "label", "choices": "endings", "first": "0"}, "A man sits.", "blue"),
    ({"goal": "Open", "sol1": "red", "sol2": "blue", "label": 0}, {"question": "goal", "answer": "label",
     "choices": "sol1,sol2"}, "Open", "red"),
    ({"question": "Which?", "mc1_targets": {"choices": WORDS, "labels": [1, 0, 0, 0]}}, {"choices": "mc1_targets"},
     "Which?", "red"),
    (GPQA, {"question": "Question", "answer": "Correct Answer", "wrong": "Incorrect Answer 1,Incorrect Answer 2"},
     "Which?", "red"),
    (TRIVIA, {"answers": "answer.aliases"}, "Who?", {"answer": "Goethe", "alternatives": ["J. W. Goethe"]}),
    (SQUAD, {"question": "context,question", "answers": "answers.text"}, "Paris is.\n\nWhere?", "Paris"),
    ({"question": "Who?", "answer": ["Goethe"]}, {}, "Who?", "Goethe"),
    ({"problem": "1+1?", "solution": r"So $1+1=\boxed{2}$."}, {"answer": "solution"}, "1+1?", "2"),
    ({"problem": "1+1?", "messages": TURN, "answer": "2"}, {"question": "problem"}, "1+1?", "2"),
    ({"question": "1+1?", "answer": None, "answer_number": 2}, {"answer": "answer_number"}, "1+1?", "2"),
    ({"prompt": TURN, "reward_model": {"ground_truth": "9"}}, {"answer": "reward_model.ground_truth"},
     "What is 3*3?", "9"),
    ({"conversations": [{"from": "human", "value": "What is 3*3?"}], "answer": "9"}, {"question": "conversations"},
     "What is 3*3?", "9"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "columns", "asked", "target"), ROWS)
def test_rows_of_published_datasets_are_read_by_the_columns_that_are_named(
    tmp_path: Path, row: dict[str, Any], columns: dict[str, str], asked: str, target: Any
) -> None:
    write_lines(tmp_path / "rows.jsonl", [row])
    settings = [word for name, column in columns.items() for word in ("--set", f"task.{name}={column}")]
    out = tmp_path / "run"
    fixed = ["--engine", "simulated", "--strategy", "direct", "--baseline", "none", "--seed", "0", "--out", str(out)]
    assert main(["eval", "--task", str(tmp_path / "rows.jsonl"), *settings, *fixed]) == 0
    record = json.loads((out / "records.jsonl").read_text())
    gold = record["target"]
    if isinstance(gold, dict) and not isinstance(target, dict):
        gold = gold.get("alternatives", [gold["answer"]])[0]
    question = record["problem"]["messages"][-1]["content"]
    assert (gold, question[: len(asked)]) == (target, asked)
    if isinstance(target, str) and target in WORDS:
        letter = record["target"]["answer"]
        assert f"\n({letter}) {target}\n" in question


ADVICE = [
    (HELLASWAG, "problem: there is none; name its column"),
    ({"Question": "Which?", "Answer": "4"}, "problem: there is none; name its column"),
    ({"question": "1+1?", "answer": None, "answer_number": 2}, "answer: expected a non-empty string or a number"),
    (TRIVIA, "answer: expected a non-empty string or a number"),
    ({"question": "Who?", "answer": ["Goethe", "J. W. Goethe"]}, "answer: expected a non-empty string or a number"),
    (SQUAD, "context: the question may be about this text"),
    ({"problem": "1+1?", "messages": TURN, "answer": "2"}, "problem: problem and messages are both there"),
    ({**MMLU, "answer": 2}, "answer: the 1 answer may count the options from 0 or from 1"),
    ({"question": "Which?", "mc1_targets": {"choices": WORDS, "labels": [1, 0, 0, 0]}}, "answer: there is none"),
    ({"query": "Which?", "choices": WORDS, "gold": [1]}, "problem: there is none"),
    ({"input": "1+1 is", "target": "2"}, "problem: there is none"),
    ({"context": "Rain.", "query": "Wet?", "options": WORDS, "correct_option": 1}, "problem: there is none"),
]


@pytest.mark.parametrize(("row", "message"), ADVICE)
def test_what_the_error_advises_reads_the_rows(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    write_lines(tmp_path / "rows.jsonl", [row])
    settings: dict[str, str] = {}
    for _ in range(3):
        try:
            task = call(load_task(str(tmp_path / "rows.jsonl")), settings, supply={})
        except RecordError as exc:
            assert settings or f"rows.jsonl, line 1: {message}" in str(exc)
            advice = [part.split()[0].strip("'\"") for part in str(exc).split("--set task.")[1:]]
            for pair in advice[::-1]:  # of two ways the first
                name, _, column = pair.rstrip(",;").partition("=")
                settings[name] = column
    (item,) = task.items(None, 0)
    assert str(row.get("context", "")) in item.problem.messages[-1].content


def test_numbers_count_options_from_where_the_file_shows_and_are_asked_for_where_it_does_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def letters(*answers: object, **settings: Any) -> list[str]:
        write_lines(path, [{**MMLU, "question": f"Which {i}?", "answer": a} for i, a in enumerate(answers)])
        task = load_task(str(path))(options=Columns(**settings))
        return [item.target["answer"] for item in task.items(None, 0)]

    assert letters(1, 0, 3) == ["B", "A", "D"]
    assert letters(1, 2, 4) == ["A", "B", "D"]
    assert letters("1", "0", "3") == ["B", "A", "D"]
    assert letters("green", "B", "(D)") == ["B", "B", "D"]
    with pytest.raises(RecordError, match="the 2 answers may count the options from 0 or from 1"):
        letters(1, 2)
    with pytest.raises(RecordError, match=r"line 2: answer: expected a number from 0 to 3 .task.first is 0., got 4"):
        letters(1, 4, first=0)
    with pytest.raises(RecordError, match=r"got '0'; counted from 0 it would be A: --set task.first=0"):
        letters(0, 1, 5)
    with pytest.raises(ConfigError, match="first is what the answers count the options from, 0 or 1, got 2"):
        letters(1, 2, first=2)


def test_numbers_that_are_texts_of_other_options_are_numbers_where_the_rest_of_the_file_are(tmp_path: Path) -> None:
    rows = [
        {"question": "Order?", "choices": ["8", "2", "24", "120"], "answer": 2},
        {"question": "Which?", "choices": WORDS, "answer": 0},
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    first, second = load_task(str(tmp_path / "rows.jsonl"))().items(None, 0)
    assert (first.target, second.target["answer"]) == ({"answer": "C", "alternatives": ["24"]}, "A")


def test_wrong_options_are_shuffled_by_the_question_the_same_in_every_run(tmp_path: Path) -> None:
    rows = [{**GPQA, "Question": f"Which {i}?"} for i in range(60)]
    named = {"question": "Question", "answer": "Correct Answer", "wrong": "Incorrect Answer 1,Incorrect Answer 2"}
    letters = []
    for order in (rows, rows[::-1]):
        write_lines(tmp_path / "rows.jsonl", order)
        items = load_task(str(tmp_path / "rows.jsonl"))(options=Columns(**named)).items(None, 0)
        letters.append({item.problem.messages[0].content[:9]: item.target["answer"] for item in items})
    assert letters[0] == letters[1]
    assert min(list(letters[0].values()).count(letter) for letter in "ABC") > 8


def test_a_named_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": None}])
    with pytest.raises(RecordError, match=r"line 1: no column nix, or nothing in it .there are: question, answer"):
        load_task(str(tmp_path / "rows.jsonl"))(options=Columns(question="nix"))
    with pytest.raises(RecordError, match="line 2: no column answer, or nothing in it"):
        load_task(str(tmp_path / "rows.jsonl"))(options=Columns(answer="answer"))
    with pytest.raises(ConfigError, match="give either answer, a column of one right answer, or answers"):
        load_task(str(tmp_path / "rows.jsonl"))(options=Columns(answer="answer", answers="answer"))


@pytest.mark.parametrize("name", ["q.json", "q.json.gz", "q.tsv", "q.csv.gz", "Q.CSV", "q.parquet", "saved"])
def test_files_of_other_endings_hold_the_same_problems(tmp_path: Path, name: str) -> None:
    rows = [{"question": "What is 1+1?", "answer": "2"}, {"question": "What is\n2+2?", "answer": "4"}]
    path = tmp_path / name
    write_as(path, rows)
    items = load_task(str(path))().items(None, 0)
    assert [(item.target, item.problem.messages[0].content.partition("?")[0]) for item in items] == [
        ("2", "What is 1+1"),
        ("4", "What is\n2+2"),
    ]


def write_as(path: Path, rows: list[dict[str, str]]) -> None:
    """The rows in the form that the file's name says."""
    import datasets
    import pandas

    frame, name = pandas.DataFrame(rows), path.name.lower()
    if name == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    elif name.endswith("parquet"):
        frame.to_parquet(path)
    elif ".json" in name:
        frame.to_json(path, orient="records", indent=1)
    else:
        frame.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"question": "?"}, 3]', "q.json: expected an array of objects"),
        ('{"a": [{}], "b": [{}]}', "q.json: expected an array of objects"),
        ('[{"question": "?"', "q.json: not JSON"),
        ('[{"question": "1+1?", "answer": "\\ud800"}]', "q.json, row 1: answer: holds half of a character"),
    ],
)
def test_a_broken_array_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        load_task(str(tmp_path / "q.json"))()


def test_json_lines_under_the_name_of_an_array_are_read(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer": "4"}\n')
    assert len(load_task(str(tmp_path / "q.json"))().items(None, 0)) == 2


def test_a_saved_folder_of_several_splits_is_told_with_the_folders_of_each(tmp_path: Path) -> None:
    import datasets

    split = datasets.Dataset.from_list([ARC])
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "arc"))
    with pytest.raises(ConfigError, match=r"several splits; name the folder of one: .*/arc/train, .*/arc/test"):
        load_task(str(tmp_path / "arc"))()
    assert len(load_task(str(tmp_path / "arc" / "test"))().items(None, 0)) == 1


def test_a_choice_may_have_any_letter_and_a_column_of_a_late_one_is_no_option(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [{"question": "Which?\n(A) x ... (R) y", "answer": "(R)"}])
    assert load_task(str(tmp_path / "rows.jsonl"))().kind == "choice"
    write_lines(tmp_path / "rows.jsonl", [{"question": "Which?", "choices": list("abcdefghijklmnop"), "answer": "P"}])
    assert load_task(str(tmp_path / "rows.jsonl"))().items(None, 0)[0].target == "P"
    (tmp_path / "rows.csv").write_text("question,A,B,N,answer\nWhich?,red,blue,7,B\n")
    (item,) = load_task(str(tmp_path / "rows.csv"))().items(None, 0)
    assert item.problem.messages[0].content.startswith("Which?\n\n(A) red\n(B) blue\n\n")


def test_a_list_in_a_cell_is_refused_with_the_files_that_hold_lists(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,choices,answer\nWhich?,\"['red' 'green']\",0\n")
    with pytest.raises(RecordError, match=r"row 1: choices: expected a list .*; lists need JSON lines or parquet"):
        load_task(str(tmp_path / "rows.csv"))()


def test_a_data_set_of_the_hub_is_read_like_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_hub_copy(tmp_path / "allenai" / "ai2_arc", [{**ARC, "id": "m1"}, {**ARC, "id": "m2"}], config="ARC-Easy")
    task = load_task("hub:allenai/ai2_arc")(data=str(tmp_path), config="ARC-Easy")
    items = task.items(None, 0)
    assert [(item.problem.id, item.target) for item in items] == [
        (name, {"answer": "B", "alternatives": ["green"]}) for name in ("m1", "m2")
    ]
    assert task.params == {"dataset": "allenai/ai2_arc", "config": "ARC-Easy", "split": "test"}
    write_hub_copy(tmp_path / "Rowan" / "hellaswag", [HELLASWAG], split="validation")
    settings = [
        "task.split=validation",
        "task.question=ctx",
        "task.answer=label",
        "task.choices=endings",
        "task.first=0",
    ]
    words = ["eval", "--task", "hub:Rowan/hellaswag", "--data", str(tmp_path), "--engine", "simulated"]
    words += [word for setting in settings for word in ("--set", setting)]
    assert main([*words, "--strategy", "direct", "--baseline", "none", "--out", str(tmp_path / "run")]) == 0
    assert "Rowan/hellaswag, 1 problem" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"there is no task 'cais/mmlu'; a data set of the hub is hub:cais/mmlu"):
        load_task("cais/mmlu")


PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    (
        "humaneval",
        {"task_id": "HumanEval/0", "prompt": "def f():\n    1\n", "entry_point": "f", "test": "def check(f): 1"},
    ),
    ("mbpp", {"task_id": 11, "prompt": "Add.", "code": "def f(): pass", "test_imports": [], "test_list": ["f()"]}),
    ("mbpp --set task.subset=full", {"task_id": 11, "text": "Add.", "code": "def f(): pass", "test_list": ["f()"]}),
    ("ifeval", {"key": 1, "prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}),
    ("svamp", {"ID": "c-1", "Body": "b", "Question": "q?", "Equation": "( 1 + 1 )", "Answer": "2.0"}),
    ("countdown --set task.split=train", {"nums": [1, 2], "target": 3}),
    ("olympiadbench", {"id": 1, "question": "x?", "final_answer": ["2"], "is_multiple_answer": False}),
    ("gpqa", {**GPQA, "Record ID": "r1", "Incorrect Answer 3": "black"}),
    ("math500", {"problem": "1+1?", "answer": "2", "unique_id": "test/algebra/1.json", "level": 1}),
    ("gsm8k", {"question": "1+1?", "answer": "It is.\n#### 2"}),
]


@pytest.mark.parametrize(("task", "row"), PUBLISHED)
def test_a_task_by_name_reads_published_rows_from_a_file_of_any_name(
    tmp_path: Path, task: str, row: dict[str, Any]
) -> None:
    write_lines(tmp_path / "test-00000.jsonl", [row])
    fixed = ["--engine", "simulated", "--strategy", "direct", "--baseline", "none", "--out", str(tmp_path / "run")]
    assert main(["eval", "--task", *task.split(), "--data", str(tmp_path / "test-00000.jsonl"), *fixed]) in (0, 3)
    assert (tmp_path / "run" / "records.jsonl").read_text().count("\n") == 1
