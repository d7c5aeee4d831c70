"""The parameters of one instruction, read strictly: what is missing or of the wrong type is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ttc.config.values import nearest
from ttc.errors import ConfigError

Check: TypeAlias = Callable[[str], bool]
"""Whether a response follows one instruction."""
Make: TypeAlias = Callable[["Arguments"], Check]
"""Build a check from the parameters of an instruction; raises ConfigError when they cannot be used."""

_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {"at least": int.__ge__, "less than": int.__lt__}


class Arguments:
    """The `kwargs` of one instruction; `where` names them in errors. A field that is None counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self._read: set[str] = set()

    def text(self, name: str) -> str:
        """A string that is not blank."""
        value = self._get(name, "a string")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{self._where}.{name} must be a string that is not blank, got {value!r}"[:300])
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A non-empty list of strings that are not blank."""
        value = self._get(name, "a list of strings")
        listed = isinstance(value, (list, tuple)) and value
        if not listed or not all(isinstance(item, str) and item.strip() for item in value):
            raise ConfigError(f"{self._where}.{name} must be a list of strings that are not blank, got {value!r}"[:300])
        return tuple(value)

    def count(self, name: str) -> int:
        """A whole number >= 0; one written as a float counts."""
        value = self._get(name, "a whole number")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value != int(value) or value < 0:
            raise ConfigError(f"{self._where}.{name} must be a whole number >= 0, got {value!r}"[:300])
        return int(value)

    def compared(self, relation: str, threshold: str) -> Callable[[int], bool]:
        """How a count is judged: by the fields `relation` ("at least" or "less than") and `threshold`."""
        limit, name = self.count(threshold), self._get(relation, "a relation")
        compare = _RELATIONS.get(name) if isinstance(name, str) else None
        if compare is None:
            relations = " or ".join(map(repr, _RELATIONS))
            raise ConfigError(f"{self._where}.{relation} must be {relations}, got {name!r}"[:300])
        return lambda number: compare(number, limit)

    def finish(self) -> None:
        """Refuse fields that the instruction did not read."""
        for name in self._values:
            if name not in self._read:
                names = ", ".join(sorted(self._read)) or "none"
                hint = nearest(str(name), sorted(self._read))
                raise ConfigError(f"{self._where}.{name}: no such parameter{hint} (known: {names})")

    def _get(self, name: str, what: str) -> Any:
        self._read.add(name)
        if name not in self._values:
            raise ConfigError(f"{self._where}.{name} is missing: {what} is needed")
        return self._values[name]
