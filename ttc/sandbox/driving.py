"""Run the tests of a program in a process without the program: its functions are called through the host.

Test code is trusted but may be wrong, so it is confined like a program. Each assert counts separately: a failed one is
noted and the next one runs. `remote` describes how calls are made and what they return.

Random arguments are drawn from a declared specification, the same for the same seed:

{"type": "int", "min": 0, "max": 9}            {"type": "float", "min": 0, "max": 1}       {"type": "bool"}
{"type": "str", "alphabet": "ab", "min_len": 0, "max_len": 5}              {"type": "choice", "from": [1, 2]}
{"type": "list", "of": SPEC, "min_len": 0, "max_len": 5}                   {"type": "tuple", "of": [SPEC, ...]}
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ttc.errors import ConfigError
from ttc.sandbox import values, wire
from ttc.sandbox.remote import Gone, Link, Remote, RemoteError, proxies
from ttc.sandbox.serving import REPORT

_NOTE, _ERROR = "_ttc_note", "_ttc_error"


def drive(job: Mapping[str, Any]) -> NoReturn:
    """Run job["groups"] in order, noting each check, and end."""
    link = Link()
    try:
        for number, group in enumerate(job["groups"]):
            _Group(number).run(group, link)
    except Gone:
        os._exit(0)
    wire.write(REPORT, wire.DONE, b"")
    os._exit(0)


class _Group:
    """The checks of one group, reported separately."""

    def __init__(self, number: int) -> None:
        self._number = number

    def run(self, group: Mapping[str, Any], link: Link) -> None:
        """Run the group's checks by its kind; a group that breaks off counts one more failure."""
        try:
            _KINDS[group["kind"]](group, self.note, link)
        except Exception as exc:
            self.note(False, exc)

    def note(self, ok: bool, why: BaseException | str = "") -> None:
        """Report one check."""
        if isinstance(why, Gone):
            raise why
        text = why if isinstance(why, str) else _line(why)
        broken = isinstance(why, values.Unsendable)
        row = {"group": self._number, "ok": bool(ok), "why": text, "broken": broken}
        wire.write(REPORT, wire.NOTE, json.dumps(row).encode("ascii"))


Note = Callable[..., None]


def _line(exc: BaseException) -> str:
    """One line on an exception; those of the program bring their name."""
    name, text = type(exc).__name__, str(exc)[:160]
    return text if isinstance(exc, RemoteError) or text.startswith(name) else f"{name}: {text}".rstrip(": ")


# -- asserts -----------------------------------------------------------------------------------------------------------
def _asserts(group: Mapping[str, Any], note: Note, link: Link) -> None:
    outcomes: list[bool] = []

    def noted(ok: bool, why: BaseException | str = "") -> None:
        outcomes.append(ok)
        note(ok, why)

    namespace: dict[str, Any] = {"__name__": "tests", _NOTE: noted}
    trees = [ast.parse(source) for source in (group["setup"], *group["tests"])]
    for name in _free_names(trees) - set(group["remote"]):
        if name in sys.stdlib_module_names:
            namespace[name] = __import__(name)
    exec(compile(trees[0], "<setup>", "exec"), namespace)
    # after the set-up, which may contain the prompt's own version of a function under test
    namespace |= proxies(link, group["remote"], _caught(trees))
    shared = [namespace.get(name) for name in group.get("records", ())]
    link.nodes = values.Nodes({cls: cls.__name__ for cls in shared if isinstance(cls, type)}, first=1)
    for tree in trees[1:]:
        count, must_raise = len(outcomes), _must_raise(tree)
        code = compile(ast.fix_missing_locations(_Counting().visit(tree)), "<tests>", "exec")
        try:
            exec(code, namespace)
            if group["check"]:
                namespace["check"](namespace[group["check"]])
            if must_raise and len(outcomes) == count:
                note(True)
        except Exception as exc:
            note(False, exc)


def _must_raise(tree: ast.Module) -> bool:
    """Whether a test holds where no assert of it is reached: each is `assert False`, behind what must raise."""
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return bool(tests) and all(isinstance(test, ast.Constant) and not test.value for test in tests)


class _Counting(ast.NodeTransformer):
    """Turns each assert into one that notes its outcome and continues."""

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        """Wrap the assert."""
        failed = ast.parse(f"{_NOTE}(False, {_ERROR})").body
        success = ast.parse(f"{_NOTE}(True)").body
        handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), _ERROR, failed)
        return ast.Try([node], [handler], success, [])


def _free_names(trees: Sequence[ast.AST]) -> set[str]:
    names = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - {
        node.id for node in names if isinstance(node.ctx, ast.Store)
    }


_EXPECTING = ("raises", "assertRaises", "assertRaisesRegex", "suppress")


