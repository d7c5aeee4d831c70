"""The machine: processor, memory, disk, devices, and where local copies of datasets are looked for."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess
import sys

from ttc.commands._doctor.check import Check

__all__ = ["data", "devices", "free_gib", "has_gpu", "machine"]

GIB = 2**30


def machine() -> list[Check]:
    """Check the interpreter, and say what there is."""
    python = ".".join(map(str, sys.version_info[:3]))
    new_enough = sys.version_info >= (3, 11)
    return [
        Check("machine", "python", "ok" if new_enough else "broken", f"{python} at {sys.executable}"),
        Check("machine", "system", "ok", f"{platform.system()} {platform.machine()}"),
        Check("machine", "processor", "ok", f"{_cores()} cores{_bf16_text()}"),
        Check("machine", "memory", "ok", _memory_text()),
        Check("machine", "disk", "ok", f"{shutil.disk_usage(pathlib.Path.cwd()).free / GIB:.0f} GiB free here"),
    ]


def devices() -> list[Check]:
    """List the GPUs that torch sees, and the threads it would use without one."""
    import torch

    checks = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        detail = f"{properties.name}, {free / GIB:.0f} GiB free of {total / GIB:.0f}"
        checks.append(Check("devices", f"cuda:{index}", "ok", detail))
    if not checks and shutil.which("nvidia-smi") and torch.version.cuda is None:
        detail = f"there is a driver, but torch {torch.__version__} is a CPU build"
        checks.append(Check("devices", "cuda", "missing", detail, "pip install --force-reinstall torch==2.13.0"))
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    checks.append(Check("devices", "cpu", "ok", f"torch {torch.__version__}, OMP_NUM_THREADS {threads}"))
    return checks


def data() -> list[Check]:
    """Say where local copies of datasets are looked for."""
    folder = os.environ.get("TTC_DATA")
    if folder is None:
        return [Check("data", "TTC_DATA", "missing", "optional: a folder with local copies of datasets", None)]
    if not pathlib.Path(folder).is_dir():
        return [Check("data", "TTC_DATA", "broken", f"{folder} is not a folder", "unset TTC_DATA")]
    num_files = sum(1 for path in pathlib.Path(folder).iterdir() if ".jsonl" in path.name)
    return [Check("data", "TTC_DATA", "ok", f"{num_files} files in {folder}")]


def free_gib() -> float:
    """Return the memory that is free for new processes, in GiB; 0 where it cannot be read."""
    return _memory().get("MemAvailable", 0.0)


def has_gpu() -> bool:
    """Whether a driver of NVIDIA sees a GPU; torch is not asked, it may be the CPU build or broken."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return pathlib.Path("/proc/driver/nvidia/gpus").is_dir()
    try:
        process = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU" in process.stdout


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bf16_text() -> str:
    """Say whether the processor multiplies bf16 itself (x86 on Linux); silent where it cannot be read."""
    info = pathlib.Path("/proc/cpuinfo")
    if not info.is_file():
        return ""
    lines = [line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))]
    flags = {flag for line in lines for flag in line.split()}
    names = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    return f", bf16 in hardware ({', '.join(names)})" if names else ", no bf16 in hardware: fp32 may be faster"


def _memory_text() -> str:
    memory = _memory()
    if memory:
        return f"{memory['MemAvailable']:.1f} GiB free of {memory['MemTotal']:.1f}"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIB:.1f} GiB"


def _memory() -> dict[str, float]:
    """Name to GiB, as Linux tells it; empty elsewhere."""
    info = pathlib.Path("/proc/meminfo")
    if not info.is_file():
        return {}
    fields = (line.split(":", 1) for line in info.read_text().splitlines())
    return {name: int(value.split()[0]) / 2**20 for name, value in fields}
