"""From a name to a function: file name, entry point, or `path/to/file.py:function`.

A module registers itself by defining one public function of its own name: `ttc/strategies/best_of_n.py` with
`best_of_n` is the strategy `best_of_n`. Names starting with an underscore and modules without such a function (their
helpers) are not registered. Other distributions add to the same list through the registry's entry-point group.
Listing reads files only; nothing is imported until `load`.

A function's parameters are read from its signature: see `ttc.config.signatures`. A user's function is checked against
the registry's shape (`ttc.config.plugins`) when it is loaded, and its product when it is made.

Left out: overriding. A name that is built in wins over an entry point of the same name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ttc.config.plugins import LABEL, PluginShape, blamed, described, line_in
from ttc.config.recipes import user_file
from ttc.config.signatures import Description, call, describe
from ttc.errors import DISTRIBUTION, ConfigError, MissingExtra, PluginError, UnknownName, missing_extra


@dataclass(frozen=True, slots=True)
class Registry:
    """All functions of one kind: the modules of `package` and the entry points of `group`, all of one `shape`."""

    kind: str
    package: str
    group: str
    shape: PluginShape

    def names(self) -> tuple[str, ...]:
        """Return every name, sorted, without importing what is named."""
        own = (name for name, file in _files(self.package).items() if _defines(file, name))
        return tuple(sorted({*own, *plugins(self.group)}))

    def load(self, name: str) -> Callable[..., Any]:
        """Return the function called `name` (hyphens count as underscores), or the one at `file.py:function`.

        Raises:
            UnknownName: no such name; carries the nearest one.
            ConfigError: a `file.py:function` that cannot be read or names no function, or a function of another shape.
            MissingExtra: the function needs an optional package that is not installed.
            PluginError: the distribution that declares it cannot be imported.
        """
        file_name = name.removesuffix(":")
        if file_name.endswith(".py"):
            raise ConfigError(f"{self.kind} file {file_name!r} {_without_function(file_name)}")
        path = user_file(name)
        if path is not None:
            own = _load_file(self.kind, path, name.rpartition(":")[2])
            self.shape.check_function(f"{self.kind} {name}", own)
            return own
        plain = name.replace("-", "_")
        file = _files(self.package).get(plain)
        if file is not None and _defines(file, plain):
            try:
                module = importlib.import_module(f"{self.package}.{plain}")
            except ImportError as exc:
                raise missing_extra(exc) from exc
            return cast("Callable[..., Any]", getattr(module, plain))
        entry = plugins(self.group)
        if plain in entry:
            loaded = _load_entry(self.kind, entry[plain])
            self.shape.check_function(f"{self.kind} {name}", loaded)
            return loaded
        raise UnknownName(self.kind, name, self.names())

    def create(self, name: str, params: Mapping[str, object], *, supply: Mapping[str, object]) -> Any:
        """Return the checked product of the function called `name` with `params` and `supply` (see `bind`).

        Raises:
            ConfigError: as `load` and `bind` do, or something else was made.
        """
        return self.checked(name, call(self.load(name), params, supply=supply))

    def checked(self, name: str, product: Any) -> Any:
        """Return the product of the function called `name`; raises ConfigError naming what it lacks."""
        self.shape.check_product(f"{self.kind} {name}", product)
        return product

    def describe(self, name: str) -> Description:
        """Return the description of the function called `name`; raises like `load`."""
        return describe(self.kind, name.replace("-", "_"), self.load(name))


STRATEGIES = Registry(
    "strategy",
    "ttc.strategies",
    "ttc.strategies",
    PluginShape(("ttc.core:Answer",), takes=("problem", "session"), is_async=True),
)
ENGINES = Registry(
    "engine", "ttc.engines", "ttc.engines", PluginShape(("ttc.core:Engine",), supplied=("model", "device", "threads"))
)
SCORERS = Registry(
    "scorer", "ttc.scorers", "ttc.scorers", PluginShape(("ttc.core:Scorer",), supplied=("model", "engine"))
)
VERIFIERS = Registry("verifier", "ttc.verifiers", "ttc.verifiers", PluginShape(("ttc.core:Verifier",)))
POLICIES = Registry(
    "policy",
    "ttc.search.policies",
    "ttc.policies",
    PluginShape(
        ("ttc.search.tree:Policy", "ttc.search.tree:Resampler", "ttc.search.tree:Searcher"), supplied=("beam_width",)
    ),
)


def plugins(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of `group` by name.

    In a checkout that was never installed, the ones its own pyproject.toml declares are used, so that `python -m ttc`
    works from the bare tree.
    """
    entries = {entry.name: entry for entry in _installed(group, tuple(_folder_state(folder) for folder in sys.path))}
    return {**_declared(group), **entries}


