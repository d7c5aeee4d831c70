"""`ttc eval` from the outside: what it prints, writes, refuses, and how it is continued."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evals.numbers.summary import read_summary, write_summary
from evals.run_folder import read_run
from evals.task import INSTRUCTIONS
from tests.ttc import bad_plugins
from tests.ttc.openai_server import OpenAIServer
from tests.ttc.openai_setup import CHAT, talker
from ttc.cli.cli import main
from ttc.durable import alone_in
from ttc.session.meter import COUNTING

pytestmark = pytest.mark.usefixtures("without_matplotlib")

SIMULATED = ["eval", "--task", "simulated", "--engine", "simulated", "--set", "engine.p=0.9"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def json_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_one_strategy_gives_records_summary_report_and_one_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    code, stdout, _ = run(
        capsys, *SIMULATED, "--strategy", "majority", "--n", "8", "--limit", "20", "--out", str(out), "--json"
    )
    assert code == 0
    (entry,) = json_lines(stdout)
    assert stdout.splitlines()[-1].startswith("{")
    assert (entry["strategy"], entry["n"], entry["problems"], entry["errors"]) == ("majority", 8, 20, 0)
    assert entry["low"] <= entry["accuracy"] <= entry["high"]  # type: ignore[operator]
    assert entry["tokens_per_problem"] > 8 and entry["seconds"] > 0  # type: ignore[operator]
    assert {"records.jsonl", "run.json", "summary.json", "report.html", "curve.csv", "direct-greedy"} <= {
        path.name for path in out.iterdir()
    }
    places = [(entry["strategy"], entry["records"]) for entry in read_summary(out)]
    assert places == [("direct", "direct-greedy"), ("majority", ".")]
    assert read_summary(out)[0]["params"]["temperature"] == 0.0
    records = read_run(out).records
    assert len(records) == 20
    assert sum(r.verdict.correct for r in records if r.verdict) / 20 == entry["accuracy"]
    assert sum(r.answer.usage.tokens for r in records if r.answer) / 20 == entry["tokens_per_problem"]


def test_the_packaged_model_says_that_it_is_a_toy_where_a_task_is_not_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("question,answer\nWhat is half of 18?,9\n")
    for task, is_told in ((str(rows), True), ("arithmetic", False)):
        arguments = ["eval", "--task", task, "--strategy", "direct", "--baseline", "none", "--limit", "1"]
        _, _, log = run(capsys, *arguments, "--out", str(tmp_path / f"run-{is_told}"))
        assert ("the packaged model does integer arithmetic only" in log) == is_told
    _, _, log = run(capsys, *SIMULATED, "--strategy", "direct", "--limit", "1", "--out", str(tmp_path / "simulated"))
    assert "the packaged model" not in log


def test_several_strategies_have_a_folder_each_and_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = [*SIMULATED, "--strategy", "direct,majority", "--set", "majority.n=4", "--limit", "15"]
    code, stdout, _ = run(capsys, *arguments, "--out", str(out), "--json")
    assert code == 0
    assert [(entry["strategy"], entry["n"]) for entry in json_lines(stdout)] == [("direct", 1), ("majority", 4)]
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"direct", "majority"}
    code, stdout, _ = run(capsys, "compare", str(out))
    assert code == 0 and "majority N=4 minus direct, 15 shared problems" in stdout


def test_the_same_command_again_only_reads_and_another_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        *SIMULATED,
        "--strategy",
        "majority",
        "--limit",
        "5",
        "--baseline",
        "none",
        "--out",
        str(tmp_path / "r"),
    ]
    assert run(capsys, *arguments)[0] == 0
    written = (tmp_path / "r" / "records.jsonl").read_bytes()
    code, _, stderr = run(capsys, *arguments)
    assert code == 0 and "5 problems were finished before" in stderr
    assert (tmp_path / "r" / "records.jsonl").read_bytes() == written
    code, _, stderr = run(capsys, *arguments, "--seed", "1")
    assert code == 2 and "seed is 0 there and 1 here" in stderr
    code, _, stderr = run(capsys, *arguments, "--max-tokens", "9")
    assert code == 2 and "sampling.max_tokens is 1024 there and 9 here; choose another --out" in stderr


def answers_in(folder: Path) -> list[object]:
    return [(record.problem.id, record.answer and record.answer.text) for record in read_run(folder).records]


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("larger", ["12", "all"])
def test_a_larger_limit_asks_only_what_is_new_and_ends_as_one_run_of_that_limit(
    larger: str, is_lost: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.jsonl").write_text(
        "".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(15))
    )
    arguments = ["eval", "--task", str(tmp_path / "mine.jsonl"), "--engine", "simulated"]
    arguments += ["--strategy", "majority", "--n", "3", "--baseline", "none"]
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    assert run(capsys, *arguments, "--limit", "5", "--out", str(grown))[0] == 0
    few = (grown / "records.jsonl").read_bytes()
    if is_lost:
        (grown / "run.json").write_text("")
    assert run(capsys, *arguments, "--limit", larger, "--out", str(grown))[0] == 0
    assert (grown / "records.jsonl").read_bytes().startswith(few)
    assert run(capsys, *arguments, "--limit", larger, "--out", str(whole))[0] == 0
    assert answers_in(grown) == answers_in(whole)
    assert [json.loads((folder / "run.json").read_text()) for folder in (grown, whole)].count(
        json.loads((whole / "run.json").read_text())
    ) == 2  # fmt: skip
    code, _, stderr = run(capsys, *arguments, "--limit", "5", "--out", str(grown))
    assert code == 2 and "a run grows by a larger limit only" in stderr


def test_a_run_that_was_cut_and_lost_its_configuration_grows_as_its_refusal_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    arguments = [*SIMULATED, "--strategy", "majority", "--baseline", "none", "--out", str(folder)]
    assert run(capsys, *arguments, "--limit", "5")[0] == 0
    (folder / "run.json").unlink()
    rows = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(b"".join(rows[:3]))
    code, _, stderr = run(capsys, *arguments, "--limit", "8")
    assert code == 2 and "its --limit too, and a larger one afterwards" in stderr
    assert run(capsys, *arguments, "--limit", "5")[0] == 0
    assert run(capsys, *arguments, "--limit", "8")[0] == 0
    assert (folder / "records.jsonl").read_bytes().startswith(b"".join(rows[:3])) and len(answers_in(folder)) == 8


def test_a_run_does_not_grow_over_other_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = tmp_path / "mine.jsonl"
    arguments = ["eval", "--task", str(task), "--engine", "simulated", "--strategy", "direct", "--out"]
    for shift, limit, code in ((1, "4", 0), (2, "8", 2)):
        rows = [{"question": f"{i}+{shift}?", "answer": str(i + shift)} for i in range(9)]
        task.write_text("".join(json.dumps(row) + "\n" for row in rows))
        status, _, stderr = run(capsys, *arguments, str(tmp_path / "run"), "--limit", limit)
        assert status == code, stderr
    assert "was made from other data: problem 'mine-5' changed" in stderr


def test_another_strategy_adds_a_row_and_takes_none_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    limited = [*SIMULATED, "--limit", "15", "--out", str(out), "--strategy"]
    assert run(capsys, *limited, "direct,majority", "--n", "4")[0] == 0
    before = (out / "direct" / "records.jsonl").read_bytes()
    assert run(capsys, *limited, "direct", "--baseline", "none")[0] == 0
    assert (out / "direct" / "records.jsonl").read_bytes() == before and not (out / "records.jsonl").exists()
    assert run(capsys, *limited, "adaptive", "--n", "4", "--baseline", "none")[0] == 0
    assert {entry["strategy"] for entry in read_summary(out)} == {"direct", "majority", "adaptive"}
    code, stdout, _ = run(capsys, "compare", str(out))
    assert code == 0 and stdout.count("15 shared problems") == 3
    grown = [*SIMULATED, "--limit", "20", "--out", str(out), "--strategy"]
    code, stdout, stderr = run(capsys, *grown, "direct,majority", "--n", "4")
    assert code == 0 and {entry["strategy"] for entry in read_summary(out)} == {"direct", "majority"}
    assert f"{out} is not in the table: it was made with other problems of task simulated" in stderr


def test_concurrency_does_not_change_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for concurrency in ("1", "7", "64"):
        arguments = [*SIMULATED, "--strategy", "majority", "--limit", "12", "--set", "engine.jitter=3", "--json"]
        out = tmp_path / concurrency
        (entry,) = json_lines(run(capsys, *arguments, "--concurrency", concurrency, "--out", str(out))[1])
        results.append({k: v for k, v in entry.items() if "second" not in k and k != "out"})
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "majorty"], "unknown strategy 'majorty'; did you mean 'majority'?"),
        (["--task", "arithmatic"], "unknown task 'arithmatic'; did you mean 'arithmetic'?"),
        (["--engine", "simulate"], "unknown engine 'simulate'; did you mean 'simulated'?"),
        (["--set", "m=3"], "no parameter 'm'"),
        (["--level", "9"], "level must be one of 1, 2, 3, 4, 5, mixed, got '9'"),
        (["--task", "arithmetic", "--level", "hard"], "level"),
        (["--temperature", "0"], "n=16 needs temperature > 0"),
        (["--limit", "many"], "--limit must be a whole number"),
        (["--concurrency", "0"], "--concurrency must be >= 1"),
        (["--budget", "token=5"], "unknown key 'budget.token'; did you mean 'tokens'?"),
        (["--task", "none.jsonl"], "task file 'none.jsonl' does not exist"),
        (["--n", "0"], "majority: n must be at least 1, got 0"),
        (["--scorer", "prm"], "--scorer prm has no effect: none of direct, majority takes a scorer"),
        (["--set", "task.split=test"], "simulated has no parameter 'split'"),
    ],
)
def test_bad_input_is_refused_with_the_nearest_name_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    base = [*SIMULATED, "--strategy", "majority", "--out", str(tmp_path / "run")]
    code, stdout, stderr = run(capsys, *base, *arguments)
    assert code == 2 and stdout == ""
    assert message in stderr and len(stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (["auto", "--set", "plan=nowhere.json", "--set", "tokens=100"], "nowhere.json"),
        (["tools", "--set", "tools=nosuch"], "unknown tool 'nosuch'"),
        (["majority", "--n", "4", "--budget", "calls=2"], ""),
    ],
)
def test_what_a_strategy_refuses_costs_no_token_of_the_arms_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: list[str], message: str
) -> None:
    arguments = [*SIMULATED, "--limit", "4", "--out", str(tmp_path / "run"), "--strategy", *strategy]
    code, stdout, stderr = run(capsys, *arguments)
    assert (code == 2 and stdout == "" and message in stderr) if message else code == 0
    assert (tmp_path / "run" / "direct-greedy").exists() == (not message)


def test_an_out_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, stderr = run(capsys, *SIMULATED, "--strategy", "direct", "--out", str(tmp_path / "file"))
    assert code == 2 and "is a file; name a folder" in stderr
    assert (tmp_path / "file").read_text() == "mine"


def write_task(folder: Path) -> tuple[Path, Path]:
    """A task of three problems, and a script that knows two of the answers."""
    task, script = folder / "mine.jsonl", folder / "replies.json"
    messages = [[{"role": "user", "content": text}] for text in ("one?", "two?", "three?")]
    rows = [{"id": f"p{i}", "messages": m, "answer": str(i + 1)} for i, m in enumerate(messages)]
    task.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replies = {"one?": ["\\boxed{1}"], "two?": ["It is \\boxed{2}."], "three?": ["\\boxed{4}"]}
    script.write_text(json.dumps(replies))
    return task, script


def test_a_file_task_runs_on_the_scripted_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, script = write_task(tmp_path)
    arguments = ["eval", "--task", str(task), "--engine", "scripted", "--model", str(script), "--strategy", "direct"]
    code, stdout, _ = run(capsys, *arguments, "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    (entry,) = json_lines(stdout)
    assert entry["accuracy"] == pytest.approx(2 / 3) and entry["verdicts"] == {"correct": 2, "incorrect": 1}


def test_a_gold_that_does_not_verify_is_named_before_the_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, script = write_task(tmp_path)
    task.write_text(task.read_text() + json.dumps({"id": "bad", "problem": "?", "answer": "1 or 4"}) + "\n")
    arguments = ["eval", "--task", str(task), "--engine", "scripted", "--model", str(script), "--strategy", "direct"]
    code, _, stderr = run(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert code == 2 and "'bad'" in stderr
    assert not (tmp_path / "run").exists()


STRATEGY = """
async def picky(problem, session):
    if problem.id == "p1":
        raise RuntimeError("cannot think")
    prompt = session.render()
    (completion,) = await session.generate(prompt, 1)
    chosen = session.candidate(prompt, completion)
    return session.answer(chosen, [chosen])
