"""What is typed wrong is refused by name: no internal error, no traceback, no hang, no crash, whatever the command."""

from __future__ import annotations

import contextlib
import io
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import ttc.nano
from tests.wrong_invocations import NAMING, WrongInvocation, wrong_invocations
from ttc.cli.cli import main

pytestmark = pytest.mark.usefixtures("without_matplotlib")

MODEL = Path(ttc.nano.__file__).parent / "teacher"
PATIENCE_S = 120
"""Of the first line that loads torch on a busy machine; all others end in milliseconds."""
SPEC = f"""
method = "rejection"
student = "{MODEL}"
teacher = "{MODEL}"
task = "chain:split=train,count=8"
held_out = "chain"
n = 2
seed = 1
"""


class Hang(BaseException):
    """A command that does not end; no handler of the toolkit's own takes it."""


def outcome(words: list[str]) -> tuple[int, str]:
    """The exit code and what went to stderr."""

    def give_up(*_: object) -> None:
        raise Hang(words)

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    err = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as ended:
                code = int(ended.code or 0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, err.getvalue()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for the names in braces."""
    folder = tmp_path_factory.mktemp("battery")
    run, spec = folder / "run", folder / "job.toml"
    spec.write_text(SPEC)
    done = ["eval", "--engine", "simulated", "--limit", "3", "--strategy", "majority", "--n", "2", "--baseline", "none"]
    assert outcome([*done, "--out", str(run)])[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as busy:
        names = {"run": run, "file": run / "run.json", "model": MODEL, "spec": spec, "port": busy.getsockname()[1]}
        yield {name: str(value) for name, value in names.items()}


def commands() -> list[str]:
    return sorted({wrong.words[0] for wrong in wrong_invocations()})


def test_the_battery_is_larger_than_the_one_by_hand_and_covers_every_command() -> None:
    assert len(wrong_invocations()) > 232
    assert set(commands()) >= {"calibrate", "chat", "compare", "distill", "eval", "quickstart", "serve", "train"}


@pytest.mark.parametrize("command", commands())
def test_a_wrong_option_is_refused_by_name(
    command: str, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TTC_DEBUG", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    faults = []
    for number, wrong in enumerate(each for each in wrong_invocations() if each.words[0] == command):
        names = {**places, "out": str(tmp_path / f"out-{number}")}
        faults += [f"{wrong}: {fault}" for fault in _faults(wrong, names)]
    assert not faults, "\n".join(faults)


def _faults(wrong: WrongInvocation, names: dict[str, str]) -> Iterator[str]:
    words = list(wrong.words)
    for name, value in names.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    try:
        code, err = outcome(words)
    except Hang:
        yield f"no end within {PATIENCE_S} s"
        return
    except BaseException as error:
        yield f"{type(error).__name__} came through: {error}"
        return
    last = (err.strip().splitlines() or [""])[-1]
    if code == 0 or code == 130:
        yield f"exit code {code}: {last}"
    elif "internal error" in err or "Traceback" in err:
        yield last
    elif command_names(wrong) and not wrong.is_named_in(last):
        yield f"unnamed: {last}"


def command_names(wrong: WrongInvocation) -> bool:
    """Whether the line has no other fault."""
    return wrong.words[0] in NAMING or wrong.words[:2] in (("train", "plan"), ("distill", "plan"))
