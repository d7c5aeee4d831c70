"""Fields that several kinds of stage share, written once: a frozen dataclass that a factory's signature takes in.

    @flattened
    def sft(*, data: str | None = None, course: Course) -> Stage: ...

is called, bound and listed with the fields of `Course` in the place of `course`, each with its default and its entry
in the `Args:` section of the class, and gets them as one value. So the signature stays the schema of a stage, as
`ttc.config.signatures` reads it. A kind that wants another default says so in a subclass, another meaning by an entry
of its own. Left out: default factories; type checks of direct calls, which the schema makes when a recipe is bound.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

__all__ = ["Fields", "flattened"]

T = TypeVar("T")
_SECTION = "Args:\n"


class Fields:
    """Base of the dataclasses (frozen, slotted, keywords only) that `flattened` puts into a signature.

    The section `Args:` ends the docstring of a class.
    """

    __slots__ = ()

    def given(self) -> dict[str, Any]:
        """Every field by its name, to hand all of them on."""
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]


def flattened(factory: Callable[..., T]) -> Callable[..., T]:
    """Put the fields of every parameter that is a `Fields` into the signature and the docstring of `factory`.

    Raises:
        ValueError: two parameters of one name.
    """
    module = sys.modules[factory.__module__].__dict__  # what is returned may be defined further down, so it is left out
    asked = {name: kind for name, kind in factory.__annotations__.items() if name != "return"}
    hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=asked), module)
    shared: dict[str, type[Fields]] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(factory).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and issubclass(kind, Fields)):
            flat.append(parameter)
            continue
        shared[name] = kind
        flat += inspect.signature(kind).parameters.values()
        hints |= typing.get_type_hints(kind)
    owners = {item: name for name, kind in shared.items() for item in inspect.signature(kind).parameters}

    def made(**given: Any) -> T:
        own: dict[str, Any] = {name: value for name, value in given.items() if name not in owners}
        for name, kind in shared.items():
            own[name] = kind(**{item: value for item, value in given.items() if owners.get(item) == name})
        return factory(**own)

    made.__name__, made.__qualname__, made.__module__ = factory.__name__, factory.__qualname__, factory.__module__
    made.__doc__ = _documented(factory.__doc__ or "", list(shared.values()))
    made.__annotations__ = {parameter.name: hints[parameter.name] for parameter in flat}
    made.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return made


def _documented(doc: str, kinds: list[type[Fields]]) -> str:
    """The docstring with the entries of `kinds` before its own, which win."""
    head, _, own = inspect.cleandoc(doc).partition(_SECTION)
    bases = [base for kind in kinds for base in reversed(kind.__mro__) if base is not Fields]
    sections = [inspect.cleandoc(base.__doc__ or "").partition(_SECTION)[2] for base in bases]
    entries = "".join(f"{section.rstrip()}\n" for section in sections if section)
    return f"{head}{_SECTION}{entries}{own}"
