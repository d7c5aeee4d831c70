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


WRITING = {
    "eval": ("eval", "--engine", "simulated", "--strategy", "direct", "--limit", "1", "--out"),
    "train run": ("train", "run", "cipher-grpo", "--seed", "1", "--out"),
    "train adapt": ("train", "adapt", str(MODEL), "--out"),
    "train merge": ("train", "merge", str(MODEL), "adapter", "--out"),
    "distill plan": ("distill", "plan", "{spec}", "--out"),
    "distill run": ("distill", "run", "{spec}", "--out"),
}
"""Commands that write a folder, whose name comes next."""
BAD_FOLDERS = {
    "itself": ("itself", "{there} is a link that leads back to itself; delete it, or name another"),
    "inside itself": ("itself/run", "{there} is a link that leads back to itself; delete it, or name another"),
    "broken link": ("broken", "{there} is a link to a folder that does not exist; create it, or name another"),
    "inside a broken link": ("broken/run", "{there} is a link to a folder that does not exist; create it, or name"),
    "file": ("file", "{there} is a file; name a folder"),
    "inside a file": ("file/run", "{there} is a file; name a folder"),
    "inside what nobody writes to": ("/proc/self/run", "/proc/self cannot be written to"),
    "too long": ("x" * 300, " cannot be written to (File name too long); name another"),
}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("kind", BAD_FOLDERS)
def test_a_folder_that_cannot_be_written_is_told_by_option_reason_and_fix(
    command: str, kind: str, places: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "broken").symlink_to("unmounted")
    (tmp_path / "file").write_text("text")
    before = sorted(tmp_path.rglob("*"))
    name, reason = BAD_FOLDERS[kind]
    out, there = tmp_path / name, tmp_path / name.partition("/")[0]
    code, err = outcome([*(word.replace("{spec}", places["spec"]) for word in WRITING[command]), str(out)])
    told = err.strip().splitlines()
    assert code == 2 and told[-1].startswith(f"ttc: error: --out {out}: "), err
    assert reason.format(there=there) in told[-1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("fix", ["make that folder", "delete the link", "name another"])
def test_what_is_said_to_be_done_about_a_folder_lets_the_command_run(fix: str, tmp_path: Path) -> None:
    out = tmp_path / "link"
    out.symlink_to("unmounted" if fix == "make that folder" else "link")
    assert outcome([*WRITING["eval"], str(out)])[0] == 2
    if fix == "make that folder":
        (tmp_path / "unmounted").mkdir()
    elif fix == "delete the link":
        out.unlink()
    out = tmp_path / "another" if fix == "name another" else out
    assert outcome([*WRITING["eval"], str(out)])[0] == 0
    assert list(out.rglob("records.jsonl"))


@pytest.mark.parametrize("command", ["train", "distill"])
def test_a_page_goes_into_a_file_and_is_refused_where_that_is_a_folder(
    command: str, places: dict[str, str], tmp_path: Path
) -> None:
    code, err = outcome([command, "report", places["run"], "--out", str(tmp_path)])
    assert (code, err) == (2, f"ttc: error: --out {tmp_path} is a folder; name a file in it\n")


@pytest.mark.parametrize(
    "words",
    [
        ("train", "run", "cipher-grpo", "--seed", "1", "--out", "{out}", "--device", "auto"),
        ("train", "gate", "{run}", "--seed", "1", "--device", "auto"),
        ("distill", "run", "{spec}", "--out", "{out}", "--set", "device=auto"),
        ("distill", "plan", "{spec}", "--out", "{out}", "--set", "device=tpu"),
    ],
)
def test_a_device_that_training_does_not_take_is_refused_with_those_that_it_does(
    words: tuple[str, ...], places: dict[str, str], tmp_path: Path
) -> None:
    names = {**places, "out": tmp_path / "out"}
    code, err = outcome([word.format(**names) for word in words])
    assert code == 2 and "device must be cpu or cuda, got " in err, err
    assert list(tmp_path.iterdir()) == []
