"""Read the target of a programming problem: what the program is, and how it is tested.

entry_point   the function under test, or a method of the program's class `Solution`
stub          what an answer without a definition of `entry_point` continues (a signature and its docstring)
prelude       code that runs before the program and before the tests (imports, helpers of the question)
tests         assert statements, as strings, or the source of a function check(candidate)
setup         code that runs before the tests only
functions     the names in `tests` that are the program's; absent: those that nothing else defines
cases         [{"args": [...], "expected": ...}] for `entry_point`
random        {"reference": source, "arguments": [...], "seed": 1, "count": 20}: arguments are drawn from the seed
              (see ttc/sandbox/driving.py) and the values of `entry_point` compared with those of the reference
io            [{"input": "...", "output": "..."}] for the program as a script
in_place      true: what the program did to lists, dicts and sets is done to the test's, whatever it returns; absent:
              only where it returns nothing
tolerance     how far floats of cases and random may differ, relative and absolute; absent: not at all
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ttc.answers.code import syntax
from ttc.core import TargetLike
from ttc.errors import ConfigError
from ttc.sandbox import driving

_CHECK = "check"
_GROUPS = ("tests", "cases", "random", "io")
MAX_CHECKS = 10_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a script: what it reads and what it must write."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Exercise:
    """A target that has been read: groups as `ttc.sandbox.driving` takes them, their names, and script cases."""

    entry_point: str | None
    stub: str
    prelude: str
    names: tuple[str, ...]
    groups: tuple[Mapping[str, Any], ...]
    num_checks: tuple[int, ...]
    io: tuple[Case, ...]
    records: tuple[str, ...] = ()
    in_place: bool = False


def read_target(target: TargetLike) -> Exercise:
    """Read a target.

    Raises:
        ConfigError: naming the field that is missing, unknown or of the wrong type.
    """
    if not isinstance(target, Mapping):
        raise ConfigError(f"target must be an object, got {type(target).__name__}")
    unknown = sorted(set(target) - set(_FIELDS))
    if unknown:
        raise ConfigError(f"target has the unknown field {unknown[0]!r} (known: {', '.join(_FIELDS)})")
    fields = {name: read(target.get(name), f"target.{name}") for name, read in _FIELDS.items()}
    groups = {name: group for name, make in _MAKERS.items() if (group := make(fields)) is not None}
    io = tuple(fields["io"] or ())
    if not groups and not io:
        raise ConfigError(f"target has nothing to test with: give one of {', '.join(_GROUPS)}")
    contents, num_checks = tuple(group for group, _ in groups.values()), tuple(num for _, num in groups.values())
    if sum(num_checks) + len(io) > MAX_CHECKS:
        raise ConfigError(f"target has more than {MAX_CHECKS} checks")
    named = fields["entry_point"], fields["stub"], fields["prelude"]
    return Exercise(*named, tuple(groups), contents, num_checks, io, _records(fields), fields["in_place"])


# -- fields ------------------------------------------------------------------------------------------------------------
def _string(value: object, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where} must be a string, got {value!r}"[:200])
    return value or ""


def _source(value: object, where: str) -> str:
    text = _string(value, where)
    _parse(text, where)
    return text


def _name(value: object, where: str) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isidentifier()):
        raise ConfigError(f"{where} must be the name of a function, got {value!r}"[:200])
    return value


def _tests(value: object, where: str) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else _items(value, where)
    return tuple(_source(item, f"{where}[{number}]") for number, item in enumerate(items))


def _names(value: object, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(_name(item, f"{where}[{number}]") or "" for number, item in enumerate(_items(value, where)))


def _cases(value: object, where: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(_case(item, f"{where}[{number}]") for number, item in enumerate(_items(value, where)))


def _case(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value) != {"args", "expected"} or not isinstance(value["args"], list):
        raise ConfigError(f"{where} must be an object with a list args and expected, got {value!r}"[:200])
    return value


def _io(value: object, where: str) -> tuple[Case, ...]:
    cases = []
    for number, item in enumerate(_items(value, where)):
        if not isinstance(item, Mapping) or set(item) != {"input", "output"}:
            raise ConfigError(f"{where}[{number}] must be an object with input and output, got {item!r}"[:200])
        cases.append(Case(*(_string(item[name], f"{where}[{number}].{name}") for name in ("input", "output"))))
    return tuple(cases)


def _random(value: object, where: str) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"reference", "arguments", "seed", "count"}:
        raise ConfigError(f"{where} must be an object with reference, arguments, seed and count")
    _source(value["reference"], f"{where}.reference")
    driving.check_arguments(value["arguments"])
    for name, least in (("seed", 0), ("count", 1)):
        if isinstance(value[name], bool) or not isinstance(value[name], int) or value[name] < least:
            raise ConfigError(f"{where}.{name} must be a whole number >= {least}, got {value[name]!r}")
    return value


def _tolerance(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value or 0.0, (int, float)) or not 0 <= (value or 0.0) < 1:  # type: ignore[operator]
        raise ConfigError(f"{where} must be a number in [0, 1), got {value!r}")
    return float(value or 0.0)  # type: ignore[arg-type]


def _flag(value: object, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false, got {value!r}"[:200])
    return value or False


def _items(value: object, where: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where} must be a list, got {type(value).__name__}")
    return value or ()


_FIELDS: Mapping[str, Callable[[object, str], Any]] = {
    "entry_point": _name, "stub": _string, "prelude": _source, "tests": _tests, "setup": _source, "functions": _names,
    "cases": _cases, "random": _random, "io": _io, "tolerance": _tolerance, "in_place": _flag,
}  # fmt: skip


# -- groups ------------------------------------------------------------------------------------------------------------
def _assert_group(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], int] | None:
    if not fields["tests"]:
        return None
    context = [_parse(fields[name], name) for name in ("prelude", "setup")]
    trees = [_parse(source, "tests") for source in fields["tests"]]
    checks = [_CHECK in _defined(tree) for tree in trees]
    candidate = fields["entry_point"]
    if any(checks) and (candidate is None or not all(checks)):
        raise ConfigError("target.tests: check(candidate) needs target.entry_point and stands alone")
    functions = fields["functions"]
    if functions is None:
        available = set(dir(builtins)) | set(sys.stdlib_module_names)
        mine = set().union(*(_defined(tree) for tree in (*context, *trees)))
        # The question's own version of the function under test does not stand in for the program's.
        functions = tuple(sorted(set().union(*map(_used, trees)) - available - (mine - {candidate})))
    remote = sorted({*functions, *([candidate] if candidate else [])})
    num_asserts = sum(isinstance(node, ast.Assert) for tree in trees for node in ast.walk(tree))
    group = {
        "kind": "asserts",
        "setup": f"{fields['prelude']}\n{fields['setup']}",
        "tests": list(fields["tests"]),
        "remote": remote,
        "check": candidate if any(checks) else None,
        "records": list(_records(fields)),
    }
    return group, max(1, num_asserts)


def _case_group(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], int] | None:
    if not fields["cases"]:
        return None
    group = {"kind": "cases", "cases": list(fields["cases"]), **_called(fields, "cases")}
    return group, len(fields["cases"])


def _random_group(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], int] | None:
    if fields["random"] is None:
        return None
    called = _called(fields, "random")
    if called["function"] not in _defined(_parse(fields["random"]["reference"], "random.reference")):
        raise ConfigError(f"target.random.reference does not define {called['function']!r}")
    return {"kind": "random", **fields["random"], **called}, int(fields["random"]["count"])


def _called(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    if fields["entry_point"] is None:
        raise ConfigError(f"target.{name} needs target.entry_point")
    return {"function": fields["entry_point"], "tolerance": fields["tolerance"]}


_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], int] | None]] = {
    "tests": _assert_group, "cases": _case_group, "random": _random_group,
}  # fmt: skip
"""From the fields of a target to a group, as `ttc.sandbox.driving` takes it, and how many checks it makes."""


def _records(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of the question (`ListNode`, `TreeNode`), whose objects travel between tests and program."""
    trees = [_parse(fields[name], name) for name in ("prelude", "setup")]
    return tuple(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))


# -- sources -----------------------------------------------------------------------------------------------------------
def defines(source: str, name: str) -> bool:
    """Whether a program defines `name`, itself or as a method of a class; False when it is not Python."""
    try:
        tree = syntax(source)
    except SyntaxError:
        return False
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return name in _defined(tree) or any(name in _defined(node) for node in classes)


def _defined(tree: ast.Module | ast.ClassDef) -> set[str]:
    """The names that the statements of a block bind."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {
                inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            }
    return names


def _used(tree: ast.Module) -> set[str]:
    """The names that a piece of code reads and does not bind anywhere."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    local_names = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    local_names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {node.id for node in names} - local_names


def _parse(source: str, where: str) -> ast.Module:
    try:
        return syntax(source)
    except SyntaxError as exc:
        raise ConfigError(f"{where} is not Python: {exc}") from exc
