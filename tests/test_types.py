"""The Python door is typed: mypy --strict finds each mistake of a user's file, and nothing in one without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[1]
RIGHT, WRONG = (ROOT / "tests" / "data" / f"door_{name}.py" for name in ("right", "wrong"))


@pytest.fixture(scope="module")
def lines_with_errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """File -> lines at which mypy finds an error, in a folder away from this project's settings."""
    folder = tmp_path_factory.mktemp("user")
    for file in (RIGHT, WRONG):
        shutil.copy(file, folder)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir=cache"]
    done = subprocess.run(
        [*command, RIGHT.name, WRONG.name],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    errors: dict[str, set[int]] = {}
    for name, line in re.findall(r"^(\S+?):(\d+): error:", done.stdout, re.MULTILINE):
        errors.setdefault(name, set()).add(int(line))
    return errors


def test_each_deliberate_mistake_is_found(lines_with_errors: dict[str, set[int]]) -> None:
    texts = WRONG.read_text(encoding="utf-8").splitlines()
    mistakes = {number for number, text in enumerate(texts, start=1) if "# wrong:" in text}
    assert len(mistakes) > 20
    assert lines_with_errors[WRONG.name] == mistakes


def test_a_file_without_a_mistake_is_clean(lines_with_errors: dict[str, set[int]]) -> None:
    assert RIGHT.name not in lines_with_errors


def test_every_package_that_is_installed_says_that_it_is_typed() -> None:
    for package in ("ttc", "evals", "train", "distill", "serve"):
        assert (ROOT / package / "py.typed").is_file()
