"""The program's side of a test: a module that is loaded once, then answers calls; runs in a cell of mode `serve`.

Arguments and values are sent as data (`values`). A function of the test arrives as a `Callback`, which calls the test's
process while the program waits; during that, another call may arrive. Objects of classes that both sides have
(`ListNode` of the question's prelude) arrive as objects of the program's own class, the same object each time. An
awaitable runs here, on one event loop, when the test awaits it. All of it shares the process with the program, which
may change it: everything sent is only a claim.
"""

from __future__ import annotations

import builtins
import itertools
import operator
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ttc.sandbox import memory_files, values, wire

JOB, REPORT = 3, 4
"""The descriptors of a cell for jobs from the host and reports to it; 0 to 2 are the program's."""
NAME = "solution"
LOADED = b"loaded"
CHUNK = 1000
"""Items of an iterator that are fetched at once."""


def serve(job: Mapping[str, Any]) -> NoReturn:
    """Run job["source"] as a module, then answer calls; ends with the stream."""
    module = types.ModuleType(NAME)
    module.__dict__["__file__"] = f"{NAME}.py"
    sys.modules[NAME] = module
    if "tempfile" in job["source"]:
        memory_files.install()
    try:
        exec(compile(job["source"], f"{NAME}.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as exc:  # including SystemExit: a program that exits has no functions
        wire.write(REPORT, wire.GONE, describe(exc).encode("utf-8", "replace"))
        os._exit(1)
    wire.write(REPORT, wire.REPLY, LOADED)
    program = Program(module.__dict__, job.get("records", ()), bool(job.get("in_place")))
    while (frame := wire.read(JOB)) is not None:
        wire.write(REPORT, wire.REPLY, program.answer(frame[1]))
    os._exit(0)


def describe(exc: BaseException) -> str:
    """One line on an exception of the program, with the line of the program it came from."""
    line, trace = 0, exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == f"{NAME}.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(exc, SyntaxError):
        line = exc.lineno or 0
    return f"{type(exc).__name__}{f' in line {line}' if line else ''}: {str(exc)[:200]}"


class Program:
    """A loaded program: its names, its objects with handles, and those of the test."""

    def __init__(self, namespace: Mapping[str, Any], records: tuple[str, ...], in_place: bool) -> None:
        self.namespace, self._in_place = namespace, in_place
        self._classes = {namespace[name]: name for name in records if isinstance(namespace.get(name), type)}
        self._kept: list[object] = []
        self._handles: dict[int, int] = {}
        self.nodes = values.Nodes(self._classes)
        self._lock = threading.RLock()

    def answer(self, request: bytes) -> bytes:
        """Make one call; any exception of the program is an answer."""
        try:
            name, args, kwargs = values.load(request, self._fetch, self.nodes)
            function = _OF_OBJECTS.get(name) or self._function(name)
            value = function(*args, **kwargs)
            if name != DATA and self._stays(value, function):
                value = values.ByHandle(value)
            changed = (value is None or self._in_place) and any(isinstance(arg, self._changeable()) for arg in args)
            return values.dump(["value", value, *([args] if changed else [])], self._keep, self.nodes, lazy=True)
        except BaseException as exc:
            return values.dump(["raised", type(exc).__name__, describe(exc)], self._keep)

    def ask(self, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the test's function with this number."""
        with self._lock:
            wire.write(REPORT, wire.CALL, values.dump([number, list(args), dict(kwargs)], self._keep, self.nodes))
            while (frame := wire.read(JOB)) is not None:
                if frame[0] == wire.REPLY:
                    return self._outcome(frame[1])
                wire.write(REPORT, wire.REPLY, self.answer(frame[1]))
        os._exit(0)

    def _outcome(self, reply: bytes) -> Any:
        kind, *content = values.load(reply, self._fetch, self.nodes)
        if kind == "value":
            return content[0]
        error = getattr(builtins, str(content[0]), RuntimeError)
        raise error(content[1]) if isinstance(error, type) and issubclass(error, Exception) else RuntimeError(content)

    def _stays(self, value: object, function: object) -> bool:
        """Whether a container is an object with methods: new, or with a handle already (`return self`)."""
        is_object = isinstance(function, type) or id(value) in self._handles
        return is_object and _is_container_with_methods(value)

    def _changeable(self) -> tuple[type, ...]:
        return (list, dict, set, *self._classes)

    def _keep(self, value: object) -> int:
        if isinstance(value, Callback):
            return -1 - value.number
        if id(value) not in self._handles:
            self._handles[id(value)] = len(self._kept)
            self._kept.append(value)
        return self._handles[id(value)]

    def _fetch(self, handle: int) -> object:
        return self._kept[handle] if handle >= 0 else Callback(self, -1 - handle)

    def _function(self, name: str) -> Any:
        """The method of that name of a new `Solution`, as contest sites call it, or the function `name`."""
        if hasattr(self.namespace.get("Solution"), name):
            return getattr(self.namespace["Solution"](), name)
        if name == NAMED:
            return self._function
        if name not in self.namespace:
            raise NameError(f"the program defines no {name}")
        return self.namespace[name]


def _is_container_with_methods(value: object) -> bool:
    """Whether an object of one of the program's classes is a container with methods of its own: `class Stack(list)`."""
    if not isinstance(value, (list, dict, set, deque)):
        return False
    own = [vars(cls).items() for cls in type(value).__mro__ if cls.__module__ == NAME]
    return any(callable(member) and not name.startswith("_") for members in own for name, member in members)


class Callback:
    """A function of the test, to be called by the program."""

    def __init__(self, program: Program, number: int) -> None:
        self._program, self.number = program, number

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call it, in the test's process."""
        return self._program.ask(self.number, args, kwargs)


def _take(iterator: Any) -> list[Any]:
    return list(itertools.islice(iterator, CHUNK))


def _finish(awaitable: Any) -> Any:
    """Run an awaitable to its end, on the one event loop of this process."""
    import asyncio

    if not _LOOPS:
        _LOOPS.append(asyncio.new_event_loop())
        asyncio.set_event_loop(_LOOPS[0])
    return _LOOPS[0].run_until_complete(awaitable)


_LOOPS: list[Any] = []
"""The event loop of this process, once created: another call may await what one has started."""


def _step(generator: Any) -> list[Any]:
    """The next item of an asynchronous generator: whether it has ended, and the item."""

    async def step() -> list[Any]:
        try:
            return [False, await generator.__anext__()]
        except StopAsyncIteration:
            return [True, None]

    outcome: list[Any] = _finish(step())
    return outcome


def _operate(name: str, *operands: Any) -> Any:
    return _OPERATIONS[name](*operands)


GET, SET, CALL_IT, LENGTH, ITEM, PUT, TAKE, FINISH, STEP, OPERATE, NAMED, KIND, DATA = (
    ".get", ".set", ".call", ".len", ".item", ".put", ".take", ".finish", ".step", ".operate", ".named", ".kind",
    ".data",
)  # fmt: skip
"""Operations on an object of the program, whose handle is the first argument; no function has such a name."""
_OF_OBJECTS: Mapping[str, Callable[..., Any]] = {
    GET: getattr, SET: setattr, CALL_IT: lambda it, *args, **kwargs: it(*args, **kwargs), LENGTH: len,
    ITEM: operator.getitem, PUT: operator.setitem, TAKE: _take, FINISH: _finish, STEP: _step, OPERATE: _operate,
    KIND: lambda it, kind: isinstance(it, kind), DATA: lambda it: it,
}  # fmt: skip
_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "pos", "and_", "or_", "xor",
        "lt", "le", "gt", "ge", "contains", "delitem",
    )},
    "str": str, "repr": repr, "abs": abs, "iter": iter, "bool": bool, "int": int, "float": float,
    "enter": lambda it: it.__enter__(), "exit": lambda it: it.__exit__(None, None, None),
}  # fmt: skip
"""Operations behind Python's syntax. Equality is not among them: a value never decides what it is equal to."""
