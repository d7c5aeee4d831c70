"""What the user's own code does wrong is told as theirs, in one line with file and line; what ours does is not."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.ttc import bad_plugins
from ttc.cli.cli import main
from ttc.config.plugins import blamed, call_strategy, check_answer, read_scores
from ttc.config.registry import STRATEGIES
from ttc.core import Answer, Message, Problem, Score, Submission, Verifier
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, PluginError
from ttc.scorers.constant import ConstantScorer
from ttc.session.session import Session
from ttc.session.solve import solve, spent
from ttc.verifiers.service.service import Service

FILE = str(pathlib.Path(bad_plugins.__file__))
QUESTION = Problem("q", (Message("user", "1+1"),))


def line_of(text: str) -> int:
    """The line of the bad plug-ins that holds `text`."""
    (at,) = (at for at, line in enumerate(pathlib.Path(FILE).read_text().splitlines(), start=1) if text in line)
    return at


@pytest.fixture
def table(tmp_path: pathlib.Path) -> str:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"1+1": ["a\n\n\\boxed{2}", "b\n\n\\boxed{3}"]}))
    return str(file)


def ask(table: str, strategy: str, *arguments: str) -> list[str]:
    name = f"{FILE}:{strategy}" if hasattr(bad_plugins, strategy) else strategy
    return ["solve", "1+1", "--engine", f"scripted:{table}", "--seed", "1", "--strategy", name, *arguments]


@pytest.mark.parametrize(
    ("strategy", "fault", "place"),
    [
        ("raises", "raised RuntimeError: boom", "raise RuntimeError"),
        ("raises_after_drawing", "raised IndexError: list index out of range", "completions[1]"),
        ("raises_at_once_and_in_parts", "raised IndexError: list index out of range", "[][at]"),
        ("returns_none", "returned None; return session.answer(chosen, candidates)", ""),
        ("returns_text", "returned str; return session.answer(chosen, candidates)", ""),
        ("forgets_await", "returned a coroutine that was not awaited; return await ...", ""),
    ],
)
def test_a_strategy_that_fails_is_named_with_its_file_and_line(
    strategy: str, fault: str, place: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ask(table, strategy)) == 2
    where = f" (bad_plugins.py, line {line_of(place)})" if place else ""
    assert capsys.readouterr().err == f"ttc: error: strategy {FILE}:{strategy} {fault}{where}\n"


@pytest.mark.parametrize(
    ("scorer", "fault"),
    [
        ("broken", f"raised ZeroDivisionError: division by zero (bad_plugins.py, line {line_of('1 / self.value')})"),
        ("raising", f"raised OSError: no such model (bad_plugins.py, line {line_of('raise OSError')})"),
        ("short", "gave 1 scores for 2 prompts"),
        ("text", "gave Score(value='high', steps=(), note=''); its value and steps must be numbers"),
    ],
)
def test_a_scorer_that_fails_is_named_with_its_file_and_line(
    scorer: str, fault: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ask(table, "best_of_n", "--n", "2", "--scorer", f"{FILE}:{scorer}")) == 2
    assert capsys.readouterr().err == f"ttc: error: scorer {FILE}:{scorer} {fault}\n"


def test_a_policy_that_fails_inside_a_search_of_ours_is_named(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scorer", "constant", "--n", "2", "--set", f"policy={FILE}:greedy"]
    assert main(ask(table, "tree", *arguments)) == 2
    fault = f"policy {FILE}:greedy raised IndexError: list index out of range"
    assert capsys.readouterr().err == f"ttc: error: {fault} (bad_plugins.py, line {line_of('scores[99]')})\n"


@pytest.mark.parametrize("scorer", ["nan", "inf"])
def test_a_score_that_is_not_finite_is_no_verdict_and_a_run_without_any_says_so(
    scorer: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ask(table, "best_of_n", "--n", "2", "--scorer", f"{FILE}:{scorer}", "--json")) == 0
    captured = capsys.readouterr()
    assert [candidate["score"] for candidate in json.loads(captured.out)["candidates"]] == [None, None]
    assert f"no usable score in 2 of 2: {scorer} is not a finite score" in captured.err
    assert main(ask(table, "best_of_n", "--n", "2", "--scorer", f"{FILE}:steps")) == 0
    assert "no usable score" not in capsys.readouterr().err


def test_scores_are_read_as_plain_numbers_and_one_bad_step_silences_its_score() -> None:
    scorer = ConstantScorer()
    kept = Score(0.5, (0.25, 0.5))
    given = [kept, Score(1, (True,)), Score(None, note="cut"), Score(0.5, (0.5, math.nan))]
    read = read_scores(scorer, given, 4)
    assert read[0] is kept
    assert read[1] == Score(1.0, (1.0,)) and type(read[1].value) is float
    assert read[2] is given[2]
    assert read[3] == Score(None, note="nan is not a finite score")
    for returned in (None, "0.5", [0.5]):
        with pytest.raises(PluginError, match=r"scorer ConstantScorer gave .*; return a list of Score, one a prompt"):
            read_scores(scorer, returned, 1)


def test_an_answer_is_handed_on_and_anything_else_is_told_by_the_strategys_name() -> None:
    answer = Answer("2", "2")
    assert check_answer(bad_plugins.good, answer) is answer
    with pytest.raises(PluginError, match="strategy good returned list; return session"):
        check_answer(bad_plugins.good, [answer])


def caught(strategy: Callable[..., object]) -> BaseException:
    """What a strategy ends with when it is called as `solve` calls it."""

    async def call() -> None:
        engine = ScriptedEngine(lambda prompt, path, key: "\\boxed{2}")
        await solve(QUESTION, engine=engine, strategy=strategy, seed=0)  # type: ignore[arg-type]

    with pytest.raises(Exception) as raised:
        asyncio.run(call())
    return raised.value


def test_what_a_failed_strategy_had_spent_is_not_lost() -> None:
    error = caught(STRATEGIES.load(f"{FILE}:raises_after_drawing"))
    assert isinstance(error, PluginError) and spent(error).calls == 1
    assert isinstance(error.__cause__, IndexError)


def test_an_error_that_a_plugin_raises_on_purpose_stays_itself(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from ttc.errors import ConfigError\nasync def mine(a, b):\n    raise ConfigError('k is too big')\n"
    )
    error = caught(STRATEGIES.load(f"{file}:mine"))
    assert type(error) is ConfigError and str(error) == "k is too big"


def test_an_error_of_ours_below_a_plugin_stays_itself_and_says_where_it_was_called(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def mine(problem, session):\n    await session.generate('a text', 1)\n")
    error = caught(STRATEGIES.load(f"{file}:mine"))
    assert type(error) is AttributeError and error.__notes__ == ["called from mine.py, line 2"]


def test_a_function_that_no_registry_has_named_raises_what_it_raises() -> None:
    assert type(caught(bad_plugins.raises)) is RuntimeError


def test_a_callback_of_the_plugins_that_our_code_calls_is_the_plugins(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    body = "async def mine(problem, session):\n    session.shared(lambda: 1 / 0)\n"
    file.write_text(body)
    assert str(caught(STRATEGIES.load(f"{file}:mine"))).endswith(
        "ZeroDivisionError: division by zero (mine.py, line 2)"
    )


def test_a_plain_function_that_returns_an_answer_is_no_coroutine_to_wait_for() -> None:
    def plain(problem: Problem, session: Session) -> Answer:
        return Answer("2", "2")

    answer = asyncio.run(call_strategy(plain, QUESTION, None))  # type: ignore[arg-type]
    assert answer.final == "2"


def test_an_error_without_a_plugin_is_nobodys_but_ours() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        assert blamed(error) is error and not hasattr(error, "__notes__")


class Verifies(Verifier):
    """A verifier that gives what it was made with, or raises it."""

    name, version = "mine", "mine-1"

    def __init__(self, given: object) -> None:
        self.given = given

    async def verify(self, target: object, submission: Submission) -> object:
        """Give it."""
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def test_a_verifier_that_gives_no_verdict_is_told_in_the_reason() -> None:
    async def judge() -> str:
        service = Service(Verifies(True))  # type: ignore[arg-type]
        verdict = await service.verify("2", Submission("2"))
        await service.close()
        assert verdict.status == "error"
        return verdict.reason

    assert asyncio.run(judge()) == "mine returned bool, not a Verdict"


INSTALLED = """
async def fails(problem, session):
    return [][0]

