from __future__ import annotations

import argparse
import json
import pathlib

import pytest

from ttc.cli import main
from ttc.commands import doctor
from ttc.commands.doctor import Check
from ttc.errors import MissingExtra
from ttc.registry import ENGINES


def test_the_report_names_every_engine_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in report["checks"] if check["group"] == "engines"}
    assert set(states) == set(ENGINES.names())
    assert states["simulated"] == "ok"
    assert states["scripted"] == "ready"
    assert states["embedded"] == "ok"
    assert (code, report["ok"], report["next"]) == (0, True, "ttc eval --strategy tree")


def test_the_text_shows_every_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("engines", "embedded", "ok", "fine"),
        Check("engines", "b", "missing", "absent", "pip install b"),
    ]
    monkeypatch.setattr(doctor, "GROUPS", (("engines", lambda: checks),))
    assert doctor.run(argparse.Namespace(json=False)) == 0
    assert capsys.readouterr().out == (
        "engines\n  + embedded         fine\n  - b                absent\n      pip install b\n"
        "\nnext: ttc eval --strategy tree\n"
    )


def test_a_broken_default_engine_is_exit_code_1_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check("engines", "embedded", "missing", "no torch", "pip install torch")
    monkeypatch.setattr(doctor, "GROUPS", (("engines", lambda: [check]),))
    assert doctor.run(argparse.Namespace(json=True)) == 1
    assert json.loads(capsys.readouterr().out)["next"] == "pip install torch"


def test_a_list_of_engines_that_cannot_be_read_is_not_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GROUPS", (("engines", lambda: 1 / 0),))
    assert doctor.run(argparse.Namespace(json=False)) == 1


@pytest.mark.parametrize("error", [RuntimeError("driver"), OSError("no such library"), ImportError("torch")])
def test_a_check_that_fails_is_a_line_and_not_an_exception(error: Exception) -> None:
    def fails() -> list[Check]:
        raise error

    (check,) = doctor._guarded("devices", fails)
    assert check.state == "broken"
    assert str(error) in check.detail


def test_a_missing_extra_is_shown_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def absent() -> None:
        raise MissingExtra("vllm", "vllm")

    monkeypatch.setattr(doctor, "ENGINES", _OneEngine(absent))
    (check,) = doctor._engines()
    assert (check.state, check.command) == ("missing", "pip install 'ttckit[vllm]'")


def test_a_data_folder_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("TTC_DATA", str(tmp_path / "absent"))
    (check,) = doctor._data()
    assert (check.state, check.command) == ("broken", "unset TTC_DATA")


class _OneEngine:
    """A registry with one engine."""

    def __init__(self, factory: object) -> None:
        self._factory = factory

    def names(self) -> tuple[str, ...]:
        return ("vllm",)

    def load(self, name: str) -> object:
        return self._factory
