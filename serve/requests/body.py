"""Bodies of requests: JSON read with care, the base of every request model, and refusals that name the field.

A dialect describes what it accepts as a pydantic model; FastAPI checks bodies against it and shows it in the OpenAPI
document. Values are strict (a number is no text), unknown fields that are not null are refused with the nearest known,
integers may be written as 3.0. A field whose `x-reason` says why it is limited has that reason in the message of its
refusals.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from serve.requests.errors import ApiError
from ttc.config.values import counted, nearest

Model = TypeVar("Model", bound=BaseModel)
MAX_SHOWN = 80
MAX_DEPTH = 128
"""Levels of a body: a JSON schema has two to four for each object within another."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Where a body may hold half a character, which no tokenizer takes."""
_KINDS = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}
"""What pydantic's errors of type ask for."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""For integers, which JSON may write as 3.0."""


class _FirstFault(FailFast):
    """As pydantic has it, and it may stand in a union."""

    __hash__ = object.__hash__


FIRST_FAULT = _FirstFault()
"""For lists, which are then checked up to their first fault: a long list of faults would cost an error each."""


class RequestBody(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Leave unknown fields out that are null, which ask for nothing, and all but one that are not.

        Each would cost an error, and some clients send every field of their API, whether or not it is set.
        """
        if cls.model_config["extra"] != "forbid" or not isinstance(value, dict):
            return value
        if len(value) <= len(cls.model_fields) and None not in value.values():
            return value
        fields = _fields_of(cls)
        unknown = next((name for name, item in value.items() if name not in fields and item is not None), None)
        return {name: item for name, item in value.items() if name in fields or name == unknown}


def _fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by their names in JSON."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


class OpenBody(RequestBody):
    """A JSON object whose further fields are kept as they came."""

    model_config = ConfigDict(extra="allow")


def with_reason(reason: str, default: Any = None) -> Any:
    """A field whose limits have a reason, which every refusal of a value gives."""
    return Field(default, json_schema_extra={"x-reason": reason})


def parse_json(raw: bytes) -> Any:
    """The value of a body.

    Raises:
        ApiError: it is not UTF-8, not JSON, says a field twice, holds NaN, Infinity or a number that would become one,
            or is nested too deep.
    """
    if not raw.strip():
        raise ApiError(400, "invalid_json", "the body is empty: send a JSON object")
    try:
        value = json.loads(
            raw.decode("utf-8-sig"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_object
        )
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {_fault(exc)}") from exc
    if _depth(value) > MAX_DEPTH:
        raise ApiError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


def _fault(exc: Exception) -> str:
    """What is wrong with a body, without Python's own terms."""
    if isinstance(exc, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {exc.start}"
    if isinstance(exc, UnicodeEncodeError):
        return "it holds half of a character (an unpaired surrogate), which is no text"
    if isinstance(exc, RecursionError):
        return "nested too deep"
    return "an integer has too many digits" if "int_max_str_digits" in str(exc) else str(exc)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the field {twice[:MAX_SHOWN]!r} is there twice")
    return fields


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:MAX_SHOWN]} is too large for a number")
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


def read(model: type[Model], value: Any, where: str = "") -> Model:
    """`value` checked; raises ApiError, 400, naming the first field that does not fit; paths begin with `where`."""
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_context=True)
        raise refusal(model, value, errors, where) from exc


def refusal(model: type[BaseModel], value: Any, errors: Sequence[Any], where: str = "") -> ApiError:
    """The refusal of `value` for pydantic's `errors`: of the first, or of all branches of a union together."""
    first = errors[0]
    place = _Place(model, value, first["loc"], where)
    if place.branch is None:
        return _refused(place, first)
    # A union that no branch fits: tell of the one branch that fits by its type, else of all of them.
    stem = first["loc"][: place.branch]
    branches = [error for error in errors if error["loc"][: place.branch] == stem]
    union = _Place(model, value, stem, where)
    telling = [error for error in branches if error["type"] not in _KINDS or len(error["loc"]) > place.branch + 1]
    if len({error["loc"][place.branch] for error in telling}) == 1:  # which may hold another union
        inner = [{**error, "loc": (*stem, *error["loc"][place.branch + 1 :])} for error in telling]
        return refusal(model, value, inner, where)
    kinds = " or ".join(dict.fromkeys(_KINDS[error["type"]] for error in branches if error["type"] in _KINDS))
    return union.refuse(f"must be {kinds or 'a value'} of the documented form, got {shown(union.value)}")


