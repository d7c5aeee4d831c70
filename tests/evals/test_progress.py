"""What an evaluation says while it runs, on a terminal and in a log."""

from __future__ import annotations

import io
import time
from contextlib import closing
from pathlib import Path

import pytest

from evals.commands import _terminal
from evals.commands._terminal import ProgressReport
from evals.experiment import Arm
from ttc.config.choices import StrategyChoice
from ttc.core import Capabilities, Message, Problem, Record, Sampling, Verdict

RECORD = Record(Problem("1", (Message("user", "1+1"),)), verdict=Verdict("correct"))


def arm(name: str, **params: object) -> Arm:
    return Arm(StrategyChoice.of(name, params, name), Path(name))


def test_a_log_gets_a_line_for_each_strategy_and_no_carriage_return(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = arm("direct"), arm("majority")
    with closing(ProgressReport(2, 2, None)) as progress:
        for each in (first, second):
            progress.resumed(each, 0)
            progress.add(each, RECORD)
            progress.add(each, RECORD)
    log = capsys.readouterr().err
    assert log == "direct: 2 of 2 problems, 100.0 % right, 0 s\nmajority: 2 of 2 problems, 100.0 % right, 0 s\n"


def test_a_run_that_goes_on_says_that_what_is_right_is_of_the_new_problems(capsys: pytest.CaptureFixture[str]) -> None:
    first = arm("direct")
    with closing(ProgressReport(4, 1, None)) as progress:
        progress.resumed(first, 3)
        progress.add(first, RECORD)
    assert capsys.readouterr().err.splitlines()[-1] == "direct: 4 of 4 problems, 100.0 % of 1 new right, 0 s"


def test_what_a_models_authors_recommend_is_said_with_the_options_that_take_it(capsys) -> None:
    able = Capabilities("Qwen3-4B", 100, recommended=(("temperature", 0.6), ("top_p", 0.95), ("top_k", 20)))
    for usual, told in ((Sampling(), True), (None, False), (able.as_recommended(Sampling()), False)):
        with closing(ProgressReport(1, 1, usual)) as progress:
            progress.loaded(able)
        log = capsys.readouterr().err
        assert ("this run draws at temperature=0.8: for theirs add --temperature 0.6 --top-p 0.95" in log) == told
        assert ("the authors of Qwen3-4B recommend temperature=0.6, top_p=0.95, top_k=20" in log) == told
    with closing(ProgressReport(1, 1, Sampling())) as progress:
        progress.loaded(Capabilities("silent", 100))
    assert not capsys.readouterr().err


def test_a_recommended_setting_that_the_engine_cannot_honour_is_named(capsys) -> None:
    with closing(ProgressReport(1, 1, None)) as progress:
        progress.loaded(Capabilities("Qwen2.5-1.5B", 100, unapplied=(("repetition_penalty", 1.1),)))
    log = capsys.readouterr().err
    assert (
        "the authors of Qwen2.5-1.5B recommend repetition_penalty=1.1" in log and "this engine cannot apply it" in log
    )


def test_a_log_says_that_time_goes_on_while_nothing_is_finished(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_terminal, "FIRST_S", 0.02)
    spending = arm("auto", total=30_000)
    with closing(ProgressReport(20, 1, None)) as progress:
        time.sleep(0.03)
        progress.spent(spending, 12_400)
        time.sleep(0.2)
    log = capsys.readouterr().err.splitlines()
    assert log[0] == "starting: 0 s"
    assert log[-1] == "auto: 0 of 20 problems, 12,400 of 30,000 tokens spent, 0 s"
    assert 2 < len(log) < 8  # every pause is twice the one before


def test_a_log_says_once_that_a_strategy_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_terminal, "FIRST_S", 0.05)
    with closing(ProgressReport(1, 1, None)) as progress:
        progress.add(arm("direct"), RECORD)
        time.sleep(0.2)
    assert capsys.readouterr().err.count("1 of 1 problem") == 1


def test_a_terminal_has_a_bar_that_promises_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(_terminal.sys, "stderr", screen)
    with closing(ProgressReport(1, 2, None)) as progress:
        progress.resumed(arm("direct"), 0)
        progress.add(arm("direct"), RECORD)
    last = screen.getvalue().split("\r")[-1]
    assert "direct:  50%" in last and "1/2 problems" in last and "100.0 % right" in last and "<" not in last
