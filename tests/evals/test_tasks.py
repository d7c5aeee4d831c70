"""Tasks load the same problems every time, from either format, and name what is broken."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import pytest

from evals.data.worked_steps import evaluate, parse
from evals.experiment import check_golds
from evals.task import INSTRUCTIONS, TASKS, Item, Split, Task, VerifierSpec, load_task, problems_digest
from evals.tasks.arithmetic import LEVELS, ArithmeticProblem, Wording, arithmetic
from evals.tasks.gsm8k import gsm8k
from evals.tasks.simulated import simulated
from evals.tasks.svamp import svamp
from tests.evals.local_data import write_hub_copy, write_lines
from tests.loops import verdicts
from ttc.config.registry import VERIFIERS
from ttc.core import Message, Problem, Sampling
from ttc.engines.simulated import truth
from ttc.errors import ConfigError, RecordError, UnknownName

DATA = os.environ.get("TTC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="TTC_DATA names no data folder")


def test_the_tasks_are_found_by_their_file_names() -> None:
    assert {"arithmetic", "gsm8k", "svamp"} <= set(TASKS.names())
    with pytest.raises(UnknownName, match="did you mean 'arithmetic'"):
        load_task("arithmetics")
    with pytest.raises(ConfigError, match=r"task file 'missing\.jsonl' does not exist"):
        load_task("missing.jsonl")
    with pytest.raises(ConfigError, match=r"task file 'rows/missing.parquet' does not exist$"):
        load_task("rows/missing.parquet")
    with pytest.raises(ConfigError, match=r"task file 'missing.xlsx' does not exist; a task is read from .jsonl, "):
        load_task("missing.xlsx")


def test_a_folder_of_data_that_is_missing_is_told_with_the_variable_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TTC_DATA", "nowhere")
    with pytest.raises(ConfigError, match=r"data 'nowhere' \(by the environment's TTC_DATA\) does not exist"):
        gsm8k(data="nowhere").load(1, 0)
    with pytest.raises(ConfigError, match=r"data 'elsewhere' does not exist"):
        gsm8k(data="elsewhere").load(1, 0)


@pytest.mark.parametrize("level", [1, 4, 6])
def test_arithmetic_problems_are_held_out_exact_and_the_same_for_every_limit(level: int) -> None:
    items = arithmetic(level=level).items(50, 7)
    assert items[:20] == arithmetic(level=level).items(20, 7)
    assert len({item.problem.id for item in items}) == len({item.cluster for item in items}) == 50
    for item in items:
        drawn = ArithmeticProblem(item.cluster, evaluate(parse(item.cluster)))
        assert drawn.split == "eval"
        assert item.target == str(drawn.value)
        assert item.cluster in item.problem.messages[-1].content
    assert items[0].problem.id == f"arithmetic-l{level}-s7-0"
    assert not {item.problem.id for item in arithmetic(level=level).items(50, 8)} & {item.problem.id for item in items}


def test_arithmetic_refuses_levels_and_limits_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"level must be one of \[1, 2, 3, 4, 5, 6, 7\], got 9"):
        arithmetic(level=9)
    for limit in (0, 10**20):
        with pytest.raises(ConfigError, match="limit must be >= 1 and <= 10000000, or absent"):
            arithmetic(level=4).items(limit, 0)


@pytest.mark.parametrize(("split", "number", "most"), [("eval", 2727, 2591), ("train", 18_379, 17_461)])
def test_too_few_problems_are_told_without_drawing_them_and_the_limit_that_is_said_has_enough(
    split: Split, number: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = arithmetic(level=1, split=split)
    if split == "eval":  # the other takes seconds
        assert len(task.items(most, 0)) == most
    monkeypatch.setattr("evals.tasks.arithmetic.sample_expression", None)
    with pytest.raises(ConfigError) as error:
        task.items(100_000, 0)
    assert f"fewer than 100000 distinct problems, {number:,} in split {split}; lower the limit to {most}" in str(error)


PLAYED: tuple[tuple[Split, Wording, int], ...] = (("eval", "bare", 3), ("train", "spaced", 4))


def test_the_problems_of_a_seed_stay_those_that_they_were() -> None:
    digests = [
        problems_digest(arithmetic(level=level, split=split, wording=wording).items(60, seed))[:12]
        for level in LEVELS
        for split, wording, seed in PLAYED
    ]
    assert digests == [
        "5f5147632b24", "c9c2562595ab", "4b8800209fe4", "e1b53a60294b", "0dec0d61dd9b", "0f6ed6e85805", "81973ff163a9",
        "50606492ca37", "6d06a69aa32c", "cdba2f1d3134", "532c54093eb7", "a2afe8ff53d0", "2a9ded96f387", "ad2f98b21f92",
    ]  # fmt: skip


def test_simulated_targets_are_those_of_the_engine() -> None:
    for item in simulated().items(5, 2):
        assert item.target == truth(item.problem.messages[-1].content)


LOCAL_GSM8K = [{"id": f"gsm8k-test-{i}", "problem": f"{i} + 1,000?", "answer": f"1,00{i}"} for i in range(6)]


@pytest.mark.parametrize("name", ["gsm8k_test.jsonl", "gsm8k_test.jsonl.gz"])
def test_gsm8k_reads_the_local_format(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / name, LOCAL_GSM8K)
    items = gsm8k(data=str(tmp_path)).items(None, 0)
    assert [item.target for item in items] == [f"100{i}" for i in range(6)]
    assert items[0].problem.id == "gsm8k-test-0"
    assert "\\boxed{}" in items[0].problem.messages[0].content


def test_a_limit_takes_the_same_unbiased_sample_for_every_seed_and_longer_ones_extend_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "gsm8k_test.jsonl", LOCAL_GSM8K)
    task = gsm8k(data=str(tmp_path))
    three = task.items(3, 0)
    assert three == task.items(3, 99) == task.items(5, 0)[:3]
    assert [item.problem.id for item in three] != [row["id"] for row in LOCAL_GSM8K[:3]]


def test_gsm8k_reads_a_copy_of_the_hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"question": "What is 1+1?", "answer": "Add them: <<1+1=2>>2.\n#### 2"},
        {"question": "What is 999+1?", "answer": "It is 1000.\n#### 1,000"},
    ]
    write_hub_copy(tmp_path / "data" / "openai" / "gsm8k", rows, config="main")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    items = gsm8k(data=str(tmp_path / "data")).items(None, 0)
    assert [item.target for item in items] == ["2", "1000"]
    assert [item.problem.id for item in items] == ["gsm8k-test-0", "gsm8k-test-1"]
    assert items[0].problem.messages[0].content.startswith("What is 1+1?")


def test_svamp_reads_a_copy_of_the_hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"ID": "chal-7", "Body": "Ann has 3 pens", "Question": "How many pens?", "Answer": "3.0", "Type": "Addition"}
    write_hub_copy(tmp_path / "data" / "ChilleD" / "SVAMP", [row])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (item,) = svamp(data=str(tmp_path / "data")).items(None, 0)
    assert (item.problem.id, item.target) == ("svamp-chal-7", "3")
    assert item.problem.messages[0].content.startswith("Ann has 3 pens. How many pens?")


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither gsm8k_test.jsonl\(.gz\), .* nor a copy of the hub repository"):
        gsm8k(data=str(tmp_path)).items(3, 0)


def test_a_dataset_row_without_its_answer_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "svamp.jsonl", [{"id": "a", "problem": "?", "answer": "1"}, {"id": "b", "problem": "?"}])
    with pytest.raises(RecordError, match=r"svamp.jsonl, line 2: answer: expected a non-empty string"):
        svamp(data=str(tmp_path)).items(None, 0)


def test_a_file_is_a_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    write_lines(
        path,
        [
            {"problem": "What is 1/2 of 8?", "answer": 4},
            {"id": "sum", "messages": messages, "target": {"answer": "4", "alternatives": ["four"]}, "cluster": "c"},
        ],
    )
    task = load_task(str(path))()
    first, second = task.items(None, 0)
    assert (first.problem.id, first.target, task.kind) == ("mine-1", "4", "math")
    assert "\\boxed{}" in first.problem.messages[0].content
    assert [message.role for message in second.problem.messages] == ["system", "user"]
    assert second.problem.messages[1].content == "2+2?"
    assert (second.target["answer"], second.cluster) == ("4", "c")
    assert load_task(str(path))(kind="number").kind == "number"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"problem": "?", "answer": "1"', "not JSON"),
        ('{"problem": " \\n", "answer": "1"}', "problem: expected a non-empty string, got"),
        ('{"problem": "?", "answer": "1", "answer": "2"}', "'answer' occurs twice in an object; keep one"),
        ('{"problem": "?", "answer": ' + "[" * 200_000, "not JSON"),
        ("[1, 2]", "expected a JSON object, got list"),
        ('{"problem": "?"}', "answer: there is none; name its column: --set task.answer=COLUMN"),
        ('{"answer": "1"}', "problem: there is none; name its column: --set task.question=COLUMN"),
        ('{"problem": "?", "answer": ""}', "answer: expected a non-empty string or a number"),
        (
            '{"problem": "?", "answer": ["2", "two"]}',
            "answer: .*; where any of them is right, --set task.answers=answer",
        ),
        ('{"problem": "", "answer": "1"}', "problem: expected a non-empty string"),
        ('{"problem": "?", "anwser": "1"}', "answer: there is none; name its column: --set task.answer=anwser"),
        ('{"task_id": "a", "prompt": "?", "test": "t"}', r"answer: there is none.*there are: task_id, prompt, test\)"),
        ('{"problem": "?", "answer": "1", "kind": "maths"}', "kind: 'maths' is not one of math"),
        ('{"problem": "?", "answer": "A", "kind": "choice"}', "kind: 'choice', but the lines before are 'math'"),
        ('{"messages": [{"role": "bot", "content": "x"}], "answer": "1"}', r"messages\[0\]: role must be"),
        ('{"problem": "?", "answer": "1", "meta": 3}', "meta: expected an object"),
    ],
)
def test_a_broken_line_is_named_by_file_line_and_field(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "?", "answer": "1"}\n\n' + row + "\n")
    with pytest.raises(RecordError, match=f"mine.jsonl, line 3: {message}"):
        load_task(str(path))()


def test_a_row_costs_no_search_for_slips_in_columns_that_rows_before_had_nor_a_parser_for_a_whole_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, parses = [], []
    monkeypatch.setattr(difflib, "get_close_matches", lambda *args, **options: searches.append(args) or [])
    monkeypatch.setattr("ttc.verifiers.maths.asked.parse", lambda text: parses.append(text))
    rows = [{"problem": f"What is {i}+{i}?", "answer": str(2 * i + 1), "source": "s"} for i in range(100)]
    write_lines(tmp_path / "rows.jsonl", rows)
    assert len(load_task(str(tmp_path / "rows.jsonl"))().items(None, 0)) == 100
    assert (len(searches) < 5, parses) == (True, [])


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-12], lambda whole: b"not gzip", lambda whole: whole[:99] + bytes(99) + whole[198:]]
)
def test_a_gzip_file_that_is_cut_or_broken_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "rows.jsonl.gz"
    write_lines(file, [{"problem": f"What is {i}+{i}?", "answer": str(2 * i)} for i in range(300)])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=r"rows\.jsonl\.gz cannot be read"):
        load_task(str(file))()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\nWhat is 999+1?,1,000\n", "row 1: 3 fields under 2 names; quote a value that holds a comma"),
        ("question,answer,level\na?,1,2\nb?\n", "row 2: 1 of 3 fields, without answer, level$"),
        ('question,answer\n"a?,1\nb?,2\n', "row 1: 1 of 2 fields, without answer; is a quotation mark left open"),
        ("question,answer\na?,\n", "row 1: answer: the cell is empty"),
        ("question,answer\n,1\n", "row 1: question: the cell is empty"),
        ("question;answer\na, b?;1\n", "seem to be separated by ';'; save it with commas"),
        ("question\tanswer\na?\t1\n", "seem to be separated by tabs; save it with commas"),
        ("question,answer,answer\na?,1,2\n", "two columns are called 'answer'; rename one"),
        ("a?,1\nb?,2\n", "its first row names the columns, such as problem and answer, but holds: a\\?, 1"),
        ("Question,Answer\na?,1\n", "name its column: --set task.question=Question --set task.answer=Answer$"),
        ('question,answer\na?,"1\n' + "x" * 140000, "near line 3: field larger.*is a quotation mark left open"),
        ("question,answer\na?,1\nschön?,2\n", "line 3: byte 0xf6 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_a_broken_file_of_csv_is_named_with_its_fix(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises((ConfigError, RecordError), match=rf"mine\.csv[:,] .*{message}"):
        load_task(str(path))()


def test_a_csv_file_as_spreadsheets_write_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = b'question, answer,target,\r\n"What is 999+1?","1,000",,,\r\n\r\na?,,2,\r\n,,,\r\n'
    path.write_bytes(b"\xef\xbb\xbf\r\n" + rows)
    assert [item.target for item in load_task(str(path))().items(None, 0)] == ["1,000", "2"]


OPTIONS = [
    ("mine.jsonl", '{"question": "Largest?", "choices": ["1", "2", "3"], "answer": "C"}\n'),
    ("mine.jsonl", '{"question": "Largest?", "options": [1, 2, 3], "answer": 3}\n'),
    ("mine.csv", "question,A,B,C,D,answer\nLargest?,1,2,3,,(C)\n"),
    ("mine.csv", "question,A,B,C,answer\nLargest?,1,2,3,3\n"),
]


@pytest.mark.parametrize(("name", "text"), OPTIONS)
def test_options_in_columns_of_their_own_are_asked_with_their_letters(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    task = load_task(str(tmp_path / name))()
    (item,) = task.items(None, 0)
    assert (task.kind, item.target) == ("choice", {"answer": "C", "alternatives": ["3"]})
    asked = item.problem.messages[0].content
    assert asked == f"Largest?\n\n(A) 1\n(B) 2\n(C) 3\n\n{INSTRUCTIONS['choice']}"
    assert "choices" not in task.note and "options" not in task.note and "columns" not in task.note


@pytest.mark.parametrize(
    ("options", "gold", "right", "wrong"),
    [
        (["Rome", "Paris", "C major"], "B", ["B", "(B) Paris", "Paris", r"\text{paris}"], ["Rome", "Paris, Rome", "C"]),
        (["Rome", "Paris", "C major"], "C major", ["C", "C major"], ["B", "major", "Paris"]),
        (["O", "A", "B"], "(C)", ["C"], ["B", "A"]),
        (["Red", "red", "blue"], "A", ["A"], ["red", "Red"]),
    ],
)
def test_the_whole_text_of_one_option_answers_as_its_letter_does(
    tmp_path: Path, options: list[str], gold: str, right: list[str], wrong: list[str]
) -> None:
    write_lines(tmp_path / "mine.jsonl", [{"question": "Which?", "choices": options, "answer": gold}])
    task = load_task(str(tmp_path / "mine.jsonl"))()
    (item,) = task.items(None, 0)

    def statuses(texts: list[str]) -> list[str]:
        pairs = [(item.target, rf"\boxed{{{text}}}") for text in texts]
        return [verdict.status for verdict in verdicts(VERIFIERS.load(task.check.verifier)(), pairs)]

    assert statuses(right) == ["correct"] * len(right)
    assert "correct" not in statuses(wrong)


def test_options_that_the_question_holds_are_not_asked_twice(tmp_path: Path) -> None:
    row = {"question": "Which is 2?\nA) 1\nB. 2", "choices": ["1", "2"], "answer": "B"}
    write_lines(tmp_path / "mine.jsonl", [row])
    (item,) = load_task(str(tmp_path / "mine.jsonl"))().items(None, 0)
    assert item.problem.messages[0].content.count("2") == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["1", "2"], "answer": "C"}, "answer: expected a letter from A to B or one option, got 'C'"),
        ({"choices": ["x", "x"], "answer": "x"}, "answer: expected a letter from A to B or one option, got 'x'"),
        ({"choices": "1, 2", "answer": "A"}, "choices: expected a list of 2 to 26 texts, got '1, 2'"),
        ({"choices": [], "answer": "A"}, "choices: expected a list of 2 to 26 texts"),
        ({"A": "1", "C": "2", "answer": "A"}, "options in the columns A, C: fill them from A on, without a gap"),
    ],
)
def test_options_that_cannot_be_asked_are_refused_with_their_row(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    write_lines(tmp_path / "mine.jsonl", [{"question": "?", **row}])
    with pytest.raises(RecordError, match=f"mine.jsonl, line 1: {message}"):
        load_task(str(tmp_path / "mine.jsonl"))()


def test_options_among_rows_of_another_kind_are_refused_as_nobody_would_see_them(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": 2}, {"question": "Which?", "choices": ["a", "b"], "answer": "A"}]
    write_lines(tmp_path / "mine.jsonl", rows)
    with pytest.raises(
        RecordError, match="line 2: choices: options that would not be shown, as the rows are read as math"
    ):
        load_task(str(tmp_path / "mine.jsonl"))()
    write_lines(tmp_path / "mine.jsonl", [rows[0], {"question": "Solve.", "choices": ["1", "2"], "answer": "2"}])
    assert len(load_task(str(tmp_path / "mine.jsonl"))().items(None, 0)) == 2


def test_a_truth_value_is_met_by_yes_and_by_true(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "mine.jsonl", [{"question": "Is 2 even?", "answer": True}, {"question": "3?", "answer": False}]
    )
    task = load_task(str(tmp_path / "mine.jsonl"))()
    targets = [item.target for item in task.items(None, 0)]
    assert targets == [{"answer": "Yes", "alternatives": ["True"]}, {"answer": "No", "alternatives": ["False"]}]
    assert task.kind == "exact"


def test_a_chemical_formula_is_read_as_mathematics(tmp_path: Path) -> None:
    write_lines(tmp_path / "mine.jsonl", [{"question": "Which acid?", "answer": "H2SO4"}])
    assert load_task(str(tmp_path / "mine.jsonl"))().kind == "math"


def test_a_file_is_judged_as_its_answers_look_and_says_so_and_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,answer,A,B,notes\na?,B,,,x\nb?,A,,,\n")
    task = load_task(str(path))()
    assert task.kind == task.items(None, 0)[0].problem.kind == "choice"
    told = "judging by their form, the answers are of kind choice (another: --set task.kind=KIND)"
    assert task.note == f"{told}; never shown to the model: notes"
    assert load_task(str(path))(kind="exact").note == "never shown to the model: notes"
    path.write_text("question,answer,A,B\nWhat is 1+1?,2,yes,no\n")  # columns of something else
    task = load_task(str(path))()
    assert (task.kind, task.note) == ("math", "never shown to the model: A, B")


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f", "test": "def check(f):"}, "humaneval"),
        ({"task_id": 1, "text": "Double it.", "code": "def f(x):", "test_list": ["assert f(1)"]}, "mbpp"),
        ({"key": 1, "prompt": "Write.", "instruction_id_list": [], "kwargs": []}, "ifeval"),
        ({"ID": "c-1", "Body": "b", "Question": "q?", "Equation": "( 1 + 1 )", "Answer": 2.0}, "svamp"),
        ({"nums": [1, 2], "target": 3}, "countdown --set task.split=train"),
    ],
)
def test_rows_of_a_published_dataset_are_refused_with_the_task_that_reads_them(
    tmp_path: Path, row: dict[str, object], task: str
) -> None:
    write_lines(tmp_path / "mine.jsonl", [row])
    with pytest.raises(RecordError, match=f"mine.jsonl, line 1: .* --task {task} --data .*mine.jsonl reads it"):
        load_task(str(tmp_path / "mine.jsonl"))()
    own = {"prompt": "What does it print?", "code": "print(1)", "test_list": [], "answer": "1"}
    write_lines(tmp_path / "mine.jsonl", [own])
    assert load_task(str(tmp_path / "mine.jsonl"))().items(None, 0)[0].target == "1"


def test_an_id_that_a_limit_would_leave_out_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("id,question,answer\n" + "".join(f"{name},{name}?,1\n" for name in "abca"))
    with pytest.raises(ConfigError, match="two problems have the id 'a', number 1 and number 4; give each its own"):
        load_task(str(path))().items(1, 0)


@pytest.mark.parametrize("name", ["q3.xlsx", "rows.csv.zip", "folder"])
def test_a_file_of_another_ending_is_told_which_are_read(tmp_path: Path, name: str) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("question,answer\n")
    with pytest.raises(ConfigError, match=rf"{name}': a task is read from .jsonl, .*, a folder of save_to_disk,"):
        load_task(str(tmp_path / name))


def test_doubled_ids_and_empty_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_lines(path, [{"id": "a", "problem": "?", "answer": "1"}] * 2)
    with pytest.raises(ConfigError, match="two problems have the id 'a'"):
        load_task(str(path))().items(None, 0)
    path.write_text("")
    with pytest.raises(ConfigError, match="has no problems"):
        load_task(str(path))().items(None, 0)


def test_a_task_of_ones_own_is_told_the_form_of_its_loader() -> None:
    with pytest.raises(ConfigError, match=r"task mine: load must take \(limit, seed\), but takes \(\)"):
        Task("mine", "math", lambda: [], Sampling())
    task = Task("mine", "math", lambda limit, seed: [("1+1", "2")], Sampling())
    with pytest.raises(ConfigError, match=r"task mine: load must give evals\.task\.Item, got tuple"):
        task.items(None, 0)


@needs_data
@pytest.mark.parametrize(("make", "count"), [(gsm8k, 1319), (partial(gsm8k, split="train"), 7473), (svamp, 1000)])
def test_the_published_files_load_whole_and_their_golds_verify(make: Callable[..., Task], count: int) -> None:
    task = make(data=DATA)
    items = task.items(None, 0)
    assert len(items) == count
    check_golds(items, VERIFIERS.load(task.check.verifier)(**task.check.params), task)


MESSAGES = [{"role": "user", "content": "What percent of 20 is 10? Put the answer into \\boxed{}."}]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "What percent of 20 is 10?", "answer": "50"},
        {"question": "What percent of 20 is 10?", "target": {"answer": "50", "tolerance": 0.5}},
        {"question": "What percent of 20 is 10?", "target": {"answer": "fifty", "alternatives": ["50"]}},
        {"messages": MESSAGES, "answer": "50"},
    ],
)
def test_the_question_decides_what_per_cent_is_however_the_row_is_written(
    tmp_path: Path, row: dict[str, object]
) -> None:
    write_lines(tmp_path / "mine.jsonl", [row])
    (item,) = load_task(str(tmp_path / "mine.jsonl"))(kind="math").items(None, 0)
    assert status(item, r"\boxed{50\%}") == "correct" and status(item, r"\boxed{0.5}") == "incorrect"


def status(item: Item, text: str) -> str:
    (verdict,) = verdicts(VERIFIERS.load("math")(), [(item.target, text)])
    return verdict.status


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["O", "A", "B"], "answer": "B"}, r"'B' is a letter and the text of option C: write \(B\) for the"),
        (
            {"choices": ["1", "2", "3"], "answer": 2},
            "as the text of an option it would be B; counted from 0 .* C: --set task.first=0",
        ),
        (
            {"choices": ["red", "green"], "answer": 1},
            "the 1 answer may count the options from 0 or from 1: say which by --set task.first=0",
        ),
    ],
)
def test_an_answer_that_may_be_two_options_is_refused_with_what_each_is_written_as(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    write_lines(tmp_path / "mine.jsonl", [{"question": "?", **row}])
    with pytest.raises(RecordError, match=f"mine.jsonl, line 1: answer: .*{message}"):
        load_task(str(tmp_path / "mine.jsonl"))()
    for answer in ("(B)", "(C)"):
        write_lines(tmp_path / "mine.jsonl", [{"question": "?", "choices": ["O", "A", "B"], "answer": answer}])
        (item,) = load_task(str(tmp_path / "mine.jsonl"))().items(None, 0)
        assert item.target == answer.strip("()")


PARTS = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "What is this?", "image": "a.png"}, "image: pictures cannot be asked about; leave out the rows"),
        ({"question": "What is this?", "image_2": {"bytes": "x"}}, "image_2: pictures cannot be asked about"),
        ({"messages": [{"role": "user", "content": PARTS}]}, r"messages\[0\]: content: expected text, got a list of"),
        (
            {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "The answer is"}]},
            "messages: the last turn is the assistant's, so nothing is asked; end with the user's turn",
        ),
    ],
)
def test_what_a_model_cannot_be_asked_is_refused(tmp_path: Path, row: dict[str, object], message: str) -> None:
    write_lines(tmp_path / "mine.jsonl", [{**row, "answer": "4"}])
    with pytest.raises(RecordError, match=f"mine.jsonl, line 1: {message}"):
        load_task(str(tmp_path / "mine.jsonl"))()
    write_lines(tmp_path / "mine.jsonl", [{"question": "2+2?", "answer": "4", "image": None}])
    assert len(load_task(str(tmp_path / "mine.jsonl"))().items(None, 0)) == 1


def own_task(kind: str = "math", verifier: VerifierSpec | None = None) -> Task:
    """A task of a user whose loader gives all problems whatever the limit."""
    items = [Item(Problem(f"p{i}", (Message("user", f"{i}+1?"),)), str(i + 1)) for i in range(9)]
    return Task("mine", kind, lambda limit, seed: items, Sampling(), verifier=verifier)


def test_a_loader_that_takes_no_limit_costs_no_more_problems_than_were_asked_for() -> None:
    assert [len(own_task().items(limit, 0)) for limit in (4, 9, None)] == [4, 9, 9]
    assert own_task().items(2, 0) == own_task().items(4, 0)[:2]


def test_a_kind_of_answers_that_there_is_not_is_refused_when_the_task_is_made() -> None:
    with pytest.raises(ConfigError, match=r"task mine: kind: there is no .* 'maths'; did you mean 'math'\? \(known: "):
        own_task("maths")
    with pytest.raises(ConfigError, match="task mine: kind structured has no verifier of its own: name one"):
        own_task("structured")
    assert own_task("structured", VerifierSpec("exact")).check.verifier == "exact"


def test_a_quiz_of_words_is_judged_by_spelling_though_some_answers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "quiz.csv"
    path.write_text("question,answer\nWho?,Johann Sebastian Bach\nWhich war?,World War II\nWhen?,1945\n")
    task = load_task(str(path))()
    assert task.kind == "exact" and "the answers are of kind exact" in task.note
    path.write_text("question,answer\nHow many?,12\nWhen?,1945\nWho?,Bach\n")
    assert load_task(str(path))().kind == "math"


def test_words_among_numbers_are_told_to_be_read_as_mathematics_and_with_what_they_are_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,answer\nWhich city?,New York City\nWhich flight?,Apollo 11\n")
    other = "as words: --set task.kind=exact; from another column: --set task.answer=COLUMN"
    some = f"2 of 2 have words in them, such as 'New York City' ({other})"
    assert load_task(str(path))().note == f"the answers are read as mathematics, but {some}"
    assert load_task(str(path))(kind="exact").note == load_task(str(path))(kind="math").note == ""
    rows = (
        "How many?,9 (see the figure)\nHow many?,9 (apples)\nHow far?,5 meters\nWhich?,It is 8. So the answer is 8.\n"
    )
    path.write_text(f"question,answer\n{rows}")
    assert "2 of 4 have words in them, such as '9 (see the figure)'" in load_task(str(path))().note
    path.write_text("question,answer\nWhat is 1+1?,2\nWhat is x^1?,$x$\nWhat is y/1?,y\n")
    assert load_task(str(path))().note == ""