def _caught(trees: Sequence[ast.AST]) -> frozenset[str]:
    """The names that a test uses as exceptions: in `except`, and as arguments of functions that expect one."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    kinds: list[ast.expr | None] = [node.type for node in nodes if isinstance(node, ast.ExceptHandler)]
    for node in nodes:
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            kinds += node.args[:1] if name in _EXPECTING else []
    return frozenset(
        part.id for kind in kinds if kind is not None for part in ast.walk(kind) if isinstance(part, ast.Name)
    )


# -- cases -------------------------------------------------------------------------------------------------------------
def _cases(group: Mapping[str, Any], note: Note, link: Link) -> None:
    for case in group["cases"]:
        _compare(group, case["args"], case["expected"], note, link)


def _random(group: Mapping[str, Any], note: Note, link: Link) -> None:
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(group["reference"], "<reference>", "exec"), namespace)
    reference = namespace[group["function"]]
    source = random.Random(group["seed"])
    for _ in range(group["count"]):
        args = draw_arguments(group["arguments"], source)
        # the reference may change its arguments
        expected = reference(*copy_drawn(args))
        _compare(group, args, expected, note, link)


def _compare(group: Mapping[str, Any], args: Sequence[object], expected: object, note: Note, link: Link) -> None:
    try:
        got = _plain(link.call(group["function"], *args))
    except Exception as exc:
        note(False, exc)
        return
    note(same(got, expected, group["tolerance"]), "another value")


def _plain(value: Any) -> Any:
    """The value of a coroutine; an array as lists."""
    if inspect.iscoroutine(value):
        import asyncio

        value = asyncio.run(value)
    return value.tolist() if hasattr(type(value), "tolist") else value


def same(got: object, expected: object, tolerance: float) -> bool:
    """Whether two plain values are equal; a tuple or an iterator counts as a list, floats within `tolerance`."""
    if isinstance(got, (tuple, Iterator)):
        got = list(got)
    if isinstance(expected, (tuple, Iterator)):
        expected = list(expected)
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(same(a, b, tolerance) for a, b in zip(got, expected, strict=True))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same(got[key], expected[key], tolerance) for key in expected)
    numbers = isinstance(got, (int, float)) and isinstance(expected, (int, float))
    if numbers and tolerance and float in (type(got), type(expected)):
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)  # type: ignore[arg-type]
    if isinstance(got, Remote):
        return False
    return bool(got == expected)


_KINDS: Mapping[str, Callable[[Mapping[str, Any], Note, Link], None]] = {
    "asserts": _asserts, "cases": _cases, "random": _random,
}  # fmt: skip


# -- random arguments --------------------------------------------------------------------------------------------------
Spec = Mapping[str, Any]
MAX_LENGTH = 10_000


def draw_arguments(specs: Sequence[Spec], source: random.Random) -> list[Any]:
    """Return one list of arguments."""
    return [_TYPES[spec["type"]](spec, source) for spec in specs]


def copy_drawn(value: Any) -> Any:
    """Copy a drawn value: lists are new, other values are immutable."""
    return [copy_drawn(item) for item in value] if isinstance(value, list) else value


def check_arguments(specs: object) -> None:
    """Raise ConfigError when the specification of the arguments cannot be used, naming the field."""
    if not isinstance(specs, (list, tuple)):
        raise ConfigError(f"target.random.arguments must be a list, got {specs!r}")
    for spec in specs:
        if not isinstance(spec, Mapping) or spec.get("type") not in _TYPES:
            raise ConfigError(f"target.random.arguments: type must be one of {', '.join(_TYPES)}, got {spec!r}")
        inner = spec.get("of", [])
        check_arguments([inner] if isinstance(inner, Mapping) else inner)
    try:
        draw_arguments(specs, random.Random(0))
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise ConfigError(f"target.random.arguments: {type(exc).__name__}: {exc} in {specs!r}"[:300]) from exc


def _length(spec: Spec, source: random.Random) -> int:
    return source.randint(spec.get("min_len", 0), min(spec["max_len"], MAX_LENGTH))


_TYPES: Mapping[str, Callable[[Spec, random.Random], Any]] = {
    "int": lambda spec, source: source.randint(spec["min"], spec["max"]),
    "float": lambda spec, source: source.uniform(spec["min"], spec["max"]),
    "bool": lambda _spec, source: source.random() < 0.5,
    "str": lambda spec, source: "".join(source.choice(spec["alphabet"]) for _ in range(_length(spec, source))),
    "list": lambda spec, source: [draw_arguments([spec["of"]], source)[0] for _ in range(_length(spec, source))],
    "tuple": lambda spec, source: tuple(draw_arguments(spec["of"], source)),
    "choice": lambda spec, source: source.choice(spec["from"]),
}