class _Place:
    """Where an error lies: its path as a message has it, the value there, and what the models say of the field.

    pydantic's location also names the branch of a union that it tried; `branch` is the index of the first such name.
    """

    def __init__(self, model: type[BaseModel], value: Any, location: Sequence[int | str], where: str) -> None:
        self.path, self.value, self.reason, self.branch = where, value, "", None
        self.known: list[str] = []
        self.home = ""
        """The path of a field of this name in an object beside it, where there is one."""
        models = [model]
        for index, item in enumerate(location):
            if isinstance(self.value, list) and isinstance(item, int):
                self.path, self.value = f"{self.path}[{item}]", self.value[item]
            elif isinstance(self.value, dict) and (item in self.value or _is_field(models, item)):
                self.path = f"{self.path}.{item}" if self.path else str(item)
                self.value = self.value.get(item)
                fields = {name: field for candidate in models for name, field in _fields_of(candidate).items()}
                self.known = list(fields)
                if item in fields:
                    extra = fields[str(item)].json_schema_extra
                    self.reason = str(extra.get("x-reason", "")) if isinstance(extra, dict) else ""
                    models = list(_models(fields[str(item)].annotation))
                else:
                    objects = {name: _models(field.annotation, lists=False) for name, field in fields.items()}
                    homes = (f"{name}.{item}" for name, kinds in objects.items() if _is_field(list(kinds), item))
                    self.home = next(homes, "")
            elif self.branch is None:
                self.branch = index

    def refuse(self, text: str, code: str = "invalid_value") -> ApiError:
        """The refusal with `text` after the name of the field."""
        path = self.path if len(self.path) <= MAX_SHOWN else self.path[:MAX_SHOWN] + "..."
        reason = f" ({self.reason})" if self.reason else ""
        return ApiError(400, code, f"{path or 'the body'} {text}{reason}", param=path or None)


def _is_field(models: Sequence[type[BaseModel]], name: int | str) -> bool:
    return any(name in _fields_of(model) for model in models)


def _models(annotation: Any, *, lists: bool = True) -> typing.Iterator[type[BaseModel]]:
    """The models that a type names, unions and lists of them included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation) if lists or typing.get_origin(annotation) is not list else ():
        yield from _models(argument, lists=lists)


def _refused(place: _Place, error: Mapping[str, Any]) -> ApiError:
    """One error of pydantic in our words."""
    kind, limits = error["type"], error.get("ctx", {})
    got = shown(place.value)
    if kind == "missing":
        return place.refuse("is required", "missing_required_parameter")
    if kind == "extra_forbidden":
        name = place.path.rpartition(".")[2]
        hint = nearest(name, place.known) if len(name) <= MAX_SHOWN else ""
        if place.home:
            hint = f"; did you mean {place.home!r}?"
        return place.refuse(f"is an unknown field{hint}", "unknown_parameter")
    if kind in _KINDS:
        return place.refuse(f"must be {_KINDS[kind]}, got {got}", "invalid_type")
    if kind == "literal_error":
        expected = limits["expected"].replace("False", "false")
        names = re.findall(r"'([^']*)'", expected)
        text = isinstance(place.value, str) and len(place.value) <= MAX_SHOWN
        return place.refuse(f"must be {expected}, got {got}{nearest(place.value, names) if text else ''}")
    for key, side in (("ge", "least"), ("le", "most")):
        if key in limits:
            return place.refuse(f"must be at {side} {limits[key]}, got {got}")
    for key, side in (("min_length", "least"), ("max_length", "most")):
        if key in limits:
            unit = "character" if isinstance(place.value, str) else "item"
            return place.refuse(f"must have at {side} {counted(limits[key], unit)}, got {len(place.value)}")
    if kind == "finite_number":
        return place.refuse("is not a finite number")
    return place.refuse(str(error["msg"]))


def shown(value: Any) -> str:
    """`value` as a message repeats it, shortened."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 128:
        return "a very large integer"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