"""


def test_failed_problems_are_data_and_give_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, script = write_task(tmp_path)
    (tmp_path / "mine.py").write_text(STRATEGY)
    arguments = ["eval", "--task", str(task), "--engine", "scripted", "--model", str(script), "--baseline", "none"]
    arguments += ["--strategy", f"{tmp_path / 'mine.py'}:picky", "--out", str(tmp_path / "run"), "--json"]
    code, stdout, stderr = run(capsys, *arguments)
    assert code == 3
    assert json_lines(stdout)[0]["errors"] == 1
    fault = f"PluginError: strategy {tmp_path / 'mine.py'}:picky raised RuntimeError: cannot think (mine.py, line 4)"
    assert f"1 of 3 problems failed, the first with {fault}; see {tmp_path / 'run'}; --retry-errors asks" in stderr


def test_a_scorer_that_does_not_read_the_generators_tokens_is_refused_before_a_baseline_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "run"
    code, _, stderr = run(capsys, *SIMULATED, "--limit", "2", "--scorer", "prm", "--out", str(out))
    assert code == 2 and "its tokenizer does not match the generator's" in stderr
    assert not list(out.rglob("records.jsonl"))


UNREADABLE = """
from ttc.errors import ConfigError

class Unreadable:
    def price(self, prompt):
        raise ConfigError(f"the template refuses {prompt.messages[-1].content[:16]!r}")
    async def score(self, prompts, on_usage):
        return [self.price(prompt) for prompt in prompts]
    def release(self, problem_id):
        pass

