"""What is in the repository is in what users install."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a git checkout")
def test_no_file_of_the_project_is_ignored_by_git() -> None:
    """The wheel is made of what `.gitignore` leaves: a folder whose name it lists would be missing in it."""
    listing = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""
