"""JSON Schemas that a grammar is to hold: which can be, and their bounds.

The grammar library has no bounds of its own: a schema may take it minutes, all memory or the stack. So everything that
makes it slow is counted first, and a schema with more than that is not held.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias
from urllib.parse import unquote

from serve.requests.errors import ApiError

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_PROPERTIES = 5000
"""Of a schema, in all its objects together, as OpenAI's API has it: the time to read one grows with the square."""
MAX_CONSTANTS = 5000
"""Parts of the lists and objects that stand in the const and enum of a request: each is a rule of the grammar, which
takes seconds for some ten thousand, and the stack for one object of as many."""
MAX_ITEMS = 10_000
"""Of all minItems and maxItems of a request, added up: a grammar has symbols for each item, and all memory for 1e9."""
MAX_LEVELS = 500
"""Of a schema, its references followed: the library goes down them on the stack, and the server ends with that."""
MAX_PATTERNS = 12
"""That one text may have to fit together: whether any does takes twice the time with each more of them."""
MAX_PATTERN_PROPERTIES = 100
"""Of a schema: whether any two of their names overlap is worked out, which takes minutes for some hundreds."""
_COMPOSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if"})
"""Keywords that bring properties beside those of the schema itself."""
_CONSTRAINTS = frozenset(
    {"pattern", "format", "properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
)
"""Keywords of a schema itself that such others add to."""
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_TABLES = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values are schemas by name, whatever the name."""
Parts: TypeAlias = Sequence[Mapping[str, Any]]
"""Every object in a schema (`_objects`)."""


def holdable(schema: Mapping[str, Any], strict: bool, place: str) -> Mapping[str, Any]:
    """`schema`, or any object where it cannot be held and need not be; raises ApiError where it must."""
    import llguidance

    error = _excess(schema) or llguidance.LLMatcher.validate_grammar(joined(f"start: {json_rule(schema)}"))
    if not error:
        return schema
    if strict:
        raise unheld(place, error)
    return {"type": "object"}


def unheld(place: str, error: str) -> ApiError:
    """The refusal of a schema that cannot be held."""
    reason = " ".join(error.split())[:300]
    return ApiError(400, "unsupported_schema", f"{place} cannot be held to: {reason}", param=place.partition(":")[0])


def check_together(schemas: Sequence[Mapping[str, Any]], place: str) -> None:
    """Refuse schemas of one grammar that come to more than it can have; raises ApiError."""
    parts = _objects(list(schemas))
    for num, most, what in (
        (_num_items(parts), MAX_ITEMS, "minItems and maxItems"),
        (_num_constants(parts), MAX_CONSTANTS, "constants"),
    ):
        if num > most:
            raise unheld(place, f"their {what} together come to more than {most}")


def names_others(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has properties beside those that it describes itself."""
    required, own = schema.get("required"), schema.get("properties") or {}
    is_list = isinstance(required, list) and isinstance(own, Mapping)
    return bool(_COMPOSED & schema.keys()) or (is_list and any(str(name) not in own for name in required or ()))


def rooted(schema: Any, root: str) -> Any:
    """`schema` with its references to itself as they are once it stands at `root`: pydantic's own schemas have them."""
    if isinstance(schema, list):
        return [rooted(part, root) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {name: part if name in _DATA else _moved_part(name, part, root) for name, part in schema.items()}
    place = schema.get("$ref")
    return moved | {"$ref": f"#{root}{place[1:]}"} if isinstance(place, str) and place.startswith("#") else moved


def _moved_part(name: str, part: Any, root: str) -> Any:
    if name in _TABLES and isinstance(part, Mapping):
        return {own: rooted(schema, root) for own, schema in part.items()}
    return rooted(part, root)


def joined(*rules: str) -> str:
    """A grammar of these rules."""
    return "\n".join(["%llguidance {}", *rules])


def json_rule(schema: Any) -> str:
    """What a rule says of JSON by a schema."""
    return "%json " + json.dumps({**schema, "x-guidance": _SPACING} if isinstance(schema, dict) else schema)


def _excess(schema: Mapping[str, Any]) -> str:
    """What `schema` has too much of for the library, which has no bounds of its own; "" where nothing."""
    parts = _objects(schema)
    for num, most, what in (
        (_num_properties(parts), MAX_PROPERTIES, "properties"),
        (_num_constants(parts), MAX_CONSTANTS, "parts in its constants"),
        (_num_items(parts), MAX_ITEMS, "items in its minItems and maxItems together"),
        (_num_levels(schema), MAX_LEVELS, "levels, its references followed"),
        (_num_meeting(parts), MAX_PATTERNS, "patterns, and schemas that add to each other"),
        (_num_pattern_properties(parts), MAX_PATTERN_PROPERTIES, "patternProperties"),
    ):
        if num > most:
            return f"it has {num:.16g} {what}, and at most {most} are read"
    return ""


def _objects(value: Any) -> list[Mapping[str, Any]]:
    """Every object in a JSON value."""
    objects, todo = [], [value]
    while todo:
        part = todo.pop()
        objects += [part] if isinstance(part, Mapping) else []
        todo += [child for child in (part.values() if isinstance(part, Mapping) else part) if _is_compound(child)]
    return objects


def _is_compound(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _num_properties(parts: Parts) -> int:
    """The properties of all objects in a schema, those that are only required included."""
    tables = ((part.get("properties"), part.get("required")) for part in parts)
    return sum(
        len({*(own if isinstance(own, Mapping) else ()), *map(str, required if isinstance(required, list) else ())})
        for own, required in tables
    )


def _num_pattern_properties(parts: Parts) -> int:
    """The entries of all tables patternProperties in a schema."""
    tables = (part.get("patternProperties") for part in parts)
    return sum(len(own) for own in tables if isinstance(own, Mapping))


def _num_constants(parts: Parts) -> int:
    """The parts of all lists and objects in the const and enum of a schema; an empty one counts as one."""
    values = [part["const"] for part in parts if "const" in part]
    values += [value for part in parts if isinstance(part.get("enum"), list) for value in part["enum"]]
    num = 0
    while values:
        inner = [value for value in values if _is_compound(value)]
        num += sum(max(len(value), 1) for value in inner)
        values = [child for value in inner for child in (value.values() if isinstance(value, Mapping) else value)]
    return num


def _num_items(parts: Parts) -> float:
    """The minItems and maxItems of all lists in a schema, added up."""
    bounds = (part.get(name) for part in parts for name in ("minItems", "maxItems"))
    return sum(max(bound, 0) for bound in bounds if isinstance(bound, int | float))


def _num_meeting(parts: Parts) -> int:
    """The patterns in a schema, where one of its parts adds to another, so that they may meet; else none."""
    adds = any("allOf" in part or (_COMPOSED & part.keys() and _CONSTRAINTS & part.keys()) for part in parts)
    return sum(isinstance(part.get(name), str) for part in parts for name in ("pattern", "format")) if adds else 0


def _num_levels(schema: Mapping[str, Any]) -> int:
    """Most levels within each other in `schema`, references followed; where they lead in circles, all of them."""
    seen: dict[int, tuple[int, dict[str, int]]] = {}
    below: dict[str, tuple[int, dict[str, int]]] = {}
    todo = ["#"]
    while todo:
        name = todo.pop()
        if name in below:
            continue
        part = _at(schema, name)
        below[name] = seen[id(part)] = seen.get(id(part)) or _levels(part)
        if len(below) > MAX_LEVELS:
            return len(below)
        todo += below[name][1]
    try:
        order = list(TopologicalSorter({name: refs for name, (_, refs) in below.items()}).static_order())
    except CycleError:
        return sum(levels for levels, _ in below.values())
    deepest: dict[str, int] = {}
    for name in order:
        levels, refs = below[name]
        deepest[name] = max([levels, *(above + deepest[ref] for ref, above in refs.items())])
    return deepest["#"]


def _levels(part: Any) -> tuple[int, dict[str, int]]:
    """How many objects and lists lie within each other in `part`, and of each reference how many it lies within."""
    level, num = [part], 0
    refs: dict[str, int] = {}
    while level:
        num += 1
        objects = [item for item in level if isinstance(item, Mapping)]
        refs |= {ref: num for item in objects if isinstance(ref := item.get("$ref"), str)}
        inner = [list(item.values()) for item in objects] + [item for item in level if isinstance(item, list)]
        level = [child for children in inner for child in children if isinstance(child, Mapping | list)]
    return num, refs


def _at(schema: Any, ref: str) -> Any:
    """What a reference leads to, by its path in `schema`; all of that where it says so in another way."""
    part = schema
    try:
        for step in unquote(ref).split("/")[1:] if ref.startswith("#/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            part = part[int(step)] if isinstance(part, list) else part[step]
    except (LookupError, ValueError, TypeError):
        return schema
    return part
