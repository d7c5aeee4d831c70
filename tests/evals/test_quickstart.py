"""`ttc quickstart`: what it finds, what it proposes, what it prints, and that the command it ends with works."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from evals.commands._quickstart.finding import Discovery
from evals.commands._quickstart.proposal import propose
from evals.commands.eval import EvalOptions
from evals.numbers.summary import read_summary
from evals.tasks._items import items_of, kind_of_rows
from evals.tasks.starters import PROBLEMS, starters
from tests.ttc.openai_server import Behaviour, Fault, OpenAIServer
from tests.ttc.openai_setup import CHAT
from ttc.cli.cli import main
from ttc.cli.options import add_options, command_line, read_options
from ttc.core import Prices, Usage
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError

pytestmark = pytest.mark.usefixtures("without_matplotlib")

HOSTED = replace(CHAT, model="gpt-x", key="sk-test-123", limit_field="max_completion_tokens")
"""As a hosted API: a key, messages only, its own name for max_tokens, no fields that it does not know."""
ROWS = [
    {"question": "What is 3+4?", "answer": 7, "solution": "3+4=7", "topic": "sums"},
    {"question": "What is 2+5?", "answer": "2+5=7\n#### 7", "topic": "sums"},
    {"question": "What is 9-1?", "answer": "8", "topic": "differences"},
]


def hosted(behaviour: Behaviour = HOSTED) -> OpenAIServer:
    """Answers 7 three times in four, whatever is asked."""
    return OpenAIServer(
        lambda: ScriptedEngine(lambda prompt, path, key: f"\\boxed{{{8 if key % 4 == 0 else 7}}}"), behaviour
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def next_command(screen: str) -> list[str]:
    (line,) = re.findall(r"^next: ttc (.+)$", screen, re.MULTILINE)
    return shlex.split(line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-123")
    (tmp_path / "tab.xlsx").write_text("question\tanswer\n1+1\t2\n")
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_an_endpoint_with_a_key_and_a_file_give_a_measured_result_and_the_next_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosted() as server:
        server.faults.extend([Fault(status=429, headers={"retry-after": "0.01"})] * 2)
        prices = ["--price-in", "1", "--price-out", "10"]
        code, screen, _ = run(
            capsys, "quickstart", "--base-url", server.url, "--data", "problems.jsonl", *prices, "--out", "q"
        )
        assert code == 0
        assert re.search(r"^token ids +no$", screen, re.MULTILINE)
        assert re.search(r"^prices +\$1 in, \$10 out per million tokens, as you say$", screen, re.MULTILINE)
        assert "proposed: majority of 8: it gives whole answers only" in screen
        assert re.search(r"^direct .*\$0", screen, re.MULTILINE) and "majority N=8" in screen
        plain, vote = read_summary(folder / "q")
        assert (plain["strategy"], vote["n"], vote["problems"]) == ("direct", 8, 3)
        for entry in (plain, vote):
            usage = Usage(**entry["usage"])
            assert entry["dollars"] == pytest.approx((usage.prompt + 10 * usage.generated) / 1e6)
        assert f"${plain['dollars'] + vote['dollars']:.6f}"[:6] in screen
        assert next_command(screen) == ["compare", "q"]
        assert run(capsys, *next_command(screen))[0] == 0
        assert "sk-test" not in screen + "".join(path.read_text() for path in folder.glob("q/*/*.json*"))


def test_a_longer_file_is_measured_next_on_more_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hosted() as server:
        arguments = ["quickstart", "--base-url", server.url, "--data", "problems.jsonl", "--limit", "2", "--out", "q"]
        code, screen, _ = run(capsys, *arguments)
        assert code == 0 and "money unknown" in screen
        command = next_command(screen)
        assert command[:3] == ["eval", "--base-url", server.url] and run(capsys, *command)[0] == 0
        assert [entry["problems"] for entry in read_summary(folder / "q-200")] == [3, 3]


def test_prices_that_the_server_tells_are_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hosted(replace(HOSTED, pricing={"prompt": "0.000002", "completion": "0.000008"})) as server:
        code, screen, _ = run(
            capsys, "quickstart", "--base-url", server.url, "--data", "problems.jsonl", "--limit", "1", "--out", "q"
        )
    assert code == 0 and "$2 in, $8 out per million tokens, as the server says" in screen
    assert all(entry["prices"] == {"in": 2.0, "out": 8.0} for entry in read_summary(folder / "q"))


def test_an_address_without_the_path_of_its_api_is_told_what_it_lacks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosted() as server:
        code, _, err = run(capsys, "quickstart", "--base-url", server.url.removesuffix("/v1"), "--look")
    assert code == 2 and "lists none; an address ends in /v1 as a rule" in err


def test_a_key_that_is_refused_is_told_with_its_variable(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with hosted() as server:
        code, _, err = run(capsys, "solve", "1+1", "--base-url", server.url)
    assert code == 2 and "check the key in the environment variable OPENAI_API_KEY" in err


def test_a_model_that_takes_only_its_own_temperature_is_measured_at_that(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosted(replace(HOSTED, refuses=("temperature",))) as server:
        arguments = ["quickstart", "--base-url", server.url, "--data", "problems.jsonl", "--limit", "2", "--out", "q"]
        code, screen, _ = run(capsys, *arguments)
    assert code == 0 and re.search(r"^temperature +only its own, 1", screen, re.MULTILINE)
    assert "--temperature 1.0" in shlex.join(next_command(screen))
    assert [entry["errors"] for entry in read_summary(folder / "q")] == [0, 0]


def test_looking_spends_nothing_on_problems_and_ends_with_a_command_that_works(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosted() as server:
        code, screen, _ = run(capsys, "quickstart", "--base-url", server.url, "--look", "--n", "3", "--limit", "2")
        assert code == 0 and not (folder / "runs").exists()
        command = next_command(screen)
        assert "--task starters" in shlex.join(command)
        assert run(capsys, *command)[0] == 0


def test_the_toy_is_searched_and_says_that_it_is_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, screen, _ = run(capsys, "quickstart", "--look", "--limit", "1", "--n", "4", "--out", "q")
    assert code == 0 and "proposed: tree of 4" in screen and "a toy: the packaged model does" in screen
    assert run(capsys, *next_command(screen))[0] == 0
    assert {entry["strategy"] for entry in read_summary(folder / "q")} == {"direct", "tree"}


def test_where_problems_failed_it_says_so_and_asks_them_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "long.jsonl").write_text(json.dumps({"question": "1+" * 3000 + "1", "answer": "3001"}) + "\n")
    code, screen, _ = run(capsys, "quickstart", "--data", "long.jsonl", "--n", "4", "--max-tokens", "9", "--out", "q")
    assert code == 3 and "Nothing was measured: the problem of long.jsonl failed." in screen
    assert "did not help" not in screen and "the reasons for failures are above" in screen
    assert next_command(screen)[-3:] == ["--out", "q", "--retry-errors"]
    assert run(capsys, *next_command(screen))[0] == 3


def test_columns_that_are_named_are_read_and_stand_in_the_next_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.csv").write_text("ask,label\n2+5,7\n3+5,8\n")
    named = ["--set", "task.question=ask", "--set", "task.answer=label"]
    code, _, stderr = run(capsys, "quickstart", "--data", "mine.csv", "--look")
    assert code == 2 and "--set task.question=COLUMN --set task.answer=label" in stderr
    code, screen, _ = run(capsys, "quickstart", "--data", "mine.csv", *named, "--look")
    assert code == 0
    assert {"task.question=ask", "task.answer=label"} <= set(next_command(screen))


def test_a_data_set_of_the_hub_may_be_the_problems(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTC_DATA", str(folder))
    (folder / "sums.jsonl").write_text('{"question": "2+5?", "answer": "7"}\n')
    code, screen, _ = run(capsys, "quickstart", "--data", "hub:me/sums", "--look")
    assert code == 0 and "hub:me/sums" in next_command(screen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none.jsonl"], "--data none.jsonl: there is no such file"),
        (["--data", "."], "--data .: a folder; name a file in it"),
        (["--data", "tab.xlsx"], "FILE.py:FUNCTION; save a table of a spreadsheet as CSV"),
        (["--set", "task.answer=label"], "arithmetic has no parameter 'answer'"),
        (["--base-url", "localhost"], "engine.base_url must look like http://127.0.0.1:8000/v1"),
        (["--base-url", "http://127.0.0.1:9/v1"], "or give another address (--base-url, "),
        (["--limit", "0"], "limit must be at least 1, got 0"),
        (["--model", "nowhere"], "model 'nowhere' is neither a folder nor a hub id"),
        (["--price-in", "3"], "--price-in and --price-out are given together"),
        (["--price-in=-1", "--price-out", "2"], "--price-in must be dollars per million tokens, 0 or more, got -1"),
        (["--engine", "embedded", "--base-url", "http://x/v1"], "leave out --engine embedded"),
        (["--engine", "embeded"], "unknown engine 'embeded'; did you mean 'embedded'?"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    code, _, stderr = run(capsys, "quickstart", *arguments)
    assert (code, len(stderr.strip().splitlines())) == (2, 1) and message in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "broken.jsonl"], "broken.jsonl, line 2: not JSON"),
        (["--data", "empty.csv"], "empty.csv"),
        (["--data", "problems.jsonl", "--price-in", "3"], "--price-in and --price-out are given together"),
        (["--data", "problems.jsonl", "--out", "tab.xlsx/run"], "tab.xlsx is a file; name a folder"),
    ],
)
def test_what_a_look_at_the_disk_refuses_is_refused_before_the_engine_is_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (folder / "broken.jsonl").write_text('{"question": "1+1", "answer": 2}\n{"question": \n')
    (folder / "empty.csv").write_text("question,answer\n")
    for engine in (["--base-url", "http://127.0.0.1:9/v1"], ["--model", "nowhere"]):
        code, _, stderr = run(capsys, "quickstart", *arguments, *engine)
        assert code == 2 and message in stderr


@pytest.mark.parametrize(
    ("continues", "scorer", "strategy"),
    [(False, None, "majority"), (True, None, "majority"), (True, "prm:X", "tree"), (False, "prm:X", "majority")],
)
def test_a_search_is_proposed_only_where_steps_can_be_taken_and_scored(
    continues: bool, scorer: str | None, strategy: str
) -> None:
    found = Discovery("vllm", "M", "M", (), continues, {}, scorer)
    assert propose(found).strategy == strategy


def test_options_become_the_arguments_that_give_them() -> None:
    settings = {"engine.base_url": "http://x/v1", "engine.seeded": "false"}
    options = EvalOptions(strategy=("direct", "majority"), n=4, settings=settings, price_in=0.5, json=True)
    parser = argparse.ArgumentParser()
    add_options(parser, EvalOptions)
    read = read_options(EvalOptions, parser.parse_args(command_line(options)))
    assert (read.strategy, read.n, read.price_in, read.json) == (options.strategy, 4, 0.5, True)
    assert dict(read.settings) == settings
    assert command_line(EvalOptions()) == []


def test_money_is_prompts_and_all_that_was_decoded() -> None:
    usage = Usage(prompt=1000, cached=400, generated=200, judged=30, overrun=20, scored=999)
    assert Prices(2.0, 8.0).cost(usage) == pytest.approx((1000 * 2 + 250 * 8) / 1e6)
    assert EvalOptions().prices is None
    with pytest.raises(ConfigError, match="given together"):
        _ = EvalOptions(price_out=1.0).prices


def test_columns_that_people_have_are_read_and_the_solution_stays_out_of_sight() -> None:
    items = list(items_of([(row, f"row {i}", i) for i, row in enumerate(ROWS, start=1)], "math", "mine"))
    assert [item.problem.id for item in items] == ["mine-1", "mine-2", "mine-3"]
    targets = [item.target["answer"] if isinstance(item.target, dict) else item.target for item in items]
    assert targets == ["7", "7", "8"]
    assert all("3+4=7" not in str(item.problem) for item in items)


@pytest.mark.parametrize(
    ("golds", "kind"),
    [
        (["7", "1/2"], "math"),
        (["x+y", "ab"], "math"),
        (["A", "(C)"], "choice"),
        (["Paris", "New York"], "exact"),
        (["\\pi", "Paris"], "math"),
        (["2024-01-05", "May 5, 2024", "SKU-007", "555-1234", "2019-2020"], "exact"),
        (["2024-01-05", "x-1-2"], "math"),
    ],
)
def test_the_kind_of_answers_is_told_by_what_they_look_like(golds: list[str], kind: str) -> None:
    assert kind_of_rows([{"answer": gold} for gold in golds]) == kind
    assert kind_of_rows([{"answer": golds[0], "kind": "number"}]) == "number"


def test_the_built_in_problems_are_twenty_with_whole_answers() -> None:
    assert len(PROBLEMS) == 20 and all(isinstance(answer, int) for _, answer in PROBLEMS)
    assert dict(PROBLEMS)[PROBLEMS[8][0]] == 13  # 17 chickens and 13 cows: 30 heads, 34 + 52 legs
    assert len(starters().items(None, 0)) == 20
