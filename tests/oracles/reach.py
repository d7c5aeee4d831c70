"""Which oracle calls which function of the search code, and how long each takes: who to ask about a mutant, in order.

A test that never calls the function that a mutant is in cannot notice it, so it need not be run: as in the mutation
tools that map tests to code (Stryker's "perTest"), by function here, which a trace of calls alone tells. What runs
while tests are collected (constants, signatures, decorators, imports) concerns all tests, and what a test's fixtures
call all tests of its file, since they share them. Hypothesis draws other examples in every run, so a function that only
rare examples call can be missed.
"""

from __future__ import annotations

import ast
import json
import pathlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import pytest

COLLECTING = ""


@dataclass(frozen=True)
class Reach:
    """Seconds of every test, and the functions (`file:first line`) that are called by test, test file or collection."""

    seconds: Mapping[str, float]
    called: Mapping[str, frozenset[str]]

    def tests(self, file: str, first_line: int | None) -> list[str]:
        """The tests that can notice a change there, the quickest first; all where it is in no function."""
        name = f"{file}:{first_line}"
        everywhere = first_line is None or name in self.called.get(COLLECTING, ())
        found = [
            test
            for test in self.seconds
            if everywhere or any(name in self.called.get(key, ()) for key in (test, test.partition("::")[0]))
        ]
        return sorted(found, key=lambda test: (self.seconds[test], test))

    def files(self) -> set[str]:
        """The files that tests call something of."""
        return {name.rpartition(":")[0] for key, names in self.called.items() if key != COLLECTING for name in names}


def owner(text: str, line: int) -> int | None:
    """The first line, decorators included, of the innermost function whose body holds `line`."""
    found = [
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or line)
    ]
    return max(found, default=None)


class Recorder:
    """A pytest plugin that traces calls into the packages below `root` and saves a `Reach` when the session ends."""

    def __init__(self, root: pathlib.Path, save: pathlib.Path) -> None:
        self._prefix, self._save = f"{root}/", save
        self._key = COLLECTING
        self._met: dict[int, CodeType] = {}
        self._called: dict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = {}

    def pytest_sessionstart(self) -> None:
        """Trace from here on, in threads too."""
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Time one test with its fixtures."""
        started = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = round(time.process_time() - started, 3)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[Any]:
        """What fixtures call is booked on the file."""
        self._book(item.nodeid.partition("::")[0])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        """What the test calls is booked on the test."""
        self._book(item.nodeid)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        """Save what was seen."""
        sys.settrace(None)
        called = {key: sorted(names) for key, names in self._called.items()}
        self._save.write_text(json.dumps({"seconds": self._seconds, "called": called}), encoding="utf-8")

    def _book(self, key: str) -> None:
        self._key, self._met = key, {}

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if id(code) in self._met:  # a hash of the code itself would cost more than all the rest
            return
        self._met[id(code)] = code
        if code.co_filename.startswith(self._prefix):
            file = code.co_filename.removeprefix(self._prefix)
            self._called[self._key].add(f"{file}:{code.co_firstlineno}")


def read(path: pathlib.Path) -> Reach:
    """What a Recorder saved."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Reach(data["seconds"], {key: frozenset(names) for key, names in data["called"].items()})


def affordable(tests: Sequence[str], reach: Reach, seconds: float) -> list[str]:
    """The first tests that take no more than `seconds` together; at least one."""
    total, taken = 0.0, list[str]()
    for test in tests:
        total += reach.seconds[test]
        if taken and total > seconds:
            break
        taken.append(test)
    return taken
