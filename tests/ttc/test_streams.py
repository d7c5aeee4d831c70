"""A command survives what its streams are: closed, narrow, not text, or without a reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ttc.cli.cli import main
from ttc.core import Message, Problem, half_character, join_surrogates
from ttc.engines.openai.wire import TextReader
from ttc.errors import ConfigError

TTC = f"{sys.executable} -m ttc"
EVAL = f"{TTC} eval --engine simulated --limit 2 --strategy majority --n 2 --baseline none --out run"
ROW = '{"id":1,"target":"1","text":"1"}'


def shell(line: str, folder: Path, **variables: str) -> tuple[int, str, str]:
    """Exit code of the first command of a pipe, output, errors."""
    root, bare = str(Path(__file__).parents[2]), folder / "bare"
    bare.mkdir(exist_ok=True)
    (bare / "matplotlib.py").write_text("raise ModuleNotFoundError(name=__name__)  # nobody looks at a figure here\n")
    environment = {**os.environ, "PYTHONPATH": f"{bare}:{root}", **variables}
    command = ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=120)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_else(closed: str, tmp_path: Path) -> None:
    code, _, errors = shell(f"{EVAL} {closed}", tmp_path)
    assert (code, (tmp_path / "run/report.html").is_file()) == (0, True), errors
    assert len((tmp_path / "run/records.jsonl").read_text().splitlines()) == 2, "the number of no closed stream"


def test_a_reader_that_leaves_ends_a_command_without_an_error(tmp_path: Path) -> None:
    code, output, errors = shell(f"yes '{ROW}' | {TTC} verify --verifier exact | head -1", tmp_path)
    assert output.startswith('{"id": 1, "verdict": "correct"')
    assert "ttc:" not in errors
    assert shell(f"{TTC} list strategies | head -1", tmp_path)[0] == 0


def test_a_job_whose_messages_nobody_reads_any_more_goes_on(tmp_path: Path) -> None:
    code, _, _ = shell(f"({EVAL}; echo $? > code) 2>&1 | true", tmp_path)
    assert (tmp_path / "code").read_text() == "0\n"
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_output_that_lacks_our_signs_gets_plain_ones(encoding: str, tmp_path: Path) -> None:
    code, output, errors = shell(EVAL, tmp_path, PYTHONIOENCODING=encoding)
    assert (code, "Error" in errors) == (0, False), errors
    assert "majority N=2" in output
    assert ("–" in output) == (encoding == "utf-8")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{TTC} solve $'1\\xff' --engine simulated", "holds half of a character ('\\udcff' at 1)"),
        (f"{TTC} solve - --engine simulated < bytes", "standard input is not utf-8: invalid start byte at byte 1"),
        (f"{TTC} chat --engine simulated < bytes", "standard input is not utf-8: invalid start byte at byte 1"),
        (f"{EVAL} --task half.jsonl", "half.jsonl, line 2: question: holds half of a character"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"1\xff\n")
    (tmp_path / "half.jsonl").write_text('{"question": "1", "answer": "1"}\n{"question": "\\ud83d", "answer": "1"}\n')
    code, _, errors = shell(line, tmp_path, LC_ALL="C.UTF-8")
    assert (code, words in errors.splitlines()[-1]) == (2, True), errors


def test_a_byte_order_mark_is_no_part_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\n1+1,2\r\n")
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "1+1", "answer": "2"}\n')
    (tmp_path / "task.toml").write_bytes(
        b'\xef\xbb\xbfdata = "rows.jsonl"\nprompt = "{question}"\ntarget = "answer"\nkind = "math"\n'
    )
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbflimit = 1\n")
    (tmp_path / "answers.jsonl").write_bytes(b"\xef\xbb\xbf" + ROW.encode() + b"\n")
    for number, task in enumerate(("rows.csv", "rows.jsonl", "task.toml")):
        assert main([*EVAL.split()[3:], "--out", f"run{number}", "--config", "recipe.toml", "--task", task]) == 0
    assert shell(f"{TTC} verify --verifier exact < answers.jsonl", tmp_path)[0] == 0


def test_halves_that_belong_together_are_joined_and_others_replaced() -> None:
    assert join_surrogates("a\ud83d\ude00b\ud83d") == "a\U0001f600b\ufffd"
    assert join_surrogates("é") == "é"
    assert half_character("ab\ud83d") == 2
    with pytest.raises(ConfigError, match="problem 'p': its user message holds half"):
        Problem("p", (Message("user", "\ud83d"),))


def test_a_reply_with_half_a_character_is_text_again() -> None:
    reader = TextReader((), (), False, None)
    for delta in ({"content": "4 \ud83d"}, {"content": "\ude00 \ud83d"}, {"reasoning": "\ude00"}):
        reader.add({"choices": [{"delta": delta}]})
    reader.add({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert reader.result().text == "<think>\ufffd</think>4 \U0001f600 \ufffd"


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.0])
def test_ctrl_c_while_a_model_loads_ends_in_one_line(seconds: float, tmp_path: Path) -> None:
    words = [*TTC.split(), "eval", "--strategy", "direct", "--limit", "500", "--out", "run"]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    if process.returncode == -signal.SIGINT or "init_import_site" in errors:
        pytest.skip("the interpreter itself had not started yet")
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("ttc: interrupted")
    assert "Traceback" not in errors


@pytest.mark.parametrize("module", ["ttc.cli.process", "ttc.errors", "ctypes"])
def test_ctrl_c_while_the_command_line_itself_is_imported_ends_in_one_line(module: str) -> None:
    code = f"""
import importlib.abc, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.modules.pop({module!r}, None)
import runpy
runpy.run_module("ttc", run_name="__main__", alter_sys=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "ttc: interrupted\n")


SWALLOWED = """
import signal, time, weakref
from ttc.cli.process import send_again

class Module: ...

send_again()
module = Module()
callback = weakref.ref(module, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del module  # as importlib drops the lock of a module
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_a_callback_swallows_arrives_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=15)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


SLOW_START = """
import threading, time
start = threading.Thread.start

def slow(thread):
    start(thread)
    time.sleep(0.1)

threading.Thread.start = slow
"""


def test_an_interrupt_arrives_where_the_machine_takes_long_to_send_it_again() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW_START + SWALLOWED], capture_output=True, text=True, timeout=15)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


UNRETRIEVED = """
import asyncio, contextlib
from ttc.cli.process import silence_interrupted_tasks

async def interrupted(error):
    raise error

async def main():
    tasks = [asyncio.ensure_future(interrupted(error)) for error in (ValueError("told"), KeyboardInterrupt())]
    await asyncio.sleep(60)

silence_interrupted_tasks()
with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
"""


def test_a_task_that_an_interrupt_ended_is_not_told_of_and_one_that_failed_is() -> None:
    done = subprocess.run([sys.executable, "-c", UNRETRIEVED], capture_output=True, text=True, timeout=15)
    assert done.returncode == 0 and "ValueError: told" in done.stderr and "KeyboardInterrupt" not in done.stderr
