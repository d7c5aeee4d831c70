"""The real command, mostly in a process of its own, on the scripted engine."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from ttc.cli import cli
from ttc.cli.cli import ELSEWHERE, ORDER, main
from ttc.commands.solve import cost_line
from ttc.config.registry import plugins
from ttc.core import Answer, Usage

TABLE = {
    "12+30*2": [
        "<think>30*2=60\n\n12+60=72</think>The answer is \\boxed{72}.",
        "The answer is \\boxed{71}.",
        "<think>12+30=42</think>The answer is \\boxed{72}.",
    ],
    "hello": ["<think>greet</think>Hello there."],
    "again": ["<think>more</think>Once more."],
}


@pytest.fixture
def table(tmp_path: pathlib.Path) -> str:
    file = tmp_path / "table.json"
    file.write_text(json.dumps(TABLE))
    return str(file)


def solve(table: str, *arguments: str) -> list[str]:
    return ["solve", "12+30*2", "--engine", f"scripted:{table}", "--seed=1", *arguments]


def ttc(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ttc", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **environment},
        check=False,
        timeout=120,
    )


def test_solve_prints_the_answer_on_stdout_and_the_cost_on_stderr(table: str) -> None:
    done = ttc(*solve(table, "--strategy", "majority", "--n", "3"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "72\n"
    assert done.stderr.startswith("majority: ")
    assert "3 calls" in done.stderr
    assert "--seed 1" in done.stderr


def test_the_packaged_model_says_what_it_can_do_before_it_answers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["solve", "12+30*2", "--strategy", "direct", "--seed", "1"])
    said = capsys.readouterr().err.splitlines()
    assert "integer arithmetic only" in said[0] and "GFLOP" in said[-1]


def test_the_flops_of_a_model_whose_size_nobody_told_are_unknown_and_not_zero() -> None:
    line = cost_line(Answer("72", "72", usage=Usage(generated=3, calls=1)), "direct", 1, 9)
    assert "1 call, FLOPs –, " in line and "GFLOP" not in line


@pytest.mark.parametrize(("thinking", "reason"), [("1+1 is", "ended inside its thought"), ("", "wrote nothing")])
def test_an_answer_that_is_empty_is_told_with_its_reason(thinking: str, reason: str) -> None:
    assert reason in cost_line(Answer("", None, thinking=thinking), "direct", 1, 9)
    assert reason not in cost_line(Answer("2", "2", thinking=thinking), "direct", 1, 9)


def test_solve_as_json_is_one_object_that_agrees_with_its_ledger(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(solve(table, "--strategy", "majority:n=3", "--json"))
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["final"] == "72"
    assert found["strategy"] == "majority-n3"
    assert [candidate["final"] for candidate in found["candidates"]] == ["72", "71", "72"]
    num_ends = len(found["candidates"])  # the end-of-sequence token is sampled, but is no part of the path
    assert found["usage"]["generated"] == sum(c["num_tokens"] for c in found["candidates"]) + num_ends


def test_solve_shows_the_tree_with_the_chosen_path(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(solve(table, "--strategy", "majority:n=3", "--show-tree"))
    lines = capsys.readouterr().err.splitlines()[:3]
    assert [line[2:].split(" [")[0].strip() for line in lines] == [
        "<think>30*2=60 12+60=72</think>The answer is \\boxed{72}.",
        "The answer is \\boxed{71}.",
        "<think>12+30=42</think>The answer is \\boxed{72}.",
    ]
    (chosen,) = [line for line in lines if "*" in line[:2]]
    assert "72" in chosen


def test_solve_reads_the_question_from_standard_input(table: str) -> None:
    done = ttc("solve", "-", "--engine", f"scripted:{table}", "--kind", "exact", stdin="hello\n")
    assert done.stdout.strip() == "Hello there."


def test_a_cut_answer_is_not_success(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(solve(table, "--max-tokens", "5"))
    assert code == 3
    assert "raise --max-tokens" in capsys.readouterr().err


def test_a_recipe_is_a_command_line_in_a_file(
    table: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    options = f'engine = "scripted"\nmodel = "{table}"\nstrategy = "majority"\nseed = 5\njson = true\n'
    recipe.write_text(options + "[set]\nn = 2\n")
    assert main(["solve", "12+30*2", "--config", str(recipe), "--seed", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seed"], found["usage"]["calls"]) == (6, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sovle"], "unknown command 'sovle'; did you mean 'solve'"),
        (["solve", "1", "--strategy", "majorty"], "unknown strategy 'majorty'; did you mean 'majority'"),
        (["solve", "1", "--engine", "embeded"], "unknown engine 'embeded'; did you mean 'embedded'"),
        (["solve", "1", "--strategy", "tree", "--scorer", "pmr"], "unknown scorer 'pmr'; did you mean 'prm'"),
        (["solve", "1", "--strategy", "tree", "--set", "beam_widht=4"], "'beam_widht'; did you mean 'beam_width'"),
        (["solve", "1", "--strategy", "tree", "--set", "policy=beem"], "unknown policy 'beem'; did you mean 'beam'"),
        (["solve", "1", "--strategy", "majority", "--set", "n=x"], "majority: n must be int, got 'x'"),
        (["solve", "1", "--set", "enigne.threads=2"], "no part 'enigne'; did you mean 'engine'"),
        (["solve", "1", "--strategy", "direct", "--n", "4"], "--n has no effect: direct has no parameter n"),
        (["chat", "--set", "n=4"], "no part 'n' (known: engine, thinking)"),
        (["solve", "1", "--set", "engine.thread=2"], "no parameter 'thread'; did you mean 'threads'"),
        (["solve", "1", "--set", "thinking.max_token=2"], "'thinking.max_token'; did you mean 'max_tokens'"),
        (["solve", "1", "--set", "n"], "--set wants key=value, got 'n'"),
        (["solve", "1", "--budget", "token=5"], "unknown key 'budget.token'; did you mean 'tokens'"),
        (["solve", "1", "--budget", "tokens"], "--budget wants key=value, got 'tokens'"),
        (["solve", "1", "--budget", "tokens=0"], "budget.tokens must be > 0"),
        (["solve", "1", "--temperature", "-1"], "sampling.temperature must be a number >= 0"),
        (["solve", "1", "--max-thinking", "-1"], "--max-thinking must be >= 0"),
        (["solve", "1", "--kind", "maths"], "unknown kind 'maths'; did you mean 'math'"),
        (["solve", " "], "the question is empty"),
        (["solve", "1", "--strategy", "direct,majority"], "takes one --strategy"),
        (["solve", "1", "--strategy", "direct", "--scorer", "prm"], "none of direct takes a scorer"),
        (["solve", "1", "--model", "hub/x", "--strategy", "tree"], "tree needs a scorer for this model: take a"),
        (["solve", "1", "--config", "/no/such.toml"], "'/no/such.toml' does not exist"),
        (["list", "strategys"], "unknown list 'strategys'; did you mean 'strategies'"),
        (["list", "strategies", "tre"], "unknown strategy 'tre'; did you mean 'tree'"),
    ],
)
def test_bad_input_is_one_line_with_the_nearest_name_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "-1+2"], "ttc solve: error: '-1+2' is read as an option; put an argument that begins with a dash"),
        (["solve", "--temperature", "-1"], "ttc solve: error: the following arguments are required: question"),
        (["--verison"], "ttc: error: no option --verison; did you mean '--version'?"),
        (["train", "run", "nano", "--sed", "1"], "ttc train run: error: no option --sed; did you mean '--seed'?"),
        (["solve", "1", "--stratgy", "tree"], "ttc solve: error: no option --stratgy; did you mean '--strategy'?"),
        (["solve", "1", "--stratgy=tree"], "ttc solve: error: no option --stratgy; did you mean '--strategy'?"),
        (
            ["eval", "--connect-s", "x"],
            "ttc eval: error: no option --connect-s; it is set by --set engine.connect_s=VALUE",
        ),
        (["replay", "x", "--temperature", "1"], "ttc replay: error: no option --temperature; did you mean"),
        (["train", "run", "x", "--device-map", "1"], "ttc train run: error: no option --device-map; did you mean"),
        (["solve", "1", "2"], "ttc solve: error: argument '2' is one too many"),
        (["steps", "eval", "--data", "x", "--treshold", "1"], "ttc steps eval: error: no option --treshold; did you"),
    ],
)
def test_what_no_option_takes_is_named_with_the_nearest_option_and_the_help(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.err.startswith(message) and captured.err.count("\n") == 1
    assert f"(see: {message.partition(':')[0]} --help)" in captured.err


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        *((name, "it is --n here") for name in ("--num-samples", "--n_samples", "--epochs", "--num-return-sequences")),
        ("--num_fewshot", "problems are asked without worked examples"),
        ("--max_new_tokens", "it is --max-tokens here"),
        ("--thinking_budget", "it is --max-thinking here"),
        ("--tasks", "it is --task here"),
        ("--output_path", "it is --out here"),
        ("--batch_size", "it is --concurrency here"),
        ("--alg", "it is --strategy here"),
        ("--rm-name", "it is --scorer here"),
        ("--backend", "it is --engine here"),
        ("--api-base", "it is --base-url here"),
        ("--model_args", "each is --set engine.KEY=VALUE"),
        ("--gen_kwargs", "--temperature"),
        ("--apply_chat_template", "always"),
        ("--log_samples", "--out"),
    ],
)
def test_an_option_of_another_tool_is_told_what_does_it_here(
    option: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([option, "8"], [f"{option}=8"]):
        with pytest.raises(SystemExit):
            main(["eval", *arguments])
        told = capsys.readouterr().err
        assert told.startswith(f"ttc eval: error: no option {option}; ") and hint in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--base-url", "it is --upstream here"),
        ("--uds", "--host and --port, for a unix socket use a proxy"),
        ("--ssl-keyfile", "--host and --port, for TLS use a proxy"),
        ("--workers", "start several, each on a --port of its own"),
        ("--api-key", "TTC_SERVE_KEY"),
        ("--served-model-name", "it is --name here"),
        ("--allowed-origins", "--set http.cors_origins=URL"),
        ("--enable-auto-tool-choice", "leave it out"),
        ("--timeout-graceful-shutdown", "--set limits.drain_s=SECONDS"),
        ("--max-model-len", "--set engine.max_context=N"),
        ("--max-num-seqs", "--set limits.max_sequences=N"),
    ],
)
def test_an_option_of_another_server_is_told_what_does_it_here(
    option: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", option, "8"])
    told = capsys.readouterr().err
    assert told.startswith(f"ttc serve: error: no option {option}; ") and hint in told and told.count("\n") == 1


def test_an_option_of_another_tool_is_not_told_one_that_the_command_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "run", "nano", "--epochs", "2"])
    assert "--n here" not in capsys.readouterr().err


def test_every_option_that_another_tools_name_leads_to_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("eval", "serve"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {option for option, _ in ELSEWHERE.values()} <= options
    words = " ".join(words for _, words in ELSEWHERE.values())
    assert set(re.findall(r"--[a-z-]+", words)) <= options


def test_a_file_or_a_folder_that_no_position_takes_is_told_its_option(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    for place, option in ((rows, "--task"), (tmp_path, "--model")):
        with pytest.raises(SystemExit):
            main(["eval", str(place)])
        assert f"is one too many; did you mean {option} {place}?" in capsys.readouterr().err


def test_a_strategy_that_no_position_takes_is_told_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "--strategy", "direct", "majority:n=4"])
    assert "is one too many; did you mean --strategy majority:n=4?" in capsys.readouterr().err


def test_an_output_below_a_file_is_refused_before_work(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["steps", "label", "--data", "arithmetic", "--out", str(tmp_path / "file" / "sub" / "out")]) == 2
    assert f"--out {tmp_path / 'file' / 'sub'}: {tmp_path / 'file'} is a file" in capsys.readouterr().err


def test_a_budget_that_ends_an_answer_is_what_to_raise(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(solve(table, "--budget", "tokens=5")) == 3
    assert "raise --budget; stopped: budget" in capsys.readouterr().err


def test_a_draw_that_its_own_limit_cut_under_a_budget_says_so_and_following_it_helps(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = ["--strategy", "majority:n=4"]
    assert main(solve(table, *strategy, "--budget", "tokens=3", "--max-tokens", "1")) == 3
    assert "raise --max-tokens; stopped: budget" in capsys.readouterr().err
    assert main(solve(table, *strategy, "--budget", "tokens=3", "--max-tokens", "100")) == 3
    assert "raise --budget; stopped: budget" in capsys.readouterr().err
    assert main(solve(table, *strategy, "--budget", "tokens=400", "--max-tokens", "100")) == 0


def test_a_recipe_with_an_unknown_key_names_the_nearest(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('stratgy = "tree"\n')
    assert main(["solve", "1", "--config", str(recipe)]) == 2
    assert "unknown key 'stratgy'; did you mean 'strategy'" in capsys.readouterr().err


def test_a_file_of_options_that_is_not_there_is_named_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "1+1", "--config", "nowhere.toml"]) == 2
    assert capsys.readouterr().err == "ttc: error: --config 'nowhere.toml' does not exist\n"


@pytest.mark.parametrize("model", ["~/mine", "~nobody-of-this-name/mine"])
def test_a_user_without_a_home_folder_is_told_what_to_set(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os.path, "expanduser", str)  # what it returns where there is none
    assert main(["solve", "1+1", "--model", model]) == 2
    said = "ttc: error: the home folder is not known: set HOME, or write paths without ~\n"
    assert capsys.readouterr().err == said


def test_a_current_folder_that_was_deleted_is_told_before_work(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["solve", "1+1"]) == 2
    assert capsys.readouterr().err == "ttc: error: the current folder was deleted: change to one that is there\n"


def test_the_file_of_a_server_is_read_by_the_server(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[models.m]\nengine = "embeded"\n')
    assert main(["serve", "--config", str(file)]) == 2
    assert "unknown engine 'embeded'; did you mean 'embedded'" in capsys.readouterr().err


def test_tracebacks_are_shown_only_on_request() -> None:
    assert "Traceback" not in ttc("solve", "1", "--strategy", "nope").stderr
    assert "Traceback" in ttc("solve", "1", "--strategy", "nope", TTC_DEBUG="1").stderr


def test_an_error_of_our_own_is_one_line_too_and_says_where_the_users_code_called(
    tmp_path: pathlib.Path, table: str
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("async def wrong(problem, session):\n    await session.generate('a text', 1)\n")
    done = ttc("solve", "hello", "--engine", f"scripted:{table}", "--strategy", f"{mine}:wrong")
    assert done.returncode == 1
    assert done.stderr.startswith("ttc: internal error: AttributeError: 'str' object has no attribute ")
    assert done.stderr.endswith(" (called from mine.py, line 2) (TTC_DEBUG=1 shows where)\n")


def test_an_interrupt_ends_with_130_and_one_line(tmp_path: pathlib.Path, table: str) -> None:
    mine = tmp_path / "mine.py"
    body = "    print('started', flush=True)\n    await asyncio.sleep(60)\n"
    mine.write_text(f"import asyncio\nasync def slow(problem, session):\n{body}")
    command = [sys.executable, "-m", "ttc", *solve(table, "--strategy", f"{mine}:slow")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "ttc: interrupted\n"


def test_a_reader_that_leaves_is_not_an_error() -> None:
    command = f"{sys.executable} -m ttc list strategies | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("limit", "is_told"), [("1200000", True), ("unlimited", False)])
def test_a_limit_on_memory_that_libraries_meet_without_naming_it_is_told_first(limit: str, is_told: bool) -> None:
    command = f"ulimit -Sv {limit}; {sys.executable} -m ttc verify absent.jsonl"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "absent.jsonl" in done.stderr
    assert ("memory is limited to 1,171 MiB here (ulimit -v)" in done.stderr) == is_told


def test_help_lists_every_command_and_the_exit_codes() -> None:
    done = ttc("--help")
    assert done.returncode == 0
    for name in plugins("ttc.commands"):
        assert re.search(rf"^    {name}\s", done.stdout, re.MULTILINE)
    assert "unavailable" not in done.stdout
    assert "130  interrupted" in done.stdout


def test_help_lists_the_commands_in_the_order_of_their_use() -> None:
    assert set(ORDER) == set(plugins("ttc.commands"))
    lines = re.findall(r"^    ([a-z]+)  +\S", ttc("--help").stdout, re.MULTILINE)
    assert lines == list(ORDER)


@pytest.mark.parametrize("words", [[], ["train"], ["distill"], ["steps"]])
def test_a_command_without_anything_else_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((words, 2), ([*words, "--help"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code
    captured = capsys.readouterr()
    assert captured.err == captured.out != ""


def test_the_help_of_an_action_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "merge", "--help"])
    assert "\nwrite a model with the adapter of a stage merged into it\n" in capsys.readouterr().out


def test_everything_that_can_be_listed_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^strategies +adaptive, ", text, re.MULTILINE) and max(map(len, text.splitlines())) <= 120
    assert main(["list", "--json"]) == 0
    names = {row["what"]: row["names"] for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert names.keys() == plugins("ttc.registries").keys() and "majority" in names["strategies"]


@pytest.mark.parametrize("words", [[], ["eval"], ["train", "run"]])
def test_help_may_be_asked_for_as_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for arguments in (["help", *words], [*words, "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] and f"usage: {' '.join(['ttc', *words])} [-h]" in pages[0]
    assert main(["help", "evla"]) == 2
    assert "unknown command 'evla'; did you mean 'eval'" in capsys.readouterr().err


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from ttc.cli.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print([m for m in sys.modules if '.commands.' in m or m == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_help_says_which_command_of_another_distribution_is_broken(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "other-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[ttc.commands]\nabsent = absent.cli:register\nplain = plain:register\n")
    (tmp_path / "plain.py").write_text("raise SystemExit('imported')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    code = "from ttc.cli.cli import main; main(['--help'])"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "unavailable: No module named 'absent'" in done.stdout
    assert re.search(r"^    plain$", done.stdout, re.MULTILINE)


_AS_ON_WINDOWS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "pwd", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in ("fcntl", "pwd", "resource"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    "use",
    ["from ttc.__main__ import main; sys.exit(main())", "import ttc; ttc.run('1+2')", "import ttc; ttc.evaluate([])"],
)
def test_on_a_system_that_is_not_supported_the_error_says_so(use: str) -> None:
    code = f"{_AS_ON_WINDOWS}\n{use}"
    done = subprocess.run([sys.executable, "-c", code, "list", "strategies"], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith(
        "ttc needs Linux or macOS: this Python has no fcntl; on Windows, run it in WSL 2"
    )
    assert "Traceback" not in done.stderr or "import ttc" in use


def test_without_memory_the_end_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(cli, "_parse", exhausted)
    monkeypatch.setattr(cli, "damage_text", exhausted)  # it reads whole files
    assert main(["solve", "1+2"]) == 1
    assert capsys.readouterr().err.startswith("ttc: error: no memory is left; ")


def test_the_version_is_printed() -> None:
    assert ttc("--version").stdout == "ttc 0.1.0\n"


def test_a_command_imports_no_other_command() -> None:
    code = (
        "import sys; from ttc.cli.cli import main; main(['list', 'strategies', 'majority']);"
        "print([m for m in sys.modules if m.startswith('evals') or m == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("what", ["strategies", "scorers", "engines", "verifiers", "tasks", "policies"])
def test_list_as_json_describes_every_entry(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows
    for row in rows:
        own = {"card"} if what == "verifiers" else set()
        assert set(row) == {"kind", "name", "doc", "takes_model", "parameters"} | own
        assert not row["doc"].startswith("unavailable")


def test_list_shows_parameters_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "strategy", "majority"]) == 0
    text = capsys.readouterr().out
    assert "majority" in text
    assert "n: int  (default 16)" in text


def test_chat_answers_each_turn_and_keeps_thinking_off_stdout(table: str) -> None:
    stdin = "hello\n/no_think\n/thnk\nagain\n\n/reset\nwhat?\n/quit\nhello\n"
    done = ttc("chat", "--engine", f"scripted:{table}", "--seed", "1", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello there.\nOnce more.\n"
    assert "greet" in done.stderr
    assert "no command /thnk; did you mean '/think'" in done.stderr
    assert "scripted engine has no reply to 'what?'" in done.stderr


def test_chat_ends_with_its_input(table: str) -> None:
    assert ttc("chat", "--engine", f"scripted:{table}").returncode == 0
