"""The JSON Schema subset that requests are described in: the description is the check.

One dictionary per route says what is accepted; `read` checks a body against it and the OpenAPI document shows it, so
the two cannot differ. Keywords: type, enum, const, minimum, maximum, minLength, maxLength, minItems, maxItems, items,
properties, required, additionalProperties, anyOf; `x-reason` is added to the message of a refusal. Errors name the
field (`messages[0].content`) and, for an unknown one, the nearest known.

Left out: references, patterns, formats; nothing here compiles or evaluates what a request holds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from serve.requests.errors import ApiError, invalid
from ttc.config.values import nearest

__all__ = ["Schema", "described", "nullable", "parse_json", "read", "shown", "without_nulls"]

Schema: TypeAlias = Mapping[str, Any]
MAX_SHOWN = 80
MAX_DEPTH = 24
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Where a body may hold half a character, which no tokenizer takes."""


def nullable(schema: Schema) -> dict[str, Any]:
    """`schema`, or null."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    types = schema.get("type", [])
    changed = {**schema, "type": [*([types] if isinstance(types, str) else types), "null"]}
    if "enum" in schema:
        changed["enum"] = [*schema["enum"], None]
    return changed


def described(schema: Schema, text: str) -> dict[str, Any]:
    """`schema` with a description for the documentation."""
    return {**schema, "description": text}


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is null: in OpenAI's API that is the same as absent."""
    return {key: value for key, value in values.items() if value is not None}


def parse_json(raw: bytes) -> Any:
    """Return the value of a request body.

    Raises:
        ApiError: not UTF-8, not JSON, NaN or Infinity, or nested too deep.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeDecodeError, ValueError, RecursionError) as exc:
        reason = "nested too deep" if isinstance(exc, RecursionError) else str(exc)
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {reason}") from exc
    if _depth(value) > MAX_DEPTH:
        raise ApiError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _depth(value: Any) -> int:
    """Levels of arrays and objects; stops counting one past the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
        depth += bool(inner)
    return depth


def read(value: Any, schema: Schema, where: str = "") -> Any:
    """Return `value` checked: integers that came as 3.0 are integers; objects and arrays are new ones.

    Raises:
        ApiError: 400 naming the first field that does not fit.
    """
    if "anyOf" in schema:
        return _read_any(value, schema, where)
    kinds = schema.get("type")
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is(value, kind) for kind in kinds):
            raise _refusal(where, schema, f"must be {_names(kinds)}, got {shown(value)}", "invalid_type")
    if "const" in schema and not _same(value, schema["const"]):
        raise _refusal(where, schema, f"must be {json.dumps(schema['const'])}, got {shown(value)}")
    if "enum" in schema and not any(_same(value, item) for item in schema["enum"]):
        known = [str(item) for item in schema["enum"] if item is not None]
        hint = nearest(value, known) if isinstance(value, str) and len(value) <= MAX_SHOWN else ""
        raise _refusal(where, schema, f"must be one of {', '.join(known)}, got {shown(value)}{hint}")
    if isinstance(value, dict):
        return _read_object(value, schema, where)
    if isinstance(value, list):
        return _read_array(value, schema, where)
    if isinstance(value, str):
        _check_length(value, schema, where, "Length", "characters")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _read_number(value, schema, where)
    return value


def _read_any(value: Any, schema: Schema, where: str) -> Any:
    failures: list[ApiError] = []
    for branch in schema["anyOf"]:
        try:
            return read(value, branch, where)
        except ApiError as error:
            failures.append(error)
    telling = [error for error in failures if error.code != "invalid_type" or error.param != (where or None)]
    if len(telling) == 1:
        raise _with_reason(telling[0], schema)
    kinds = sorted({kind for branch in schema["anyOf"] for kind in _kinds(branch)})
    raise _refusal(where, schema, f"must be {_names(kinds)} of the documented form, got {shown(value)}")


def _kinds(schema: Schema) -> Sequence[str]:
    kinds = schema.get("type", "object")
    return [kinds] if isinstance(kinds, str) else kinds


def _read_object(value: Mapping[str, Any], schema: Schema, where: str) -> dict[str, Any]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    result: dict[str, Any] = {}
    for key, item in value.items():
        path = f"{where}.{key}" if where else key
        if key in properties:
            result[key] = read(item, properties[key], path)
        elif schema.get("additionalProperties", True) is False:
            name = path if len(path) <= MAX_SHOWN else path[:MAX_SHOWN] + "..."
            hint = nearest(key, list(properties)) if len(key) <= MAX_SHOWN else ""
            unknown = invalid(name, f"unknown field {name!r}{hint}", "unknown_parameter")
            raise _with_reason(unknown, schema)
        else:
            result[key] = item
    for key in schema.get("required", ()):
        if key not in value:
            path = f"{where}.{key}" if where else key
            raise invalid(path, f"{path} is required", "missing_required_parameter")
    return result


def _read_array(value: list[Any], schema: Schema, where: str) -> list[Any]:
    _check_length(value, schema, where, "Items", "items")
    items = schema.get("items", {})
    return [read(item, items, f"{where}[{index}]") for index, item in enumerate(value)]


def _check_length(value: str | list[Any], schema: Schema, where: str, keyword: str, unit: str) -> None:
    least, most = schema.get(f"min{keyword}", 0), schema.get(f"max{keyword}", math.inf)
    if not least <= len(value) <= most:
        limit = f"at least {least}" if len(value) < least else f"at most {most}"
        raise _refusal(where, schema, f"must have {limit} {unit}, got {len(value)}")


def _read_number(value: float, schema: Schema, where: str) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise _refusal(where, schema, "is not a finite number")
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise _refusal(where, schema, f"must be {limit}, got {shown(value)}")
    return int(value) if "integer" in _kinds(schema) else value


def _is(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    tests = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
        "number": number,
        "integer": number and (isinstance(value, int) or value.is_integer()),
    }
    return tests[kind]


def _same(value: Any, wanted: Any) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _names(kinds: Sequence[str]) -> str:
    articles = {"integer": "an integer", "array": "an array", "object": "an object", "null": "null"}
    return " or ".join(articles.get(kind, f"a {kind}") for kind in kinds)


def shown(value: Any) -> str:
    """`value` as a message repeats it, shortened."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 128:
        return "a very large integer"
    text = (
        json.dumps(value)
        if not isinstance(value, dict | list)
        else f"an {'object' if isinstance(value, dict) else 'array'}"
    )
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def _refusal(where: str, schema: Schema, text: str, code: str = "invalid_value") -> ApiError:
    return _with_reason(ApiError(400, code, f"{where or 'the body'} {text}", param=where or None), schema)


def _with_reason(error: ApiError, schema: Schema) -> ApiError:
    """`error` with the reason that the schema gives for its limits."""
    if "x-reason" not in schema:
        return error
    return ApiError(error.status, error.code, f"{error.message} ({schema['x-reason']})", param=error.param)
