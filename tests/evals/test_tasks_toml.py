"""Tasks in a TOML file: what they ask, how they judge, and that what is broken is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.task import load_task
from tests.evals.local_data import write_lines
from ttc.core import Message
from ttc.errors import ConfigError, RecordError

GOOD = """\
data = "rows.jsonl.gz"
system = "You know {area}."
prompt = "What is the capital of {country}? Choose among: {{{options}}}"
target = "capital"
verifier = {name = "exact", case_sensitive = true}
id = "key"
difficulty = "level"
cluster = "area"
max_tokens = 99
"""
ROWS = [
    {"key": "fr", "area": "Europe", "country": "France", "options": ["Paris", "Rome"], "capital": "Paris", "level": 2},
    {"key": "jp", "area": "Asia", "country": "Japan", "options": ["Tokyo"], "capital": "Tokyo", "level": 1},
]


def write(folder: Path, text: str, rows: list[dict[str, object]] | None = None) -> str:
    write_lines(folder / "rows.jsonl.gz", ROWS if rows is None else rows)
    path = folder / "capitals.toml"
    path.write_text(text)
    return str(path)


def test_a_toml_file_is_a_task(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD))()
    first, second = task.items(None, 0)
    assert first.problem.messages == (
        Message("system", "You know Europe."),
        Message("user", "What is the capital of France? Choose among: {Paris, Rome}"),
    )
    assert (first.problem.id, first.target, first.difficulty, first.cluster) == ("fr", "Paris", "2", "Europe")
    assert (second.problem.id, task.name, task.kind, task.sampling.max_tokens) == ("jp", "capitals", "exact", 99)
    assert (task.check.verifier, task.check.params) == ("exact", {"case_sensitive": True})


def test_rows_may_be_in_csv(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('country,capital\n"France, the Republic",Paris\n')
    path = tmp_path / "capitals.toml"
    path.write_text('data = "rows.csv"\nprompt = "Capital of {country}?"\ntarget = "capital"\nverifier = "exact"\n')
    (item,) = load_task(str(path))().items(None, 0)
    assert (item.problem.messages[0].content, item.target) == ("Capital of France, the Republic?", "Paris")


def test_an_empty_cell_that_the_file_asks_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("country,capital\nFrance,Paris\nSpain,\n")
    path = tmp_path / "capitals.toml"
    path.write_text('data = "rows.csv"\nprompt = "Capital of {country}?"\ntarget = "capital"\nverifier = "exact"\n')
    with pytest.raises(RecordError, match=r"rows\.csv, row 2: capital: the cell is empty"):
        load_task(str(path))()


def test_a_target_can_be_made_of_fields_and_constants(tmp_path: Path) -> None:
    text = 'data = "rows.jsonl.gz"\nprompt = "{n} to {goal}"\nverifier = "countdown"\n'
    task = load_task(write(tmp_path, text + 'target = {numbers = "n", target = "goal"}', [{"n": [3, 8], "goal": 24}]))()
    (item,) = task.items(None, 0)
    assert (item.target, item.problem.kind) == ({"numbers": [3, 8], "target": 24}, "expression")
    assert item.problem.messages[0].content == "3, 8 to 24"
    text = 'data = "rows.jsonl.gz"\nprompt = "{n}"\nverifier = {name = "format", answer = "free"}\n'
    task = load_task(write(tmp_path, text + 'target = {schema = {type = "integer"}}', [{"n": 1}]))()
    assert task.items(None, 0)[0].target == {"schema": {"type": "integer"}}
    assert task.kind == "format"


def test_the_answer_kind_alone_decides_the_verifier_too(tmp_path: Path) -> None:
    text = 'data = "rows.jsonl.gz"\nprompt = "{x}"\ntarget = "y"\nkind = "number"\n'
    task = load_task(write(tmp_path, text, [{"x": "1+1", "y": 2}]))()
    assert (task.check.verifier, task.check.params, task.items(None, 0)[0].target) == ("math", {"kind": "number"}, "2")
    text = text.replace('kind = "number"', 'verifier = {name = "math", kind = "number"}')
    assert load_task(write(tmp_path, text, [{"x": "1+1", "y": 2}]))().kind == "number"
    assert load_task(write(tmp_path, text.split("verifier")[0], [{"x": "1", "y": 2}]))().kind == "math"


CHOICE = 'data = "rows.jsonl.gz"\nprompt = "Q: {stem}\\n{choices}\\nAnswer:"\ntarget = "gold"\n'
CHOICES: list[tuple[str, list[dict[str, object]], list[str]]] = [
    ('choices = "ends"', [{"ends": ["a1", "b2"], "gold": 1}, {"ends": ["c3", "d4"], "gold": 0}], ["B", "A"]),
    ('choices = "ends"\nfirst = 1', [{"ends": ["a1", "b2"], "gold": "2"}], ["B"]),
    ('choices = "ends"', [{"ends": {"text": ["a1", "b2"], "label": ["1", "2"]}, "gold": "2"}], ["B"]),
    ('choices = "x,y"', [{"x": "a1", "y": "b2", "gold": "b2"}], ["B"]),
    ('wrong = "no"', [{"no": ["b2", "c3"], "gold": "a1", "stem": f"{i}"} for i in range(9)], []),
]


@pytest.mark.parametrize(("fields", "rows", "letters"), CHOICES)
def test_options_are_asked_with_their_letters_where_the_prompt_says(
    tmp_path: Path, fields: str, rows: list[dict[str, object]], letters: list[str]
) -> None:
    task = load_task(write(tmp_path, CHOICE + fields, [{"stem": "Which?", **row} for row in rows]))()
    items = task.items(None, 0)
    golds = [item.target["answer"] for item in items]
    assert (task.kind, task.check.verifier) == ("choice", "choice")
    assert golds == letters if letters else set(golds) == {"A", "B", "C"}
    for item in items:
        asked = item.problem.messages[0].content
        assert f"\n({item.target['answer']}) {item.target['alternatives'][0]}\n" in asked
        assert asked.startswith("Q: ") and asked.endswith("\nAnswer:")


def test_fields_may_have_spaces_and_lie_in_others(tmp_path: Path) -> None:
    text = 'data = "rows.jsonl.gz"\nprompt = "{The Question} {meta.hint}"\ntarget = "gold.value"\n'
    row: dict[str, object] = {"The Question": "1+1?", "meta": {"hint": "Add."}, "gold": {"value": 2}}
    (item,) = load_task(write(tmp_path, text, [row]))().items(None, 0)
    assert (item.problem.messages[0].content, item.target) == ("1+1? Add.", "2")


def test_a_prompt_that_does_not_show_the_options_is_refused(tmp_path: Path) -> None:
    text = CHOICE.replace("{choices}", "{ends}") + 'choices = "ends"'
    with pytest.raises(ConfigError, match=r"capitals\.toml: prompt: say where the options stand, .*: \{choices\}"):
        load_task(write(tmp_path, text, [{"stem": "?", "ends": ["a", "b"], "gold": 0}]))()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('data = "rows.jsonl.gz"', "data = 3", "data: expected a non-empty string, got 3"),
        ('data = "rows.jsonl.gz"', 'data = "none.jsonl"', "data: .*none.jsonl' does not exist"),
        ('data = "rows.jsonl.gz"', "", "data: is missing"),
        ("max_tokens = 99", "max_token = 99", "max_token: no such field; did you mean 'max_tokens'"),
        ("max_tokens = 99", "max_tokens = 0", "max_tokens: expected a whole number >= 1"),
        ("max_tokens = 99", 'kind = "exakt"', "kind: 'exakt' is not one of .*did you mean 'exact'"),
        ("max_tokens = 99", "max_tokens = ", "cannot be read"),
        ('target = "capital"', "target = 3", "target: expected the name of a field"),
        ('target = "capital"', "", "target: expected the name of a field"),
        ("{country}?", "{country?", "prompt: a single '{' at character 23"),
        ('name = "exact"', 'name = "exacd"', "verifier: unknown verifier 'exacd'; did you mean 'exact'"),
        ('name = "exact"', 'title = "exact"', "verifier: expected a name, or a table"),
        ("case_sensitive", "case_sensitiv", "verifier: exact has no parameter 'case_sensitiv'; did you mean"),
        ("case_sensitive = true", "case_sensitive = 3", "verifier: exact: case_sensitive"),
    ],
)
def test_a_broken_file_is_named_with_its_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=rf"capitals\.toml:? {message}"):
        load_task(path)()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"country": None}, "line 1: country: is missing"),
        ({"capital": None}, "line 1: capital: is missing"),
        ({"level": None}, "line 1: level: is missing"),
    ],
)
def test_a_broken_row_is_named_by_file_line_and_field(tmp_path: Path, row: dict[str, object], message: str) -> None:
    path = write(tmp_path, GOOD, [{**ROWS[0], **row}])
    with pytest.raises(RecordError, match=rf"rows\.jsonl\.gz, {message}"):
        load_task(path)()


def test_a_field_of_a_row_cannot_reach_into_the_template(tmp_path: Path) -> None:
    text = 'data = "rows.jsonl.gz"\nprompt = "{x.__class__} {x}"\ntarget = "x"\n'
    with pytest.raises(RecordError, match=r"x\.__class__: is missing"):
        load_task(write(tmp_path, text, [{"x": "{y}"}]))()
    task = load_task(write(tmp_path, text.replace("{x.__class__} ", ""), [{"x": "{y} %s"}]))()
    assert task.items(None, 0)[0].problem.messages[0].content == "{y} %s"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"task file 'none\.toml' does not exist"):
        load_task("none.toml")


def test_a_target_of_mathematics_is_what_follows_the_marks_of_gsm8k_and_the_prompt_decides_what_per_cent_is(
    tmp_path: Path,
) -> None:
    text = 'data = "rows.jsonl.gz"\nprompt = "{q} Put the answer into a box."\ntarget = "a"\nkind = "number"\n'
    rows = [{"q": "What is 9-1?", "a": "9-1=8\n#### 8"}, {"q": "What percent of 20 is 10?", "a": 50}]
    first, second = load_task(write(tmp_path, text, rows))().items(None, 0)
    assert first.target == "8"
    assert second.target == {"answer": "50", "question": "What percent of 20 is 10?"}
    text = text.replace('kind = "number"', 'verifier = "exact"')
    assert load_task(write(tmp_path, text, rows))().items(None, 0)[0].target == "9-1=8\n#### 8"


@pytest.mark.parametrize("verifier", ["judge", "safety"])
def test_verifiers_of_whole_texts_are_given_whole_texts(tmp_path: Path, verifier: str) -> None:
    text = f'data = "rows.jsonl.gz"\nprompt = "{{x}}"\ntarget = "y"\nverifier = "{verifier}"\n'
    assert load_task(write(tmp_path, text, [{"x": "Say hello.", "y": "hello"}]))().kind == "format"
