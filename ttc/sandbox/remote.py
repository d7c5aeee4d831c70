"""The test's side of calls to the program: proxies of its functions, classes and objects, and callbacks of the test.

Return values of the program arrive as plain data (see `values`), which cannot have an `==` of their own. An exception
arrives as the built-in exception of that name, or as the proxy of its class that the test names in `except`. If a
function returns nothing, its changes to the lists, dicts and sets passed to it are applied to the test's own; with
`in_place`, whatever it returns. Objects of the program stay there: attributes, items and methods are requested through
the host. A function that the test passes is called here, with data, while the program waits.

No object of the program decides what it is equal to, or sees what the test expects: equality is identity, or for a
container (`class Stack(list)`) that of its contents, which are sent here as plain data. Operators of two operands (+,
<, `in`), and methods such as `startswith`, are used only on instances of a class under test, that is on the result of
calling a capitalised name: `Vector(1, 2) + Vector(3, 4)`, but not `f(2) - 4`.
"""

from __future__ import annotations

import builtins
import operator
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from ttc.sandbox import values, wire
from ttc.sandbox.serving import (
    CALL_IT,
    DATA,
    FINISH,
    GET,
    ITEM,
    JOB,
    KIND,
    LENGTH,
    NAMED,
    OPERATE,
    PUT,
    REPORT,
    SET,
    STEP,
    TAKE,
)


class Gone(BaseException):
    """The program's process has ended; no test may catch this."""


class RemoteError(Exception):
    """The program raised something that is not a built-in exception."""


class Link:
    """The connection to the program, with the test's functions and shared objects that the program may use."""

    def __init__(self) -> None:
        self.errors: dict[str, type[RemoteError]] = {}
        self._has_answered = False
        self.nodes = values.Nodes({})
        self._functions: list[Callable[..., Any]] = []

    def call(self, name: str, *args: object, **kwargs: object) -> Any:
        """Call the program's function `name`; its value, or a built-in exception."""
        wire.write(REPORT, wire.CALL, self._request([name, list(args), kwargs]))
        outcome = self._read(self._reply())
        try:
            kind, *content = outcome
            if kind == "value":
                if len(content) > 1:
                    _change(args, content[1])
                return content[0]
            name, message = map(str, content)
        except (TypeError, ValueError, IndexError) as exc:
            raise RemoteError("the program sent no value") from exc
        raise self._error(name, message)

    def _request(self, request: object) -> bytes:
        """The bytes of a call; after an earlier answer, the program's own values may be what makes it too large."""
        try:
            return values.dump(request, self._keep, self.nodes)
        except values.Oversized as exc:
            if not self._has_answered:
                raise
            raise RemoteError(f"the program's values make a call too large: {exc}") from exc

    def _reply(self) -> bytes:
        """The program's reply; until it arrives, the program may call functions of the test."""
        while True:
            frame = wire.read(JOB)
            if frame is None or frame[0] not in (wire.REPLY, wire.CALL):
                raise Gone
            if frame[0] == wire.REPLY:
                return frame[1]
            wire.write(REPORT, wire.REPLY, self._called_back(frame[1]))

    def _called_back(self, request: bytes) -> bytes:
        try:
            number, args, kwargs = values.load(request, self._fetch, self.nodes)
            value = self._functions[number](*args, **kwargs)
            return values.dump(["value", value], self._keep, self.nodes)
        except Exception as exc:  # passed on to the program, which made the call
            return values.dump(["raised", type(exc).__name__, str(exc)[:200]], self._keep)

    def _read(self, data: bytes) -> Any:
        self._has_answered = True
        try:
            return values.load(data, self._fetch, self.nodes)
        except values.Unsendable as exc:
            raise RemoteError("the program sent no value") from exc

    def _error(self, name: str, message: str) -> Exception:
        if name in self.errors:
            return self.errors[name](message)
        error = getattr(builtins, name, None)
        # StopIteration would end the test's own loop, as if nothing had failed
        if isinstance(error, type) and issubclass(error, Exception) and error not in _NOT_RAISED:
            try:
                return error(message)
            except TypeError:
                return RemoteError(message)
        return RemoteError(message)

    def _keep(self, value: object) -> int:
        if isinstance(value, Remote):
            return _handle(value)
        if (getattr(value, "cr_code", None) or getattr(value, "ag_code", None)) in _NOT_AWAITED:
            raise RemoteError("the program gave an awaitable where the test passes a value on")
        if not callable(value):
            raise values.Unsendable(f"a test cannot pass a {type(value).__name__}")
        self._functions.append(value)
        return -len(self._functions)

    def _fetch(self, handle: int) -> object:
        return Remote(self, handle) if handle >= 0 else self._functions[-1 - handle]


_NOT_RAISED = (UnicodeDecodeError, StopIteration, StopAsyncIteration)


def _change(args: Sequence[Any], after: Any) -> None:
    """Apply the changes that the program reports for its copies to the test's arguments, if kinds and number agree."""
    for mine, theirs in zip(args, after if isinstance(after, list) else (), strict=False):
        if type(mine) is not type(theirs) or mine == theirs:
            continue
        if isinstance(mine, list):
            mine[:] = theirs
        elif isinstance(mine, (dict, set)):
            mine.clear()
            mine.update(theirs)


