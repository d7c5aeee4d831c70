"""Random arguments from a declared specification, the same for the same seed.

{"type": "int", "min": 0, "max": 9}            {"type": "float", "min": 0, "max": 1}       {"type": "bool"}
{"type": "str", "alphabet": "ab", "min_len": 0, "max_len": 5}              {"type": "choice", "from": [1, 2]}
{"type": "list", "of": SPEC, "min_len": 0, "max_len": 5}                   {"type": "tuple", "of": [SPEC, ...]}
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ttc.errors import ConfigError

Spec = Mapping[str, Any]
MAX_LENGTH = 10_000


def draw(specs: Sequence[Spec], source: random.Random) -> list[Any]:
    """Return one list of arguments."""
    return [_TYPES[spec["type"]](spec, source) for spec in specs]


def copy(value: Any) -> Any:
    """Copy a drawn value; lists are new, the rest cannot be changed."""
    return [copy(item) for item in value] if isinstance(value, list) else value


def check(specs: object) -> None:
    """Raise ConfigError when the specification of the arguments cannot be used, naming the field."""
    if not isinstance(specs, (list, tuple)):
        raise ConfigError(f"target.random.arguments must be a list, got {specs!r}")
    for spec in specs:
        if not isinstance(spec, Mapping) or spec.get("type") not in _TYPES:
            raise ConfigError(f"target.random.arguments: type must be one of {', '.join(_TYPES)}, got {spec!r}")
        inner = spec.get("of", [])
        check([inner] if isinstance(inner, Mapping) else inner)
    try:
        draw(specs, random.Random(0))
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise ConfigError(f"target.random.arguments: {type(exc).__name__}: {exc} in {specs!r}"[:300]) from exc


def _int(spec: Spec, source: random.Random) -> int:
    return source.randint(spec["min"], spec["max"])


def _float(spec: Spec, source: random.Random) -> float:
    return source.uniform(spec["min"], spec["max"])


def _bool(_spec: Spec, source: random.Random) -> bool:
    return source.random() < 0.5


def _str(spec: Spec, source: random.Random) -> str:
    return "".join(source.choice(spec["alphabet"]) for _ in range(_length(spec, source)))


def _list(spec: Spec, source: random.Random) -> list[Any]:
    return [draw([spec["of"]], source)[0] for _ in range(_length(spec, source))]


def _tuple(spec: Spec, source: random.Random) -> tuple[Any, ...]:
    return tuple(draw(spec["of"], source))


def _choice(spec: Spec, source: random.Random) -> Any:
    return source.choice(spec["from"])


def _length(spec: Spec, source: random.Random) -> int:
    return source.randint(spec.get("min_len", 0), min(spec["max_len"], MAX_LENGTH))


_TYPES: Mapping[str, Callable[[Spec, random.Random], Any]] = {
    "int": _int, "float": _float, "bool": _bool, "str": _str, "list": _list, "tuple": _tuple, "choice": _choice,
}  # fmt: skip
