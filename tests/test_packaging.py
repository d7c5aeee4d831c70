"""What is in the repository is in what users install."""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a git checkout")
def test_no_file_of_the_project_is_ignored_by_git() -> None:
    """The wheel is made of what `.gitignore` leaves: a folder whose name it lists would be missing in it."""
    listing = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_wheel_is_tested_in_a_checkout_whose_path_has_a_space(tmp_path: pathlib.Path) -> None:
    checkout = tmp_path / "a checkout"
    (checkout / ".venv").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.stamp-venv", ".venv/.stamp-base"):
        (checkout / name).touch()
    shutil.copy(ROOT / "Makefile", checkout)
    bare = {"PATH": os.environ["PATH"]}  # without what a `make test` hands on
    command = ["make", "-n", "test-wheel"]
    shown = subprocess.run(command, cwd=checkout, env=bare, capture_output=True, text=True, check=True)
    assert str(checkout / ".venv" / "bin" / "python") in shlex.split(shown.stdout.splitlines()[-1])
