"""JSON schemas of targets: which part of a text must be JSON, and whether a schema is one; a worker matches the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttc.answers import extract
from ttc.answers.extract import answer_start
from ttc.core import Target
from ttc.errors import ConfigError, MissingExtra
from ttc.verifiers.shared._targets import jsonable


def schema_of(target: Target) -> Any:
    """The schema of a target that has one, else None. Raises ConfigError when it is no JSON object."""
    schema = target.get("schema") if isinstance(target, Mapping) else None
    if schema is not None and not isinstance(schema, (dict, bool)):
        raise ConfigError(f"target.schema must be a JSON schema, got {schema!r}"[:300])
    jsonable("schema", schema)
    return schema


def check_schema(schema: Any) -> None:
    """Raise ConfigError when `schema` is not a JSON schema, MissingExtra when the package that knows is absent."""
    try:
        import jsonschema
    except ImportError as exc:
        raise MissingExtra("jsonschema", "verify") from exc
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.exceptions.SchemaError as exc:
        raise ConfigError(f"target.schema is not a JSON schema: {exc.json_path}: {exc.message}"[:300]) from exc


def json_part(text: str, *, tagged: bool) -> str:
    """What should be JSON: the content of the last <answer> tag where one is asked for, else the last fence, else all.

    The thinking does not count.
    """
    if tagged and (hit := extract(text, "exact")).method == "tag":
        return hit.final or ""
    body = text[answer_start(text) or 0 :]
    pieces = body.split("```")
    return pieces[-2].removeprefix("json").removeprefix("JSON") if len(pieces) > 2 else body
