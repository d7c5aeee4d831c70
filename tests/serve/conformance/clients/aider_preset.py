"""aider: edits a file, by the model and by a preset, at temperature 0 as it always asks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]


def main() -> None:
    for name in (MODEL, f"{MODEL}:majority-8"):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "hello.py"
            file.write_text("")
            command = [str(pathlib.Path(sys.executable).with_name("aider")), "--model", f"openai/{name}"]
            command += ["--openai-api-base", f"{URL}/v1", "--openai-api-key", "none", "--no-git", "--yes-always"]
            command += ["--edit-format", "diff", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"]
            command += ["--map-tokens", "0", "--no-gitignore", "--message", "Print hello.", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=folder)
            assert "hello" in file.read_text(), done.stdout[-2000:] + done.stderr[-2000:]


main()