class Remote:
    """An object of the program that is not data: passed back, called, or used with Python's operators and protocols."""

    def __init__(self, link: Link, handle: int) -> None:
        object.__setattr__(self, "link", link)
        object.__setattr__(self, "handle", handle)
        object.__setattr__(self, "is_instance", False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (name in _PREDICATES and not object.__getattribute__(self, "is_instance")):
            raise AttributeError(name)
        return _ask(self, GET, name)

    def __setattr__(self, name: str, value: object) -> None:
        _ask(self, SET, name, value)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call it, in the program."""
        link: Link = object.__getattribute__(self, "link")
        return link.call(CALL_IT, self, *args, **kwargs)

    def __len__(self) -> int:
        return int(_ask(self, LENGTH))

    def __getitem__(self, key: object) -> Any:
        return _ask(self, ITEM, key)

    def __setitem__(self, key: object, value: object) -> None:
        _ask(self, PUT, key, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(_operated("iter", self))

    def __contains__(self, item: object) -> bool:
        return _operated("contains", self, item) is True

    def __bool__(self) -> bool:
        return bool(_operated("bool", self))

    def __str__(self) -> str:
        return str(_operated("str", self))

    def __repr__(self) -> str:
        return str(_operated("repr", self))

    def __enter__(self) -> Any:
        return _operated("enter", self)

    def __exit__(self, *_: object) -> None:
        _operated("exit", self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Remote) and _handle(self) == _handle(other):
            return True
        if not isinstance(other, (Remote, *_CONTAINERS)):
            return False
        mine, others = (_ask(side, DATA) if isinstance(side, Remote) else side for side in (self, other))
        return isinstance(mine, _CONTAINERS) and bool(mine == others)

    def __hash__(self) -> int:
        return hash(_handle(self))

    # -- items of iterators and awaitables ---------------------------------------------------------------------------
    def rest(self) -> Iterator[Any]:
        """The items of an iterator of the program, fetched on demand."""
        count = values.LAZY_ITEMS + 1
        while items := _ask(self, TAKE):
            count += len(items)
            if count > values.MAX_ITEMS:
                raise RemoteError(f"an iterator of more than {values.MAX_ITEMS} items")
            yield from items

    async def finish(self) -> Any:
        """The value of a coroutine of the program, which runs there."""
        return _ask(self, FINISH)

    async def steps(self) -> AsyncIterator[Any]:
        """The items of an asynchronous generator of the program."""
        while True:
            has_ended, item = _ask(self, STEP)
            if has_ended:
                return
            yield item


_CONTAINERS = (list, dict, set, deque)
_PREDICATES = frozenset({"startswith", "endswith", "all", "any"} | {
    name for kind in (str, set, float) for name in dir(kind) if name.startswith("is")
})  # fmt: skip
"""Methods of data that say yes or no. Data has them here; an object of the program could say yes to all of them."""
_NOT_AWAITED = (Remote.finish.__code__, Remote.steps.__code__)
"""The code that runs when the test awaits an object of the program."""


def _handle(remote: Remote) -> int:
    return int(object.__getattribute__(remote, "handle"))


def _ask(remote: Remote, what: str, *args: object) -> Any:
    link: Link = object.__getattribute__(remote, "link")
    return link.call(what, remote, *args)


def _operated(name: str, *operands: Any) -> Any:
    remotes = [each for each in operands if isinstance(each, Remote)]
    are_instances = all(object.__getattribute__(each, "is_instance") for each in remotes)
    if len(operands) > 1 and not are_instances:
        raise TypeError(f"{name} of an object of the program that is no instance of a class under test")
    link: Link = object.__getattribute__(remotes[0], "link")
    result = link.call(OPERATE, name, *operands)
    return _instance(result) if are_instances else result


def _instance(value: Any) -> Any:
    """The same value, marked as an instance of a class under test if it is an object of the program."""
    if isinstance(value, Remote):
        object.__setattr__(value, "is_instance", True)
    return value


def _operator(name: str, turned: bool) -> Callable[..., Any]:
    def method(self: Remote, *others: Any) -> Any:
        return _operated(name, *reversed((self, *others))) if turned else _operated(name, self, *others)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _known = _name if hasattr(operator, _name) else f"{_name}_"
    setattr(Remote, f"__{_name}__", _operator(_known, turned=False))
    setattr(Remote, f"__r{_name}__", _operator(_known, turned=True))
for _name in ("neg", "pos", "abs", "lt", "le", "gt", "ge", "int", "float", "delitem"):
    setattr(Remote, f"__{_name}__", _operator(_name, turned=False))


class Proxy:
    """The proxy of a function or class of the program."""

    def __init__(self, link: Link, name: str) -> None:
        self._link, self._name = link, name
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call it, in the program."""
        value = self._link.call(self._name, *args, **kwargs)
        return _instance(value) if self._name[:1].isupper() else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._link.call(NAMED, self._name), name)

    def __instancecheck__(self, value: object) -> bool:
        """Whether an object of the program is of this class, as the program reports."""
        return isinstance(value, Remote) and _ask(value, KIND, self._link.call(NAMED, self._name)) is True


def proxies(link: Link, names: Sequence[str], caught: frozenset[str]) -> Mapping[str, Any]:
    """The proxies that a test finds under the names of the program; those in `caught` are exceptions."""
    link.errors |= {name: type(name, (RemoteError,), {}) for name in names if name in caught}
    return {name: link.errors.get(name) or Proxy(link, name) for name in names}
