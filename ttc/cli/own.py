"""Our packages beside others of the same names: `ttc` runs its own, and reports what has overwritten them.

`distill`, `evals`, `serve` and `train` are names that other distributions and users' files have, too. A process of
`ttc` finds them in one place only, beside the package `ttc` that it runs, whatever the working folder and PYTHONPATH
hold. Files that another installer has overwritten there are detected by our distribution's record of files and digests,
and the culprit by the records of the other distributions. Cost: at the start one small file, and four digests; records
of others are read only to name a culprit. Left out: a file `ttc.py` that `python -m ttc` runs instead; which of two
copies of this toolkit runs.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ttc.errors import DISTRIBUTION, ConfigError, HiddenPackage, install_again, missing_extra, pip

PACKAGES = ("distill", "evals", "serve", "train")
PLACE = Path(__file__).resolve().parents[2]
"""The folder that holds the package `ttc` which runs, and ours beside it."""
_INITS = tuple(f"{name}/__init__.py" for name in PACKAGES)


@dataclass(frozen=True, slots=True)
class Rival:
    """Something else with a name of ours: `path` is its file or folder, `owner` the distribution it came with."""

    name: str
    path: Path
    owner: str | None

    @property
    def text(self) -> str:
        """What it is, and which import it intercepts."""
        if self.owner is None:
            return f"{self.path} has the name of this toolkit's package {self.name}"
        return f"distribution {self.owner} has a package {self.name}, too ({self.path})"

    @property
    def command(self) -> str:
        """The command that removes it."""
        if self.owner is not None:
            return _uninstall([self.owner])
        mine = self.path.with_name(f"my_{self.path.name}")
        return f"mv {shlex.quote(str(self.path))} {shlex.quote(str(mine))}"


class _OwnPackages:
    """Finds our packages in their place, before any other finder."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(PLACE)], target) if name in PACKAGES else None


def run_own() -> None:
    """Make this process import our packages from their place only."""
    finder: Any = _OwnPackages()
    sys.meta_path.insert(0, finder)


def check_own() -> None:
    """Refuse to run if another distribution's files have replaced ours.

    Raises:
        ConfigError: names one of the files, who wrote it, and the command that repairs it.
    """
    damage = damage_text(_INITS)
    if damage is not None:
        raise ConfigError("; run: ".join(damage))


def damage_text(names: Iterable[str] | None = None) -> tuple[str, str] | None:
    """Return which of our files (default: any) differ from what was installed, and the repair command; or None."""
    damaged = list(_damaged(names))
    if not damaged:
        return None
    owners = sorted({owner for name in damaged for owner in _owners(name)})
    verb = "is gone" if not (PLACE / damaged[0]).exists() else "is not the file that was installed"
    others = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    cause = f": distribution {' and '.join(owners)} has the same files" if owners else ""
    repair = [_uninstall(owners)] if owners else []
    return f"{PLACE / damaged[0]} of this toolkit{others} {verb}{cause}", " && ".join([*repair, install_again()])


def rivals() -> list[Rival]:
    """Everything else with a name of ours: in other distributions, on the path, and in the working folder."""
    owners = {
        Path(str(distribution.locate_file(name))).resolve(): _label(distribution)
        for distribution in importlib.metadata.distributions()
        if distribution.name != DISTRIBUTION
        for name in _tops(distribution)
    }
    folders = dict.fromkeys([Path.cwd(), *(Path(entry).resolve() for entry in sys.path if entry)])
    there = [path for folder in folders if not _is_a_copy(folder) for path in _modules(folder)]
    paths = dict.fromkeys([*(path for path in owners if path.parent != PLACE), *there])
    return [Rival(path.stem, path, owners.get(path)) for path in paths]


def hiding(name: str, error: ImportError) -> ImportError:
    """Return the error that names what hides our package `name` from a Python process, or what else is missing."""
    known = missing_extra(error)
    if known is not error:
        return known
    damage = damage_text(_INITS)
    if damage is not None:
        return HiddenPackage("; run: ".join(damage))
    spec = importlib.util.find_spec(name) if name in PACKAGES else None
    if spec is None or spec.origin is None:
        return error
    file = Path(spec.origin)
    path = file.parent if file.name == "__init__.py" else file
    if path.parent.resolve() == PLACE:
        return error
    rival = next((each for each in rivals() if each.path == path), Rival(name, path, None))
    return HiddenPackage(f"{rival.text}, and Python imports that one here; run: {rival.command}")


def _damaged(names: Iterable[str] | None) -> Iterator[str]:
    """Our files that are gone, or overwritten by another distribution with a file of the same name."""
    digests = _record()
    for name in names or digests:
        if digests.get(name) and digests[name] != _digest(PLACE / name) and (not _is_ours(name) or _owners(name)):
            yield name


def _is_ours(name: str) -> bool:
    return (PLACE / name).is_file()


def _record() -> dict[str, str]:
    """The digests of our files by path, as the installer recorded them; empty in a checkout."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return {}
    if Path(str(distribution.locate_file(""))).resolve() != PLACE:
        return {}
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return {row[0]: row[1] for row in rows if row[0].partition("/")[0] in (*PACKAGES, "ttc")}


def _digest(path: Path) -> str | None:
    """The digest of a file as records write it; None where there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _owners(name: str) -> list[str]:
    """The other distributions whose records have the file `name` in our place."""
    others = (item for item in importlib.metadata.distributions() if item.name != DISTRIBUTION)
    return [
        _label(distribution)
        for distribution in others
        if name in _files(distribution) and Path(str(distribution.locate_file(name))).resolve() == PLACE / name
    ]


def _tops(distribution: importlib.metadata.Distribution) -> set[str]:
    """Which of our names a distribution installs, as files or folders: `evals`, `train.py`."""
    tops = {name.partition("/")[0] for name in _files(distribution) if name.endswith(".py")}
    listed = (distribution.read_text("top_level.txt") or "").split()
    return {top for top in {*tops, *listed} if top.removesuffix(".py") in PACKAGES}


def _files(distribution: importlib.metadata.Distribution) -> list[str]:
    """The paths in a distribution's record; `Distribution.files` makes an object of each, which is slow."""
    record = distribution.read_text("RECORD")
    if record is None:  # not installed from a wheel
        return [str(file) for file in distribution.files or ()]
    return [row[0] for row in csv.reader(record.splitlines()) if row]


def _is_a_copy(folder: Path) -> bool:
    """Whether a folder contains this toolkit: its own place, or another checkout."""
    return (folder / "ttc" / "cli" / "cli.py").is_file()


def _modules(folder: Path) -> list[Path]:
    """The modules and packages of a folder that have a name of ours."""
    packages = [folder / name for name in PACKAGES if (folder / name / "__init__.py").is_file()]
    return [*packages, *(folder / f"{name}.py" for name in PACKAGES if (folder / f"{name}.py").is_file())]


def _label(distribution: importlib.metadata.Distribution) -> str:
    return f"{distribution.name} {distribution.version}"


def _uninstall(labels: Iterable[str]) -> str:
    return f"{pip('uninstall')} -y {' '.join(label.partition(' ')[0] for label in labels)}"
