"""The light core: without torch and its company, endpoints are measured, and all else says what to install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ttc.openai_server import Behaviour, OpenAIServer
from tests.ttc.openai_setup import CHAT
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import EXTRA_OF, MissingExtra, missing_extra

ROOT = Path(__file__).parents[1]
HOSTED = replace(CHAT, model="gpt-x", key="sk-test-123", limit_field="max_completion_tokens")
ROWS = [{"question": f"What is {i}+{7 - i}?", "answer": "7"} for i in range(4)]
AT_SERVER = ["--engine", "openai", "--model", "gpt-x", "--set"]
WORK = """
import contextlib, importlib.abc, io, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT, COMMANDS, URL = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())
from ttc.cli.cli import main
results = []
for command in COMMANDS:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as exc:
            code = exc.code
    results.append((code, out.getvalue(), err.getvalue()))
import ttc
engine = ttc.ENGINES.load("openai")("gpt-x", base_url=URL)
answer = ttc.run("3+4", engine=engine, strategy="majority", n=4)
result = ttc.evaluate([{"question": "3+4?", "answer": 7}], engine=engine)
loaded = sorted(set(ABSENT) & set(sys.modules))
print(json.dumps([results, answer.final, result.accuracy.value, loaded]))
"""
MISSING = (
    r"is not installed; run: .*pip install .+\[local(,serve)?\]'?"
    r"( --extra-index-url https://download\.pytorch\.org/whl/cpu| --torch-backend cpu)?"
    r"(; or name an endpoint, which needs no more: --base-url URL)?$"
)
OF_TORCH = [
    ["solve", "1+1"],
    ["chat"],
    ["eval", "--limit", "1"],
    ["quickstart", "--look"],
    ["quickstart", "--model", "Qwen/Qwen3-0.6B", "--look"],
    ["train", "run", "nano", "--out", "nano", "--seed", "1"],
    ["serve", "--port", "0"],
]


def run(folder: Path, commands: list[list[str]], url: str) -> tuple[Any, ...]:
    """Run commands and the Python door in one process without the packages of the extras."""
    environment = {key: value for key, value in os.environ.items() if key != "TTC_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", WORK, json.dumps([sorted(EXTRA_OF), commands, url])],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "sk-test-123"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_endpoints_are_measured_without_torch_and_what_needs_it_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with OpenAIServer(lambda: ScriptedEngine(lambda prompt, path, key: "\\boxed{7}"), HOSTED) as server:
        at_server = [*AT_SERVER, f"engine.base_url={server.url}"]
        work = [
            ["quickstart", "--base-url", server.url, "--data", "rows.jsonl", "--out", "q"],
            ["eval", *at_server, "--task", "rows.jsonl", "--strategy", "majority", "--n", "4", "--out", "e"],
            ["solve", "3+4", *at_server],
            ["compare", "q"],
            ["report", "e"],
            ["list", "engines"],
        ]
        task = ["eval", *at_server, "--strategy", "majority", "--task", "gsm8k", "--limit", "1"]
        results, final, accuracy, loaded = run(tmp_path, [*work, *OF_TORCH, task], server.url)
    assert (final, accuracy, loaded) == ("7", 1.0, [])
    for command, (code, out, err) in zip(work, results, strict=False):
        assert code == 0, (command, err)
        assert out
    assert re.search(r"no figure.png: matplotlib is not installed; run: .*pip install .+\[plots\]", results[0][2])
    assert (tmp_path / "e" / "report.html").is_file() and not (tmp_path / "e" / "figure.png").exists()
    refusals = results[len(work) : -1]
    for command, (code, _, err) in zip(OF_TORCH, refusals, strict=True):
        assert code == 2, (command, err)
        assert re.search(MISSING, err.strip()), (command, err)
        assert ("--base-url URL" in err) == (command[0] in ("solve", "chat", "eval", "quickstart")), (command, err)
    assert re.search(r"datasets is not installed; run: .*pip install .+\[data\]", results[-1][2])


def test_a_vllm_server_is_measured_without_the_packages_that_its_tokenizer_wants(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    as_vllm = Behaviour(model="gpt-x", max_model_len=4096, root=str(ROOT / "ttc" / "nano" / "teacher"))
    with OpenAIServer(lambda: ScriptedEngine(lambda prompt, path, key: "\\boxed{7}"), as_vllm) as server:
        command = ["quickstart", "--base-url", server.url, "--data", "rows.jsonl", "--out", "q"]
        ((code, out, err),), *_ = run(tmp_path, [command], server.url)
    assert code == 0, err
    assert re.search(r"token ids +perhaps, with its tokenizer: .+ not installed; run: .*pip install .+\[local\]", out)
    assert "proposed: majority of 8" in out


def test_a_module_of_our_own_that_is_missing_is_no_missing_package() -> None:
    own = ModuleNotFoundError("No module named 'ttc.nowhere'", name="ttc.nowhere")
    assert missing_extra(own) is own
    torch = missing_extra(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"))
    assert isinstance(torch, MissingExtra) and (torch.package, torch.extra) == ("torch", "local")
    assert missing_extra(torch) is torch


@pytest.mark.parametrize("package", sorted(EXTRA_OF))
def test_the_extra_that_is_named_brings_the_package(package: str) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = project["optional-dependencies"][EXTRA_OF[package]]
    assert any(re.match(rf"{package.replace('_', '-')}\b", text) for text in brought)
    assert not any(re.match(rf"{package.replace('_', '-')}\b", text) for text in project["dependencies"])
