"""From a name to a function: file name, entry point, or `path/to/file.py:function`.

A module registers itself by defining one public function of its own name: `ttc/strategies/best_of_n.py` with
`best_of_n` is the strategy `best_of_n`. Names starting with an underscore and modules without such a function (their
helpers) are not registered. Other distributions add to the same list through the registry's entry-point group.
Listing reads file names and syntax only; nothing is imported until `load`.

The signature is the schema: `describe` reads parameters, defaults and their documentation from it, and `bind` checks
values against it, so documentation, help and checks cannot drift apart.

Left out: overriding. A name that is built in wins over an entry point of the same name.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pathlib
import pkgutil
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ttc.errors import ConfigError, MissingExtra, UnknownName
from ttc.values import nearest, parse, type_text

__all__ = [
    "ENGINES",
    "POLICIES",
    "SCORERS",
    "STRATEGIES",
    "VERIFIERS",
    "Description",
    "Parameter",
    "Registry",
    "bind",
    "describe",
    "plugins",
]

DISTRIBUTION = "ttckit"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One keyword of a registered function: its type as text, its default, and its line of documentation."""

    name: str
    type: str
    required: bool
    default: Any
    doc: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; a default that JSON cannot hold is given as text."""
        plain = self.default is None or isinstance(self.default, (bool, int, float, str))
        default = self.default if plain else _default_text(self.default)
        return {"name": self.name, "type": self.type, "required": self.required, "default": default, "doc": self.doc}


@dataclass(frozen=True, slots=True)
class Description:
    """What a registered function says of itself: first line of its documentation, and its keyword parameters."""

    kind: str
    name: str
    doc: str
    takes_model: bool
    parameters: tuple[Parameter, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "kind": self.kind,
            "name": self.name,
            "doc": self.doc,
            "takes_model": self.takes_model,
            "parameters": [parameter.to_json() for parameter in self.parameters],
        }


@dataclass(frozen=True, slots=True)
class Registry:
    """All functions of one kind: the modules of `package` and the entry points of `group`."""

    kind: str
    package: str
    group: str

    def names(self) -> tuple[str, ...]:
        """Return every name, sorted, without importing what is named."""
        return tuple(sorted({*_modules(self.package), *plugins(self.group)}))

    def load(self, name: str) -> Callable[..., Any]:
        """Return the function called `name` (hyphens count as underscores), or the one at `file.py:function`.

        Raises:
            UnknownName: no such name; carries the nearest one.
            ConfigError: a `file.py:function` that cannot be read.
            MissingExtra: the function needs an optional package that is not installed.
        """
        path, separator, function = name.rpartition(":")
        if separator and path.endswith(".py"):
            return _load_file(self.kind, pathlib.Path(path).expanduser(), function)
        plain = name.replace("-", "_")
        if plain in _modules(self.package):
            found: Callable[..., Any] = getattr(importlib.import_module(f"{self.package}.{plain}"), plain)
            return found
        entry = plugins(self.group)
        if plain in entry:
            loaded: Callable[..., Any] = entry[plain].load()
            return loaded
        raise UnknownName(self.kind, name, self.names())

    def describe(self, name: str) -> Description:
        """Return what the function called `name` says of itself; raises like `load`."""
        return describe(self.kind, name.replace("-", "_"), self.load(name))


STRATEGIES = Registry("strategy", "ttc.strategies", "ttc.strategies")
ENGINES = Registry("engine", "ttc.engines", "ttc.engines")
SCORERS = Registry("scorer", "ttc.scorers", "ttc.scorers")
VERIFIERS = Registry("verifier", "ttc.verifiers", "ttc.verifiers")
POLICIES = Registry("policy", "ttc.search.policies", "ttc.policies")


def plugins(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of `group` by name.

    In a checkout that was never installed, the ones its own pyproject.toml declares are used, so that `python -m ttc`
    works from the bare tree.
    """
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}
    return {**_declared(group), **found}


