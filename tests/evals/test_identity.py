"""A run goes on only over what it was begun with: weights, user files and data, by content, and named where changed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evals.run_folder import CONFIG, RECORDS, read_run
from tests.evals.test_eval_command import SIMULATED
from tests.ttc import conformance as suite
from tests.ttc.openai_server import Behaviour, OpenAIServer
from ttc import nano
from ttc.cli.cli import main
from ttc.core import Served
from ttc.engines.openai.factory import openai

pytestmark = pytest.mark.usefixtures("without_matplotlib")

STRATEGY = """
import helper

async def pick(problem, session, *, scorer):
    completions = await session.generate(session.render(), helper.DRAWS)
    candidates = [session.candidate(session.render(), one) for one in completions]
    return session.answer(candidates[0], candidates)
"""
SCORER = """
from ttc.core import Score

class Flat:
    async def score(self, prompts, on_usage):
        return [Score(0.5) for prompt in prompts]

    def release(self, problem_id):
        pass

def flat():
    return Flat()
"""
VERIFIER = """
from ttc.core import Verdict

class Any:
    name = version = "any"

    def check_gold(self, target, item=""):
        pass

    async def verify(self, target, submission):
        return Verdict("correct", 1.0)

    async def close(self):
        pass

def any_answer():
    return Any()
"""
TASK = """
import json
import pathlib

from evals.task import Item, Task, VerifierSpec
from ttc.core import Message, Problem, Sampling

def items(limit, seed):
    for line in pathlib.Path("rows.jsonl").read_text().splitlines()[:limit]:
        row = json.loads(line)
        yield Item(Problem(row["id"], (Message("user", row["question"]),), "exact"), row["answer"])

def sums():
    return Task("sums", "exact", items, Sampling(max_tokens=8), verifier=VerifierSpec("verdicts.py:any_answer"))
"""
COMMAND = [
    *("eval", "--model", "./model", "--task", "tasks.py:sums", "--strategy", "second.py:pick"),
    *("--scorer", "scores.py:flat", "--baseline", "none", "--limit", "4", "--out", "run"),
]


def rows(question: str = "Compute {n}+1.") -> str:
    return "".join(
        json.dumps({"id": f"p{n}", "question": question.format(n=n), "answer": str(n + 1)}) + "\n" for n in range(6)
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that a run reads, and that run, interrupted after two of four problems."""
    folder = tmp_path_factory.mktemp("begun")
    shutil.copytree(nano.path("student"), folder / "model")
    files = {"second.py": STRATEGY, "scores.py": SCORER, "verdicts.py": VERIFIER, "tasks.py": TASK}
    for name, text in {**files, "helper.py": "DRAWS = 1\n", "rows.jsonl": rows()}.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        assert main(COMMAND) == 0
    cut(folder / "run")
    return folder


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in `folder`, with the modules there importable."""
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, "helper", raising=False)


def cut(run: Path) -> None:
    whole = (run / RECORDS).read_bytes().splitlines(keepends=True)
    (run / RECORDS).write_bytes(b"".join(whole[:2]))


@pytest.fixture
def place(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, entered."""
    folder = Path(shutil.copytree(begun, tmp_path / "place"))
    enter(folder, monkeypatch)
    return folder


def refused(capsys: pytest.CaptureFixture[str], command: list[str] = COMMAND) -> str:
    """Run the command; it must be refused in one line, with nothing more recorded. Returns the line."""
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert main(command) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 1
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    return message


def set_in(file: str, key: str, value: object) -> None:
    path = Path(file)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def append(file: str, text: str = "\n# changed\n") -> None:
    with Path(file).open("a") as handle:
        handle.write(text)


