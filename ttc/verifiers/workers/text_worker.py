"""The worker of verifiers that run patterns and schemas of tasks over text; its argument is its memory in MB.

Python's `re` backtracks, and a schema may hold patterns as well: both can take exponential time on a hostile text, so
they run in a process that can be killed, under the limits of the pool.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from ttc.verifiers.workers.worker import serve

_DEPTH = 200


def search(request: Mapping[str, Any]) -> dict[str, Any]:
    """Whether each of request["patterns"] occurs in request["text"] (or is all of it, with "whole")."""
    flags = int(request["flags"])
    compiled = [re.compile(pattern, flags) for pattern in request["patterns"]]
    find = [pattern.fullmatch if request["whole"] else pattern.search for pattern in compiled]
    return {"found": [match(request["text"]) is not None for match in find]}


def validate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Whether request["text"] is JSON that request["schema"] allows, and if not, where it fails first."""
    import jsonschema
    import referencing

    try:
        value = json.loads(request["text"])
    except (ValueError, RecursionError) as exc:
        return {"valid": False, "reason": f"not JSON ({exc})"[:200]}
    if _deeper(value, _DEPTH):
        return {"status": "limit", "reason": f"nested deeper than {_DEPTH}"}
    schema = request["schema"]
    # An empty registry: a reference to another place is an error, never a download.
    checker = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(
        schema, registry=referencing.Registry()
    )
    error = jsonschema.exceptions.best_match(checker.iter_errors(value))
    return {"valid": error is None, "reason": "" if error is None else f"{error.json_path}: {error.message}"[:200]}


def _deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [child for item in layer for child in _children(item)]
        if not layer:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


if __name__ == "__main__":
    serve({"search": search, "validate": validate}, int(sys.argv[1]))