def scorer():
    return Unreadable()
"""


def test_a_scorer_that_cannot_read_the_question_is_refused_before_a_baseline_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(UNREADABLE)
    out, scorer = tmp_path / "run", ["--scorer", f"{tmp_path / 'mine.py'}:scorer"]
    code, _, stderr = run(capsys, *SIMULATED, "--strategy", "best_of_n", "--limit", "2", *scorer, "--out", str(out))
    assert code == 2 and "the template refuses 'What is quantity" in stderr
    assert not list(out.rglob("records.jsonl"))


def test_a_scorer_without_any_usable_score_is_told_and_one_with_some_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SIMULATED, "--strategy", "best_of_n", "--n", "4", "--limit", "6", "--baseline", "none"]
    told = "best_of_n: no usable score in 24 of 24: nan is not a finite score; its answers were chosen without"
    for scorer, is_told in (("nan", True), ("steps", False)):
        out = ["--out", str(tmp_path / scorer)]
        code, _, stderr = run(capsys, *arguments, "--scorer", f"{bad_plugins.__file__}:{scorer}", *out)
        assert code == (3 if is_told else 0)
        assert (told in stderr) == is_told and ("no usable score" in stderr) == is_told


def test_answers_without_a_final_are_explained_with_what_helps_and_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(n), "problem": f"{n}?", "answer": str(n)} for n in range(4)]
    task, script = tmp_path / "mine.jsonl", tmp_path / "replies.json"
    task.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [f"{row['problem']}\n\n{INSTRUCTIONS['math']}" for row in rows]
    texts = ["that makes 0 then", "we get 1 so", "from there 2 comes out", "\\boxed{3}"]
    script.write_text(json.dumps({question: [text] for question, text in zip(asked, texts, strict=True)}))
    arguments = ["eval", "--task", str(task), "--engine", "scripted", "--model", str(script), "--strategy", "direct"]
    code, _, stderr = run(capsys, *arguments, "--out", str(tmp_path / "first"))
    assert code == 0
    assert (
        "direct: 3 of 4 answers have no final: 3 without any that can be read (the report shows the texts); "
        "where the last number of a text is its answer and the rows name no kind: --set task.kind=number\n"
    ) in stderr
    advised = ["--set", "task.kind=number", "--out", str(tmp_path / "second"), "--json"]
    code, stdout, stderr = run(capsys, *arguments, *advised)
    assert code == 0 and "no final" not in stderr
    assert json_lines(stdout)[0]["accuracy"] == 1.0
    described = tmp_path / "mine.toml"  # it says its kind itself, so there is nothing to set
    prompt = f"{{problem}}\\n\\n{INSTRUCTIONS['math']}".replace("boxed{}", "boxed{{}}").replace("\\boxed", "\\\\boxed")
    described.write_text(f'data = "mine.jsonl"\nprompt = "{prompt}"\ntarget = "answer"\nverifier = "math"\n')
    _, _, stderr = run(capsys, *arguments, "--task", str(described), "--out", str(tmp_path / "described"))
    assert "3 of 4 answers have no final" in stderr and "task.kind" not in stderr
    code, _, stderr = run(capsys, *arguments, "--max-tokens", "1", "--out", str(tmp_path / "third"))
    assert "direct: 4 of 4 answers have no final: 4 cut (raise --max-tokens)\n" in stderr


def test_a_strategy_of_ones_own_whose_n_are_no_equal_draws_runs_at_temperature_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from ttc import Answer, Message\n"
        "async def in_other_words(problem, session, *, n: int = 3) -> Answer:\n"
        "    'Ask n times, each time in other words.'\n"
        "    candidates = []\n"
        "    for number in range(n):\n"
        "        prompt = session.ask((Message('user', f'{problem.messages[-1].content} {number}'),), (number,))\n"
        "        candidates += [session.candidate(prompt, one) for one in await session.generate(prompt, 1)]\n"
        "    return session.answer(candidates[0], candidates)\n"
    )
    arguments = [*SIMULATED, "--strategy", f"{own}:in_other_words", "--temperature", "0", "--limit", "2"]
    code, _, stderr = run(capsys, *arguments, "--baseline", "none", "--out", str(tmp_path / "run"))
    assert code == 0, stderr


def test_texts_that_are_empty_are_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, script = tmp_path / "mine.jsonl", tmp_path / "replies.json"
    task.write_text("".join(f'{{"problem": "{n}?", "answer": "{n}"}}\n' for n in range(3)))
    texts = ["", " ", "from there 2 comes out"]
    script.write_text(json.dumps({f"{n}?\n\n{INSTRUCTIONS['math']}": [text] for n, text in enumerate(texts)}))
    arguments = ["eval", "--task", str(task), "--engine", "scripted", "--model", str(script), "--strategy", "direct"]
    _, _, stderr = run(capsys, *arguments, "--baseline", "none", "--out", str(tmp_path / "run"))
    assert "3 of 3 answers have no final: 2 empty (the model ended at once, or wrote nothing behind" in stderr
    assert "1 without any that can be read" in stderr


def test_answers_that_the_budget_cut_are_told_to_raise_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SIMULATED, "--limit", "3", "--strategy", "majority:n=8,direct", "--budget", "tokens=1"]
    _, _, stderr = run(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert stderr.count("3 of 3 answers have no final: 3 cut (raise --budget)\n") == 2


def test_answers_that_max_tokens_cut_under_a_spent_budget_are_told_to_raise_that_and_it_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for tokens, longest in ((20, 4), (20, 400), (4000, 400)):
        limits = ["--budget", f"tokens={tokens}", "--max-tokens", str(longest)]
        out = ["--limit", "3", "--strategy", "genselect:n=8", "--out", str(tmp_path / f"{tokens}-{longest}")]
        _, _, stderr = run(capsys, *SIMULATED, *out, *limits)
        said.append([line for line in stderr.splitlines() if line.startswith("genselect") and "no final" in line])
    (first,), (second,), third = said
    assert first.endswith("3 cut (raise --max-tokens)") and second.endswith("3 cut (raise --budget)") and not third


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("content_filter", "2 ended by the server's filter (finish_reason content_filter)"),
        ("tool_calls", "2 ended by the server with finish_reason 'tool_calls'"),
    ],
)
def test_an_answer_that_the_server_ended_is_not_told_to_have_more_tokens(
    word: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "mine.jsonl"
    task.write_text("".join(json.dumps({"problem": f"{n}?", "answer": str(n)}) + "\n" for n in range(2)))
    with OpenAIServer(talker, replace(CHAT, finish=word)) as server:
        arguments = ["eval", "--task", str(task), "--engine", "openai", "--set", f"engine.base_url={server.url}"]
        arguments += ["--strategy", "direct", "--baseline", "none", "--max-tokens", "100"]
        code, _, stderr = run(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert code == 0 and cause in stderr


def test_a_length_beyond_the_context_is_refused_before_any_problem_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SIMULATED, "--strategy", "direct", "--max-tokens", "10000000", "--out", str(tmp_path / "run")]
    code, _, stderr = run(capsys, *arguments)
    assert code == 2 and "--max-tokens 10000000 exceeds the context of scripted: " in stderr
    assert not (tmp_path / "run").exists()


LONG = [*SIMULATED, "--strategy", "majority", "--n", "8", "--limit", "200", "--baseline", "none"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What a run of `LONG` that nobody interrupted recorded."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*LONG, "--out", str(out)]) == 0
    return [finals(record) for record in read_run(out).records]


@pytest.mark.long
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_interrupted_run_is_continued_by_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: list[object], sent: signal.Signals, code: int
) -> None:
    out, arguments = tmp_path / "run", LONG
    command = [sys.executable, "-m", "ttc", *arguments, "--concurrency", "2", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    records, deadline = out / "records.jsonl", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and not (records.exists() and records.stat().st_size):
        time.sleep(0.01)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    if code > 0:
        assert f"--out {out}" in stderr and "continue with: ttc eval" in stderr
    assert 0 < len(read_run(out).records) < 200
    assert run(capsys, *arguments, "--out", str(out))[0] == 0
    ours = [finals(record) for record in read_run(out).records]
    assert len(ours) == 200 and ours == whole


def test_a_run_that_a_batch_system_ends_says_how_it_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import os, signal\nfrom ttc.strategies.direct import direct\n\n"
        "async def ended(problem, session):\n"
        "    answer = await direct(problem, session)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return answer\n"
    )
    out = tmp_path / "run"
    arguments = [*SIMULATED, "--strategy", f"{file}:ended", "--limit", "2", "--baseline", "none", "--out", str(out)]
    code, _, stderr = run(capsys, *arguments, "--concurrency", "1")
    assert code == 143 and "ttc: terminated; continue with: ttc " in stderr and f"--out {out}" in stderr


def finals(record: object) -> object:
    answer = record.answer  # type: ignore[attr-defined]
    return record.problem.id, answer.final, answer.usage, answer.trace, [c.final for c in answer.candidates]  # type: ignore[attr-defined]


def test_a_comparison_is_advised_only_where_there_are_two_rows_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [*SIMULATED, "--strategy", "direct", "--limit", "2", "--baseline", "none", "--out", str(tmp_path / "run")]
    code, _, stderr = run(capsys, *alone)
    assert code == 0 and "ttc compare" not in stderr
    code, _, stderr = run(capsys, *alone, "--strategy", "majority", "--n", "2")
    (advised,) = [line for line in stderr.splitlines() if line.startswith("paired tests: ttc ")]
    assert code == 0
    code, stdout, _ = run(capsys, *shlex.split(advised.partition("ttc ")[2]))
    assert code == 0 and "McNemar" in stdout


def test_a_folder_where_a_file_is_wanted_and_a_file_where_a_folder_is_are_refused_by_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "run", tmp_path / "file"
    file.touch()
    done = [*SIMULATED, "--strategy", "majority", "--n", "2", "--limit", "2", "--baseline", "none"]
    assert run(capsys, *done, "--out", str(folder))[0] == 0
    code, _, stderr = run(capsys, "calibrate", str(folder), "--out", str(tmp_path))
    assert code == 2 and f"--out {tmp_path} is a folder; name a file: --out {tmp_path / 'plan.json'}" in stderr
    code, _, stderr = run(capsys, "replay", str(folder), "--out", str(file))
    assert code == 2 and f"--out {file}: {file} is a file; name a folder" in stderr


def test_one_is_not_counted_in_the_plural(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, out = [*SIMULATED, "--limit", "1", "--n", "1", "--out", str(tmp_path / "run")], str(tmp_path / "run")
    screens = [run(capsys, "eval", *one[1:], "--strategy", "direct,majority") for _ in range(2)]
    screens += [run(capsys, "compare", out), run(capsys, "report", out)]
    text = "\n".join(stdout + stderr for _, stdout, stderr in screens) + (tmp_path / "run/report.html").read_text()
    assert [code for code, _, _ in screens] == [0] * 4 and "1 problem was finished before" in text
    assert "1 shared problem\n" in text and not re.search(r"(?<![\d.,])1 [a-z ]*(problems|answers|samples)\b", text)


def test_runs_of_other_problems_are_told_apart_by_their_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for name in ("sums", "others"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1+1", "answer": 2}\n')
        folders.append(str(tmp_path / name))
        rows = ["--engine", "simulated", "--task", str(tmp_path / f"{name}.jsonl"), "--baseline", "none"]
        assert run(capsys, "eval", *rows, "--strategy", "direct", "--out", folders[-1])[0] == 0
    code, _, stderr = run(capsys, "compare", *folders)
    assert code == 2 and "direct on sums.jsonl and direct on others.jsonl share no problem" in stderr


def test_a_number_that_is_too_long_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "huge.jsonl").write_text('{"question": "h", "answer": 1' + "0" * 5000 + "}\n")
    code, _, stderr = run(capsys, "eval", "--task", str(tmp_path / "huge.jsonl"), "--strategy", "direct")
    assert code == 2 and "line 1: a number has too many digits to be read; write it as text" in stderr


UNSURE = """
from ttc.core import Verdict

