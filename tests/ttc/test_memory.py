"""What a process settles about memory, seen in processes of their own, since it holds for a whole one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ttc.engines.embedded.core import batch
from ttc.engines.shared.compute import free_memory

SIZE = 8 << 20
SCRIPT = f"""
import ctypes, json, os
from ttc.cli.process import keep_little

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

c = ctypes.CDLL(None)
c.malloc.restype, c.mallinfo2.restype = ctypes.c_void_p, Info
keep_little()
for _ in range(3):
    before = c.mallinfo2().hblkhd
    block = c.malloc({SIZE})
    taken = c.mallinfo2().hblkhd - before
    c.free(ctypes.c_void_p(block))
left = c.mallinfo2().hblkhd - before
print(json.dumps({{"taken": taken, "left": left, "kernels": os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]}}))
"""
glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33"
)


def settled(**environ: str) -> dict[str, object]:
    """What SCRIPT prints, where the user has set `environ`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "ONEDNN"))}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**clean, **environ})
    return dict(json.loads(done.stdout))


@glibc
def test_large_blocks_go_back_to_the_system_however_many_were_freed_before() -> None:
    found = settled()
    assert SIZE <= int(str(found["taken"])) < 2 * SIZE
    assert (found["left"], found["kernels"]) == (0, "32")


@glibc
def test_what_the_user_has_set_stays() -> None:
    found = settled(GLIBC_TUNABLES="glibc.malloc.mmap_threshold=33554432", ONEDNN_PRIMITIVE_CACHE_CAPACITY="5")
    assert (found["taken"], found["kernels"]) == (0, "5")
    assert settled(MALLOC_MMAP_THRESHOLD_="33554432")["taken"] == 0


def test_a_command_looks_for_cycles_less_often_than_python_does() -> None:
    script = "import gc; from ttc.cli.process import collect_rarely; usual = gc.get_threshold(); collect_rarely()"
    shown = "print(gc.get_threshold()[0] >= 10 * usual[0], gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", f"{script}; {shown}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def machine(root: Path, available: int | None, limit: str | None = None, held: int = 0, cached: int = 0) -> Path:
    """Folders of the system that say what is free, in KiB, and what a container may hold and holds, in bytes."""
    if available is not None:
        (root / "proc").mkdir()
        (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {available} kB\n")
    if limit is not None:
        group = root / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{held}\n")
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")
    return root


def test_what_is_free_is_what_the_machine_has_left_within_the_limit_of_a_container(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(5)]
    for folder in folders:
        folder.mkdir()
    assert free_memory(machine(folders[0], 5000)) == 5000 * 1024
    assert free_memory(machine(folders[1], 5000, "max")) == 5000 * 1024
    assert free_memory(machine(folders[2], 5000, "3000000", 2000000, 500000)) == 1500000
    assert free_memory(machine(folders[3], 1, "3000000")) == 1024
    assert free_memory(machine(folders[4], None)) is None


@pytest.mark.parametrize("free", [None, 4000])
def test_keys_and_values_take_a_quarter_of_what_is_free_or_of_all_where_nobody_tells(
    free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(batch, "free_memory", lambda: free)
    assert batch.default_kv_bytes(torch.device("cpu")) == (whole if free is None else free) // 4