def other_weights() -> None:
    shutil.copy(nano.path("teacher") / "model.safetensors", "model/model.safetensors")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (other_weights, "weights of model ./model"),
        (lambda: set_in("model/config.json", "rms_norm_eps", 1e-3), "config of model ./model"),
        (lambda: set_in("model/tokenizer.json", "version", "2.0"), "tokenizer of model ./model"),
        (lambda: append("model/chat_template.jinja", "!"), "chat template of model ./model"),
        (lambda: set_in("model/generation_config.json", "eos_token_id", 5), "generation settings of model ./model"),
        (lambda: append("second.py"), "strategy file second.py"),
        (lambda: append("helper.py"), "strategy file helper.py"),
        (lambda: append("scores.py"), "scorer file scores.py"),
        (lambda: append("tasks.py"), "task file tasks.py"),
        (lambda: append("verdicts.py"), "verifier file verdicts.py"),
    ],
)
def test_a_change_between_two_halves_of_a_run_is_refused_by_name(
    place: Path, capsys: pytest.CaptureFixture[str], change: Callable[[], None], name: str
) -> None:
    change()
    message = refused(capsys)
    assert f"run holds another run: it was made with other {name}; choose another --out, or restore" in message


def test_a_changed_data_row_is_refused_by_its_id_or_where_no_answer_is_recorded_by_its_task(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = rows().splitlines(keepends=True)
    Path("rows.jsonl").write_text("".join([lines[0].replace('"1"', '"7"'), *lines[1:]]))
    assert "run was made from other data: problem 'p0' changed" in refused(capsys)
    Path("rows.jsonl").write_text("".join([*lines[:3], lines[3].replace('"4"', '"7"'), *lines[4:]]))
    assert "made with other problems of task sums;" in refused(capsys)


def test_several_changes_are_named_together(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other_weights()
    append("scores.py")
    assert "with other weights of model ./model, scorer file scores.py;" in refused(capsys)


def test_an_untouched_run_goes_on_and_touched_files_and_rows_beyond_the_limit_do_not_matter(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in place.rglob("*"):
        if path.is_file() and "run" not in path.parts:
            os.utime(path)
    append("rows.jsonl", json.dumps({"id": "more", "question": "?", "answer": "1"}) + "\n")
    assert main(COMMAND) == 0
    assert "2 problems were finished before" in capsys.readouterr().err
    assert len(read_run(Path("run")).records) == 4


def test_a_run_goes_on_where_its_model_and_its_problems_lie_elsewhere_and_are_the_same(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(model: str, problems: str) -> list[str]:
        fixed = ["--strategy", "direct", "--baseline", "none", "--limit", "4", "--out", "run"]
        return ["eval", "--model", model, "--task", problems, *fixed]

    shutil.rmtree("run")
    assert main(command("./model", "rows.jsonl")) == 0
    cut(Path("run"))
    Path("elsewhere").mkdir()
    for name in ("model", "rows.jsonl"):
        shutil.move(name, "elsewhere")
    shutil.copytree(nano.path("teacher"), "model2")
    capsys.readouterr()
    there = str(Path("elsewhere/rows.jsonl").absolute())
    assert 'model is "./model" there and "model2" here' in refused(capsys, command("model2", there))
    assert main(command("elsewhere/model", there)) == 0
    assert "2 problems were finished before" in capsys.readouterr().err
    run = read_run(Path("run"))
    assert (len(run.records), run.config["model"]) == (4, "elsewhere/model")


@pytest.mark.parametrize("limit", ["all", "100"])
def test_rows_behind_those_of_a_whole_file_are_asked_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fixed = ["--engine", "simulated", "--strategy", "direct", "--baseline", "none", "--seed", "0", "--out", "run"]
    command = ["eval", "--task", "rows.jsonl", "--limit", limit, *fixed]
    first, more = '{"id": "p%s", "question": "1+1?", "answer": 2}\n', '{"id": "q%s", "question": "2+2?", "answer": 4}\n'
    Path("rows.jsonl").write_text(first % 1 + first % 2)
    assert main(command) == 0
    Path("rows.jsonl").write_text(first % 1 + first % 2 + more % 1 + more % 2)
    capsys.readouterr()
    assert main(command) == 0
    assert "2 problems were finished before" in capsys.readouterr().err
    assert [record.problem.id for record in read_run(Path("run")).records] == ["p1", "p2", "q1", "q2"]
    Path("rows.jsonl").write_text(more % 3 + first % 1 + first % 2 + more % 1 + more % 2)
    assert "made with other problems of task rows.jsonl" in refused(capsys, command)


def test_seeds_of_one_model_in_two_places_are_one_row(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("model", "model2")
    for seed, model in (("1", "model"), ("2", "model2")):
        fixed = ["--strategy", "direct", "--baseline", "none", "--limit", "2", "--out", f"run{seed}"]
        assert main(["eval", "--model", model, "--task", "rows.jsonl", "--seed", seed, *fixed]) == 0
    capsys.readouterr()
    assert main(["report", "run1", "run2", "--out", "page"]) == 0
    assert "direct, 2 seeds" in capsys.readouterr().out


def test_a_finished_run_is_not_the_answer_for_changed_weights(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    capsys.readouterr()
    other_weights()
    assert "weights of model ./model" in refused(capsys)


def test_a_run_of_before_can_be_read_but_not_continued(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(Path("run", CONFIG).read_text())
    for name in ("contents", "served", "settings", "problems_seed"):
        del data["config"][name]
    Path("run", CONFIG).write_text(json.dumps(data))
    assert "made before runs recorded what they measured" in refused(capsys)
    assert len(read_run(Path("run")).records) == 2
    assert main(["report", "run"]) == 0


def test_the_scorers_model_is_part_of_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(nano.path("prm"), "judge")
    command = ["eval", "--task", "tasks.py:sums", "--strategy", "best_of_n:n=2", "--scorer", "prm:./judge"]
    command += ["--baseline", "none", "--limit", "2", "--out", "run/scored"]
    assert main(command) == 0
    capsys.readouterr()
    set_in("judge/config.json", "ttc_note", "x")
    assert "it was made with other config of scorer prm:./judge;" in refused(capsys, command)


def test_a_users_engine_and_a_plan_are_part_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from ttc.engines.simulated import simulated\n\ndef engine():\n    return simulated()\n")
    command = ["eval", "--task", "simulated", "--engine", "mine.py:engine", "--limit", "6", "--baseline", "none"]
    assert main([*command, "--strategy", "majority:n=4", "--out", "pool"]) == 0
    assert main(["calibrate", "pool", "--out", "plan.json"]) == 0
    command += ["--problems-seed", "1", "--strategy", "auto:plan=plan.json,tokens=200", "--out", "run"]
    assert main(command) == 0
    capsys.readouterr()
    append("plan.json", "\n")
    assert "with other plan of strategy auto: plan.json;" in refused(capsys, command)
    append("mine.py")
    assert "with other engine file mine.py, plan of strategy auto: plan.json;" in refused(capsys, command)


def test_a_plan_that_is_measured_on_the_problems_it_was_calibrated_on_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["eval", "--task", "simulated", "--engine", "simulated", "--baseline", "none"]
    assert main([*command, "--strategy", "majority:n=4", "--limit", "6", "--out", "pool"]) == 0
    assert main(["calibrate", "pool", "--out", "plan.json"]) == 0
    capsys.readouterr()
    command += ["--strategy", "auto:plan=plan.json,tokens=200", "--limit", "9"]
    main([*command, "--out", "same"])
    assert "plan.json was calibrated on 6 of the 9 problems that it is measured on" in capsys.readouterr().err
    main([*command, "--problems-seed", "1", "--out", "other"])
    assert "calibrated on" not in capsys.readouterr().err
    main([*command, "--problems-seed", "1", "--temperature", "0.3", "--out", "colder"])
    assert "plan.json was calibrated on draws of other sampling or thinking" in capsys.readouterr().err


def test_what_a_server_says_of_its_model_stands_in_the_run_and_another_server_does_not_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(nano.path("teacher"), "tokenizer")
    command = ["eval", "--engine", "openai", "--set", "engine.tokenizer=./tokenizer", "--limit", "2"]
    command += ["--strategy", "direct", "--baseline", "none", "--out", "run"]
    with OpenAIServer(suite.embedded, Behaviour(root="/models/a")) as server:
        command += ["--set", f"engine.base_url={server.url}"]
        assert main(command) == 0
        config = read_run(Path("run")).config
        assert config["served"] == {"model id": "served", "model root": "/models/a", "vLLM version": "0.32.0"}
        names = [name for name in config["contents"] if "model" in name]
        assert "tokenizer of model ./tokenizer" in names and not any("weights" in name for name in names)
        capsys.readouterr()
        server.behaviour.root, server.behaviour.version = "/models/b", "0.33.0"
        assert 'served.model root is "/models/a" there and "/models/b" here' in refused(capsys, command)
        server.behaviour.root = "/models/a"
        assert 'served.vLLM version is "0.32.0" there and "0.33.0" here' in refused(capsys, command)
        server.behaviour.version = "0.32.0"
        append("tokenizer/chat_template.jinja", "!")
        assert "with other chat template of model ./tokenizer;" in refused(capsys, command)


def test_a_server_that_says_nothing_of_its_model_leaves_it_out() -> None:
    with OpenAIServer(suite.embedded, Behaviour()) as server:
        engine = openai(base_url=server.url, tokenizer="none")
        assert isinstance(engine, Served) and engine.served == {"model id": "served"}


def test_the_seed_draws_and_the_problems_seed_picks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ids(name: str, *options: str) -> list[str]:
        command = [*SIMULATED, "--strategy", "direct", "--baseline", "none", "--limit", "5", *options]
        assert main([*command, "--out", str(tmp_path / name)]) == 0
        return [record.problem.id for record in read_run(tmp_path / name).records]

    def texts(name: str) -> list[str]:
        return [record.answer.text for record in read_run(tmp_path / name).records if record.answer]

    assert ids("first") == ids("second", "--seed", "3")
    assert texts("first") != texts("second")
    assert set(ids("third", "--problems-seed", "3")).isdisjoint(ids("first"))
    capsys.readouterr()
    assert main(["eval", "--task", "cipher", "--problems-seed", "3", "--out", str(tmp_path / "x")]) == 2
    assert "--problems-seed has no effect: the problems of task cipher are fixed" in capsys.readouterr().err


def test_a_greedy_baseline_and_a_sampled_direct_have_names_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [*SIMULATED, "--limit", "8", "--out"]
    assert main([*short, str(tmp_path / "a"), "--strategy", "direct,majority:n=2"]) == 0
    assert main([*short, str(tmp_path / "b"), "--strategy", "majority:n=2"]) == 0
    assert main([*short, str(tmp_path / "c"), "--strategy", "majority:n=2", "--baseline", "direct"]) == 0
    tables = capsys.readouterr().out
    assert "direct, greedy" in tables and "\ndirect " in tables
    places = [str(tmp_path / place) for place in ("a/direct", "b/direct-greedy", "c/direct")]
    assert main(["compare", *places[:2]]) == 0
    assert capsys.readouterr().out.startswith("direct, greedy minus direct, 8 shared problems\n")
    assert main(["compare", places[0], places[2]]) == 0  # a baseline that is named means what --strategy means by it
    same = capsys.readouterr().out
    assert same.startswith("direct #2 minus direct #1") and "+0.0 points" in same and "0 gained, 0 lost" in same


def test_every_setting_that_is_not_the_usual_one_stands_in_a_runs_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*SIMULATED, "--limit", "4", "--temperature", "0.5", "--out", str(tmp_path / "run"), "--strategy"]
    assert main([*command, "direct,direct:temperature=0,direct:temperature=0.8,majority:n=4"]) == 0
    names = [line.partition("  ")[0].strip() for line in capsys.readouterr().out.splitlines()[4:8]]
    assert names == ["direct, t=0.5", "direct, greedy", "direct", "majority N=4, t=0.5"]
    assert {path.parent.name for path in tmp_path.glob("run/*/run.json")} == {
        "direct", "direct-greedy", "direct-t0.8", "majority-n4",
    }  # fmt: skip


def test_a_plan_that_was_calibrated_with_other_weights_is_told_before_anything_is_spent(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "--model", "./model", "--task", "tasks.py:sums", "--limit", "4", "--baseline", "none"]
    assert main([*command, "--strategy", "majority:n=2", "--out", "pool"]) == 0
    assert main(["calibrate", "pool", "--out", "plan.json"]) == 0
    command += ["--strategy", "auto:plan=plan.json,tokens=200"]
    capsys.readouterr()
    main([*command, "--out", "same"])
    assert "other weights" not in capsys.readouterr().err
    other_weights()
    main([*command, "--out", "other"])
    told = capsys.readouterr().err
    told = told.splitlines()[0]
    assert "plan.json was calibrated with other weights than this model's; make one of a run of this model" in told
