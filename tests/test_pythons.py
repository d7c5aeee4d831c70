"""Which interpreters `make test-pythons` takes, and what it makes of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import pythons

OWN = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture
def interpreter(tmp_path: Path):
    """Make a program that answers as a Python of the given version, or as one that cannot make environments."""

    def make(name: str, number: str | None) -> str:
        path = tmp_path / name / "python3"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho {number}\n" if number else "#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_each_other_version_is_tested_once_and_old_ones_not_at_all(interpreter) -> None:
    names = {name: interpreter(name, number) for name, number in {"a": "3.99", "b": "3.12", "c": "3.99"}.items()}
    rest = [interpreter("own", OWN), interpreter("old", "3.10"), interpreter("broken", None), "/nowhere/python3"]
    expected = {"3.12": names["b"], "3.99": names["a"]}
    expected.pop(OWN, None)
    assert pythons.others([*names.values(), *rest]) == expected


def test_those_of_pyenv_are_found_without_being_on_the_path(
    interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    python = interpreter(".pyenv/versions/3.99.1/bin", "3.99")
    assert list(pythons.candidates(tmp_path)) == [python]


def test_a_named_one_that_cannot_be_used_fails_and_none_at_all_does_not(
    interpreter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pythons.main([interpreter("broken", None)]) == pythons.main([interpreter("old", "3.10")]) == 1
    assert "apt install python3-venv" in capsys.readouterr().out
    monkeypatch.setattr(pythons, "candidates", lambda home: [])
    assert pythons.main([]) == 0


def test_the_first_command_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]
        for text, code in (("a", 0), ("b", 3), ("c", 0))
    ]
    monkeypatch.setattr(pythons, "commands", lambda number, python: steps)
    code, output = pythons.run("3.99", "python3.99")
    assert (code, output.splitlines()[-1]) == (3, "b")


def test_the_files_exist() -> None:
    assert all((pythons.ROOT / name).is_file() for name in pythons.FILES)
