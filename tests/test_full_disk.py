"""A disk without room ends a job with the file and the command that goes on; with room again that command does."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distill.generation.ledger import AnswerLedger
from evals.report.runs import read_runs
from tests.distill.pieces import outcome, unit
from tests.evals.test_report_runs import entry
from ttc.durable import about, replaced_folder

ROOT = Path(__file__).parents[1]
EVAL = "eval --engine simulated --limit 40 --strategy majority --n 4 --baseline none --concurrency 4 --out run"
TRAIN = "train run recipe.toml --seed 1 --out run"
RECIPE = """
[[stage]]
kind = "pretrain"
corpus = "cipher:symbols=8,max_steps=2"
steps = 4
rows = 4
hidden = 32
heads = 2
kv_heads = 1
mlp = 32
[[stage]]
kind = "grpo"
task = "cipher:symbols=8,max_steps=2,split=train"
held_out = "cipher:symbols=8,max_steps=2"
steps = 2
prompts = 2
n = 2
lr = 1e-3
save_every = 1
"""


def ttc(folder: Path, words: str, kilobytes: int | str = "unlimited") -> subprocess.CompletedProcess[str]:
    """A command in a folder where no file may grow over a size."""
    line = f"ulimit -f {kilobytes}; exec {shlex.quote(sys.executable)} -m ttc {words}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    ("words", "kilobytes", "file", "product"),
    [
        (EVAL, 60, "run/records.jsonl", "run/summary.json"),
        pytest.param(TRAIN, 20, "run/1-pretrain/model", "run/model/config.json", marks=pytest.mark.slow),
    ],
)
def test_a_job_names_file_and_command_and_goes_on_with_room(
    words: str, kilobytes: int, file: str, product: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    stopped = ttc(tmp_path, words, kilobytes)
    last = stopped.stderr.splitlines()[-1]
    assert stopped.returncode == 1, stopped.stderr
    assert last.startswith(f"ttc: error: {file}"), last
    assert last.endswith(f"; make room, then continue with: ttc {words}"), last
    assert not list(tmp_path.rglob("*.partial")), "the room of what was half written is free again"
    finished = ttc(tmp_path, words)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / product).is_file()


@pytest.mark.parametrize(
    "text",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        "[enforce fail at inline_container.cc:672] . unexpected pos 252736 vs 252628",
        "PytorchStreamWriter failed writing file data/0: file write failed",
    ],
)
def test_what_libraries_say_of_a_full_disk_names_the_folder(text: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '.*model'"), replaced_folder(tmp_path / "model"):
        raise RuntimeError(text)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_a_figure_without_room_is_named_whatever_its_format(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evals.report import chart

    @contextlib.contextmanager
    def full(path: Path) -> Iterator[Path]:
        with about(path):
            yield Path("/dev/full")

    monkeypatch.setattr(chart, "replaced_file", full)
    monkeypatch.setattr(chart, "_UNDATED", {ending: chart._UNDATED[ending]})
    with pytest.raises(OSError, match=rf"No space left on device.*{ending}"):
        chart.write_figures(tmp_path, {"toy": read_runs([entry("direct", 0.4, 90)])})


def test_a_ledger_of_answers_without_room_is_named(tmp_path: Path) -> None:
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        ledger._base.execute("PRAGMA max_page_count=1")
        with pytest.raises(OSError, match=r"No space left on device: '.*ledger.sqlite'"):
            for number in range(1000):
                ledger.record(unit(number), outcome(unit(number)))


def test_another_error_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), about(tmp_path):
        raise RuntimeError("shapes differ")
