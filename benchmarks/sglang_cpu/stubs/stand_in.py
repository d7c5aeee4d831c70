"""Makes a package whose every submodule and every name resolves, and raises only when something is called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class _Absent:
    """A name that is not there: subclasses and attributes are fine, a call is not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(f"{self._name} is not installed; this is its stand-in")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        if not name.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def stand_in(package: str) -> Callable[[str], Any]:
    """Let every submodule of `package` be imported; returns its module-level `__getattr__`."""
    # Last in line: submodules that do exist as files are found before.
    sys.meta_path.append(_Finder(package))

    def absent(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{package}.{name}")

    return absent