class Unsure:
    name, version = "unsure", "1"
    def check_gold(self, target, item=""):
        pass
    async def verify(self, target, submission):
        return Verdict("timeout", reason="too slow") if target == "4" else Verdict("correct", 1.0)
    async def close(self):
        pass

def unsure():
    return Unsure()
"""


def test_answers_that_the_verifier_did_not_decide_on_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(UNSURE)
    (tmp_path / "rows.csv").write_text("q,a\n2+2?,4\n2+3?,5\n2+4?,6\n")
    task = tmp_path / "mine.toml"
    task.write_text(f'data = "rows.csv"\nprompt = "{{q}}"\ntarget = "a"\nverifier = "{tmp_path}/mine.py:unsure"\n')
    arguments = ["eval", "--task", str(task), "--engine", "simulated", "--strategy", "direct", "--baseline", "none"]
    code, stdout, stderr = run(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert "direct: 1 of 3 answers got no verdict and count as not right, the first with timeout: too slow" in stderr
    head, _, row = stdout.splitlines()[2:5]
    assert code == 3 and head.endswith("no verdict") and row.split()[-1] == "1"


def test_a_run_says_how_its_flops_are_counted_and_one_of_another_count_is_only_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    again = [*SIMULATED, "--baseline", "none", "--out", str(out), "--strategy"]
    command = [*again, "majority:n=4"]
    assert run(capsys, *command, "--limit", "4")[0] == 0
    stored = json.loads((out / "run.json").read_text())
    assert stored["config"].pop("counting") == COUNTING == read_summary(out)[0]["counting"]
    (out / "run.json").write_text(json.dumps(stored))
    code, _, told = run(capsys, *command, "--limit", "6")
    assert code == 2 and f"{out} was begun by a version that counts FLOPs in another way" in told
    assert run(capsys, *command, "--limit", "4")[0] == 0
    assert read_summary(out)[0]["counting"] is None and json.loads((out / "run.json").read_text()) == stored
    code, _, told = run(capsys, *again, "direct", "--limit", "4")
    assert code == 0
    assert [entry["counting"] for entry in read_summary(out)] == [None, COUNTING], "accuracy and tokens compare"
    flops = any(entry["usage"]["flops"] for entry in read_summary(out))
    assert ("these runs count FLOPs in different ways" in told) is flops
    assert run(capsys, "report", str(out))[0] == 0


def test_two_evaluations_of_one_folder_that_end_at_once_both_stand_in_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(strategy: str) -> list[str]:
        options = ["--strategy", strategy, "--baseline", "none", "--limit", "2", "--out", str(tmp_path / "run")]
        return [*SIMULATED, *options]

    assert main(command("majority:n=2")) == 0
    with alone_in(tmp_path / "run"):  # as the other one does, which has read the summary and not yet written it
        before = read_summary(tmp_path / "run")
        thread = threading.Thread(target=main, args=(command("direct"),))
        thread.start()
        thread.join(2)
        write_summary(tmp_path / "run", [*before, {**before[0], "records": "other"}])
    thread.join(60)
    places = {entry["records"] for entry in read_summary(tmp_path / "run")}
    assert {".", "direct"} <= places


@pytest.mark.parametrize("content", ["", '{"runs": 3}', '{"runs": [{}]}'])
def test_a_summary_that_was_emptied_or_broken_says_what_writes_it_anew_and_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    out = tmp_path / "run"
    command = [*SIMULATED, "--strategy", "majority:n=2", "--baseline", "none", "--limit", "3", "--out", str(out)]
    assert run(capsys, *command)[0] == 0
    before = read_summary(out)
    (out / "summary.json").write_text(content)
    for words in (command, ["report", str(out)]):
        code, _, told = run(capsys, *words)
        assert code == 2 and "delete it, and ttc eval writes it again from the records" in told.splitlines()[-1]
    (out / "summary.json").unlink()
    assert run(capsys, *command)[0] == 0 and read_summary(out) == before
