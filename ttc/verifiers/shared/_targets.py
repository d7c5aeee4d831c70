"""What verifiers of structured targets share: naming the problem in an error, and refusing unknown fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ttc.config.values import nearest
from ttc.errors import ConfigError, MissingExtra

MAX_ERROR = 300


@contextmanager
def naming(item: str) -> Iterator[None]:
    """Put `item` before the message of a ConfigError; a missing package is no fault of the item."""
    try:
        yield
    except MissingExtra:
        raise
    except ConfigError as exc:
        raise ConfigError(f"{item}: {exc}" if item else str(exc)) from exc


def jsonable(name: str, value: object) -> None:
    """Raise ConfigError when a field of a target cannot be sent to a worker as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"target.{name} is not JSON: {exc}"[:MAX_ERROR]) from exc


def known_fields(target: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raise ConfigError for the first field of `target` that is not one of `fields`."""
    for name in target:
        if name not in fields:
            raise ConfigError(
                f"target.{name}: no such field{nearest(str(name), fields)} (known: {', '.join(fields)})"[:MAX_ERROR]
            )