@functools.lru_cache(maxsize=64)
def _installed(group: str, _folders: tuple[tuple[str, int], ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """The entry points of the distributions in `sys.path`, read again only when its folders change."""
    return tuple(importlib.metadata.entry_points(group=group))


def _folder_state(folder: str) -> tuple[str, int]:
    """A folder, and the time of the last addition to it or removal from it (ns)."""
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:  # no folder, or an archive that is gone
        return folder, 0


def _declared(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        pyproject = pathlib.Path(__file__).parents[2] / "pyproject.toml"
        if not pyproject.is_file():
            return {}
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        declared = project["entry-points"].get(group, {})
        return {name: importlib.metadata.EntryPoint(name, value, group) for name, value in declared.items()}
    return {}


def _files(package: str) -> dict[str, pathlib.Path]:
    """Map each public module of `package` to its file, reading none of them."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return {}
    if spec is None or spec.submodule_search_locations is None:
        return {}
    files: dict[str, pathlib.Path] = {}
    for info in pkgutil.iter_modules(list(spec.submodule_search_locations)):
        base = pathlib.Path(cast("Any", info.module_finder).path) / info.name
        file = base / "__init__.py" if info.ispkg else base.with_suffix(".py")
        if not info.name.startswith("_") and file.is_file():
            files[info.name] = file
    return files


def _defines(file: pathlib.Path, name: str) -> bool:
    """Whether the file defines a function called `name` at its top; a package may import it, last on its line."""
    definition = rf"^(async )?def {name}\b"
    if file.name == "__init__.py":
        definition += rf"|^from \S+ import (.*\b)?{name}$"
    return re.search(definition, file.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _without_function(name: str) -> str:
    """The message about a file named without a function; its functions are read without importing it."""
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        return "does not exist"
    own = re.findall(r"^(?:async )?def ([^\W_]\w*)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return f"is named without its function: {' or '.join(f'{name}:{each}' for each in own) or f'{name}:FUNCTION'}"


def _load_entry(kind: str, entry: importlib.metadata.EntryPoint) -> Callable[..., Any]:
    try:
        return cast("Callable[..., Any]", entry.load())
    except Exception as exc:
        extra, fault = missing_extra(exc) if isinstance(exc, ImportError) else exc, blamed(exc)
        if extra is not exc:
            raise extra from exc
        owner = DISTRIBUTION if entry.dist is None else entry.dist.name
        cause = described(exc) if fault is exc else str(fault)
        text = f"{kind} {entry.name!r} of distribution {owner} ({entry.value}) cannot be imported: {cause}"
        raise PluginError(f"{text}; repair or uninstall {owner}") from exc


def _load_file(kind: str, path: pathlib.Path, function: str) -> Callable[..., Any]:
    if not path.is_file():
        raise ConfigError(f"{kind} file {str(path)!r} does not exist")
    # A changed file is another module.
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + path.read_bytes()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"ttc_file_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{kind} file {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    vars(module)[LABEL] = f"{kind} {path}:{function}"
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except MissingExtra:
        raise
    except Exception as exc:
        del sys.modules[spec.name]
        cause = f"{type(exc).__name__}: {exc}{line_in(str(path), exc)}"
        raise ConfigError(f"{kind} file {str(path)!r} failed to import: {cause}") from exc
    attribute = getattr(module, function, None)
    if not callable(attribute):
        own = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
        raise UnknownName(f"{kind} in {path}", function, own)
    return cast("Callable[..., Any]", attribute)