def wrong(problem, session):
    return None
"""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("fails", "plug-in package acme raised IndexError: list index out of range (acme.py, line 3)"),
        ("wrong", "strategy wrong is not an async function: write async def wrong(problem, session, *, ...) -> Answer"),
    ],
)
def test_a_strategy_of_another_distribution_is_held_to_the_same(
    name: str, fault: str, tmp_path: pathlib.Path, table: str
) -> None:
    (tmp_path / "acme.py").write_text(INSTALLED)
    (tmp_path / "acme-1.dist-info").mkdir()
    (tmp_path / "acme-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    entries = "[ttc.strategies]\nfails = acme:fails\nwrong = acme:wrong\n"
    (tmp_path / "acme-1.dist-info" / "entry_points.txt").write_text(entries)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ttc", *ask(table, name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (2, f"ttc: error: {fault}\n")


def test_a_file_that_cannot_be_imported_is_told_with_the_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(ConfigError, match=r"failed to import: ZeroDivisionError: division by zero \(mine.py, line 2\)"):
        STRATEGIES.load(f"{file}:f")


@pytest.mark.parametrize(("field", "value"), [("text", None), ("final", 42.0)])
def test_an_answer_that_is_no_text_is_told_before_it_is_recorded(field: str, value: object) -> None:
    answer = Answer(**{"text": "42", "final": "42", field: value})  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=rf"returned an Answer whose {field} is (None|float); give text: str\(...\)"):
        check_answer(bad_plugins.good, answer)
