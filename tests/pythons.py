"""Run what hangs on the interpreter with each other Python found here: `python -m tests.pythons` (`make test-pythons`).

Each gets an environment of its own in `.venvs`, with the light core and pytest: no torch, so that it is made in half a
minute. Every file is compiled with warnings as errors, then the tests of `FILES` run: what the toolkit asks of Python
itself (processes, signals, files, types at run time) and of its standard library (the sandbox). Words name
interpreters instead of those on PATH, of pyenv and of uv:

    python -m tests.pythons python3.12 /opt/python3.14/bin/python

Prints a line for each, and all output of one that fails; the exit code is then 1. Left out: what needs torch, for which
`make test PYTHON=python3.13 VENV=.venvs/all-3.13` makes a whole environment; versions that the package does not allow.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
OLDEST, NEWEST = 11, 20
"""Minor versions to look for."""
VERSION = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
PACKAGES = ("ttc", "evals", "train", "distill", "serve", "tests")
NAMES = (
    "concurrent", "config", "durable", "own_packages", "plugin_fault", "recipe", "records", "sandbox_running",
    "sandbox_seccomp", "sandbox_values", "session", "stream", "values", "verifiers_pool",
)  # fmt: skip
FILES = ("tests/test_light_core.py", *(f"tests/ttc/test_{name}.py" for name in NAMES))


def candidates(home: pathlib.Path) -> Iterator[str]:
    """Interpreters on PATH by version, then those of pyenv and uv below `home`."""
    yield from filter(None, (shutil.which(f"python3.{minor}") for minor in range(OLDEST, NEWEST)))
    for pattern in (".pyenv/versions/3.*/bin/python3", ".local/share/uv/python/cpython-3.*/bin/python3"):
        yield from map(str, sorted(home.glob(pattern)))


def version(python: str) -> str | None:
    """The version of an interpreter that starts and can make environments, such as 3.12; else None."""
    try:
        done = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def others(pythons: Sequence[str]) -> dict[str, str]:
    """Version to the first interpreter of it, oldest first; without this one's version and those that are too old."""
    versions = [(version(python), python) for python in pythons]
    own = ".".join(map(str, sys.version_info[:2]))
    rest = [(number, python) for number, python in versions if number not in (None, own)]
    first = {str(number): python for number, python in reversed(rest) if _minor(str(number)) >= OLDEST}
    return dict(sorted(first.items(), key=lambda item: _minor(item[0])))


def _minor(number: str) -> int:
    return int(number.partition(".")[2])


def commands(number: str, python: str) -> list[list[str]]:
    """What makes the environment of an interpreter and runs the tests there."""
    place = str(ROOT / ".venvs" / number)
    own = f"{place}/bin/python"
    tools = ("pytest", "pytest-xdist", "hypothesis")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", "constraints.txt"]
    options = ("--quiet", "-p", "no:cacheprovider", "--numprocesses", "auto", "--dist", "loadfile")
    return [
        [python, "-m", "venv", place],
        [own, *install, "--editable", ".", *tools],
        [own, "-W", "error", "-m", "compileall", "-q", "-f", *PACKAGES],
        [own, "-m", "pytest", *options, *FILES],
    ]


def run(number: str, python: str) -> tuple[int, str]:
    """The exit code of the first command that fails, else 0, and the output of the last one."""
    done = None
    for command in commands(number, python):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return done.returncode, f"{' '.join(command)}\n{done.stdout}"
    return 0, done.stdout if done else ""


def main(words: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Run the tests with every interpreter; 1 when they fail with one, or one that was named cannot be used."""
    codes = []
    for word in words:
        number = version(word)
        if number is None or _minor(number) < OLDEST:
            say(
                f"failed  {word}: it is older than 3.{OLDEST}, does not start, or lacks venv (apt install python3-venv)"
            )
            codes.append(1)
    pythons = others(words or list(candidates(pathlib.Path.home())))
    for number, python in pythons.items():
        code, output = run(number, python)
        say(f"{'failed' if code else 'ok':7} {number} ({python}): {output.rstrip().rpartition(chr(10))[2]}")
        if code:
            say(output)
        codes.append(code)
    if not codes:
        say("no other Python is here: name one, as in make test-pythons PYTHONS=/opt/python3.13/bin/python3")
    return int(any(codes))


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main(sys.argv[1:]))
