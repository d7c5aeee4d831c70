"""What a program would find inside bubblewrap if nothing else held it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ttc.sandbox import probe
from ttc.sandbox.limits import ROOT, ResourceLimits, Tier
from ttc.sandbox.pool import Sandbox
from ttc.sandbox.probe import candidates, failure
from ttc.sandbox.running import Script

LIMITS = ResourceLimits(wall_s=10.0, cpu_s=10.0)
INSIDE = """
import os
print(os.getppid(), dict(os.environ), os.path.exists("/proc"), os.path.exists("/etc/passwd"), os.path.exists("/home"))
try:
    os.unshare(0x10000000) if hasattr(os, "unshare") else print("no call")
except OSError:
    print("refused")
try:
    open("/ttc-hostile", "w")
except OSError as exc:
    print(type(exc).__name__)
"""
THREADS = """
import threading, time
threading.stack_size(65536)
count = 1
try:
    while count < 500:
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
import os
os.write(1, str(count).encode())
os._exit(0)
"""


def tier_called(name: str) -> Tier:
    for tier in candidates():
        if isinstance(tier, Tier) and tier.name == name and not failure(tier):
            return tier
    pytest.skip(f"{name} does not work here")


def test_the_zygote_is_the_first_process_of_a_bare_namespace() -> None:
    tier = dataclasses.replace(tier_called("bubblewrap"), seccomp=False)
    with Sandbox(tier, workers=1) as sandbox:
        lines = sandbox.submit(Script(INSIDE, LIMITS)).result().output.splitlines()
    assert lines[0] == "1 {} False False False"
    assert lines[-1] in ("PermissionError", "OSError")


def test_it_starts_with_nothing_of_the_environment_and_no_way_to_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    command = probe.bwrap_prefix()
    if command is None:
        pytest.skip("bwrap is not installed")
    assert {"--clearenv", "--as-pid-1", "--die-with-parent", "--new-session", "--unshare-net"} <= set(command)
    assert ("--disable-userns" in command) == (os.geteuid() != 0)
    assert "--proc" not in command
    monkeypatch.setenv("PATH", "/nowhere")
    assert probe.bwrap_prefix() is None


@pytest.mark.parametrize("name", ["landlock", "bubblewrap"])
def test_threads_are_counted(name: str) -> None:
    with Sandbox(tier_called(name), workers=1) as sandbox:
        ran = sandbox.submit(Script(THREADS, dataclasses.replace(LIMITS, threads=20))).result()
    assert 10 <= int(ran.output) <= 60


def test_all_that_the_zygote_imports_is_inside(tmp_path: Path) -> None:
    """Also where bubblewrap itself does not work: its other tests are skipped there."""
    for name in probe.NEEDED:
        source, place = ROOT / name, tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place)
    modules = "cell, driving, kernel, limits, wire, zygote"
    found = subprocess.run(
        [sys.executable, "-S", "-c", f"from ttc.sandbox import {modules}; import ttc; print(ttc.__file__)"],
        cwd=tmp_path, env={}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(tmp_path))