def _declared(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        pyproject = pathlib.Path(__file__).parents[1] / "pyproject.toml"
        if not pyproject.is_file():
            return {}
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        declared = project["entry-points"].get(group, {})
        return {name: importlib.metadata.EntryPoint(name, value, group) for name, value in declared.items()}
    return {}


def describe(kind: str, name: str, function: Callable[..., Any]) -> Description:
    """Return the description of `function`: its keywords, and the first line that says what it is.

    That line is its module's where the module is named like it (one technique, one file), else its own.
    """
    module_doc = inspect.getdoc(sys.modules.get(function.__module__)) or ""
    own_doc = inspect.getdoc(function) or ""
    own_module = function.__module__.rpartition(".")[2] == function.__name__
    lines = ((module_doc if own_module else "") or own_doc or module_doc).strip().splitlines()
    signature = inspect.signature(function)
    argument_docs = _argument_docs(module_doc) | _argument_docs(own_doc)
    hints = _hints(function)
    parameters = tuple(
        Parameter(
            name=item.name,
            type=type_text(hints[item.name]),
            required=item.default is item.empty,
            default=None if item.default is item.empty else item.default,
            doc=argument_docs.get(item.name, ""),
        )
        for item in signature.parameters.values()
        if item.kind is item.KEYWORD_ONLY
    )
    return Description(kind, name, lines[0].strip() if lines else "", "model" in signature.parameters, parameters)


def bind(
    function: Callable[..., Any], params: Mapping[str, object], *, supply: Mapping[str, object]
) -> dict[str, Any]:
    """Return the keyword arguments for `function`: `params` checked and parsed, with those of `supply` it asks for.

    `params` may name keyword-only parameters; a string is parsed by the annotation. `supply` fills parameters that are
    not text, such as `scorer`; what `function` does not ask for is left out.

    Raises:
        ConfigError: an unknown parameter (with the nearest), a value that does not fit, or a required one missing.
    """
    signature = inspect.signature(function)
    keywords = {p.name: p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    settable = [name for name in keywords if name not in supply]
    hints = _hints(function)
    label = function.__name__
    bound: dict[str, Any] = {}
    for raw_name, value in params.items():
        name = raw_name.replace("-", "_")
        if name in settable:
            bound[name] = parse(f"{label}: {name}", value, hints[name])
        elif open_ended and name not in keywords and name not in supply:
            bound[name] = value
        else:
            known = ", ".join(settable) or "none"
            raise ConfigError(f"{label} has no parameter {raw_name!r}{nearest(name, settable)} (it takes: {known})")
    positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    bound.update({name: value for name, value in supply.items() if name in keywords or name in positional})
    missing = [name for name, p in keywords.items() if p.default is p.empty and name not in bound]
    if missing:
        wanted = type_text(hints[missing[0]])
        raise ConfigError(f"{label} needs {missing[0]!r} ({wanted}), which was not given")
    return bound


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of every parameter.

    Each annotation is resolved by itself: one that exists for type checkers only stays text. A parameter without an
    annotation has the type of its default.
    """
    target = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)
    annotations = inspect.get_annotations(target)
    resolved: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = annotations.get(name, type(parameter.default))
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            resolved[name] = typing.get_type_hints(holder, getattr(target, "__globals__", {}))[name]
        except NameError:
            resolved[name] = annotation
    return resolved


def _modules(package: str) -> dict[str, pathlib.Path]:
    """Map each module of `package` that defines a function of its own name to its file, importing none of them."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return {}
    if spec is None or spec.submodule_search_locations is None:
        return {}
    found: dict[str, pathlib.Path] = {}
    for info in pkgutil.iter_modules(list(spec.submodule_search_locations)):
        base = pathlib.Path(typing.cast("Any", info.module_finder).path) / info.name
        file = base / "__init__.py" if info.ispkg else base.with_suffix(".py")
        if not info.name.startswith("_") and file.is_file() and _defines(file, info.name):
            found[info.name] = file
    return found


def _defines(file: pathlib.Path, name: str) -> bool:
    """Whether the file has a top-level function called `name`; an import of one counts too (a package's facade)."""
    source = file.read_text(encoding="utf-8")
    if not re.search(rf"\b{re.escape(name)}\b", source):
        return False
    for node in ast.parse(source, str(file)).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return True
        aliases = node.names if isinstance(node, ast.ImportFrom) and file.name == "__init__.py" else []
        if any((alias.asname or alias.name) == name for alias in aliases):
            return True
    return False


def _load_file(kind: str, path: pathlib.Path, function: str) -> Callable[..., Any]:
    if not path.is_file():
        raise ConfigError(f"{kind} file {str(path)!r} does not exist")
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(f"ttc_file_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{kind} file {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except MissingExtra:
        raise
    except Exception as exc:
        del sys.modules[spec.name]
        raise ConfigError(f"{kind} file {str(path)!r} failed to import: {type(exc).__name__}: {exc}") from exc
    found = getattr(module, function, None)
    if not callable(found):
        own = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
        raise UnknownName(f"{kind} in {path}", function, own)
    return typing.cast("Callable[..., Any]", found)


def _argument_docs(doc: str) -> dict[str, str]:
    """Read the `Args:` section of a Google-style docstring: parameter name to its text on one line."""
    found: dict[str, str] = {}
    name, in_section, indent = "", False, 0
    for line in doc.splitlines():
        if line.strip() in ("Args:", "Arguments:"):
            in_section, indent = True, len(line) - len(line.lstrip())
        elif in_section and line.strip():
            depth = len(line) - len(line.lstrip())
            if depth <= indent:
                in_section = False
                continue
            entry = re.match(r"\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
            if entry and depth <= indent + 4:
                name = entry[1]
                found[name] = entry[2].strip()
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _default_text(value: object) -> str:
    """Return a default for reading: dataclasses show only the fields that differ from their own defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [
            f"{f.name}={getattr(value, f.name)!r}"
            for f in dataclasses.fields(value)
            if f.repr and getattr(value, f.name) != f.default
        ]
        return f"{type(value).__name__}({', '.join(given)})"
    return repr(value)
