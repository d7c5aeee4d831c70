"""The `ttc` object of a request: which strategy runs, with which parameters and limits.

Its schema is made from the signatures of the installed strategies, so a strategy that is added shows up here by itself.
Only names of the server's own table are looked up, never a file or an address from a request; scorers are those the
operator configured, by name. A parameter that JSON cannot hold (a scorer object) cannot be set.

Left out: `budget_forcing`, since the thinking parameters do what it does, for every strategy, under the server's
ceilings; `auto`, since its plan is a file, which a request must not name.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from serve.requests.errors import ApiError, invalid
from serve.requests.request import SearchWish
from serve.requests.schema import Schema, described, nullable, read, without_nulls
from ttc.answers import KINDS
from ttc.config.registry import POLICIES, STRATEGIES
from ttc.config.signatures import bind, describe
from ttc.config.values import nearest
from ttc.errors import ConfigError, MissingExtra

__all__ = ["Offer", "Offers", "read_search"]

NOT_SERVED = frozenset({"auto", "budget_forcing"})
MAX_TEXT = 200
MAX_SEED = (1 << 63) - 1

COMMON: Mapping[str, Schema] = {
    "max_total_tokens": described(
        nullable({"type": "integer", "minimum": 1}), "Most tokens of the whole search: generated, judged and scored."
    ),
    "seed": nullable({"type": "integer", "minimum": 0, "maximum": MAX_SEED}),
    "answer_kind": described(
        nullable({"type": "string", "enum": sorted(KINDS)}), "How final answers are read and compared in votes."
    ),
    "progress": described(
        nullable({"type": "string", "enum": ["off", "summary", "full"]}), "Progress chunks while a search runs."
    ),
    "return_candidates": described(nullable({"type": "boolean"}), "Return the text of every candidate."),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A strategy this server runs: its function, and the schema of each parameter that a request may set."""

    name: str
    doc: str
    function: Callable[..., Any]
    parameters: Mapping[str, Schema]
    needs_scorer: bool
    takes_scorer: bool

    def bind(self, params: Mapping[str, Any], scorer: object | None) -> dict[str, Any]:
        """Check `params` (JSON) and return the keyword arguments.

        Raises:
            ApiError: an unknown parameter, or a value that does not fit; names it.
        """
        for key, value in params.items():
            if key not in self.parameters:
                known = list(self.parameters)
                raise invalid(
                    f"ttc.{key}",
                    f"ttc.{key}: strategy {self.name} has no such parameter{nearest(key, known)} "
                    f"(it takes: {', '.join(known) or 'none'}; ttc.strategy chooses another)",
                    "unknown_parameter",
                )
            read(value, self.parameters[key], f"ttc.{key}")
        width = self.parameters.get("n", {})
        given = {"n": width["default"], **params} if "default" in width else params
        try:
            return bind(self.function, given, supply={"scorer": scorer} if self.takes_scorer else {})
        except ConfigError as exc:
            raise ApiError(400, "invalid_value", f"ttc: {exc}", param="ttc") from exc


class Offers:
    """The strategies of this server, by name; made once at the start."""

    def __init__(self, names: Iterable[str] | None, scorers: Iterable[str], max_width: int) -> None:
        """`names` limits what is served (None: all that are installed); `max_width` bounds every `n`, given or not.

        Raises:
            ConfigError: a name that is not installed.
        """
        self._offers: dict[str, Offer] = {}
        for name in STRATEGIES.names() if names is None else names:
            if name in NOT_SERVED:
                continue
            try:
                self._offers[name] = _offer(name, STRATEGIES.load(name), max_width)
            except MissingExtra:
                if names is not None:
                    raise
        self._scorers = sorted(scorers)
        self.names = tuple(sorted(self._offers))

    def __getitem__(self, name: str) -> Offer:
        return self._offers[name]

    def __contains__(self, name: str) -> bool:
        return name in self._offers

    def schema(self) -> dict[str, Any]:
        """The schema of the `ttc` object: what any strategy takes; which of it fits is checked when it is chosen."""
        properties: dict[str, Schema] = {
            "strategy": described(
                nullable({"type": "string", "enum": list(self.names)}),
                "How compute is spent. " + " ".join(f"{name}: {self[name].doc}" for name in self.names),
            ),
            "scorer": described(
                nullable({"type": "string", "enum": self._scorers}), "One of the scorers this server has."
            ),
        }
        for name in self.names:
            for key, schema in self[name].parameters.items():
                known = properties.get(key)
                if known is None:
                    properties[key] = schema
                elif _bare(known) != _bare(schema):
                    branches = known.get("anyOf", [known])
                    properties[key] = {"anyOf": [*branches, schema]}
        return {"type": "object", "additionalProperties": False, "properties": {**properties, **COMMON}}

    def to_json(self) -> list[dict[str, Any]]:
        """Every strategy with its parameters, for GET /version and the playground."""
        return [
            {
                "name": name,
                "description": self[name].doc,
                "needs_scorer": self[name].needs_scorer,
                "parameters": dict(self[name].parameters),
            }
            for name in self.names
        ]


def read_search(body: Mapping[str, Any] | None, seed: int | None) -> SearchWish:
    """Return the wish of a checked `ttc` object; `seed` is the request's own top-level one."""
    given = without_nulls(body or {})
    inner = given.pop("seed", None)
    if seed is not None and inner is not None and seed != inner:
        raise invalid("ttc.seed", f"seed = {seed} and ttc.seed = {inner} contradict each other: send one")
    return SearchWish(
        strategy=given.pop("strategy", None),
        max_total_tokens=given.pop("max_total_tokens", None),
        scorer=given.pop("scorer", None),
        seed=seed if inner is None else inner,
        answer_kind=given.pop("answer_kind", None),
        progress=given.pop("progress", None),
        return_candidates=given.pop("return_candidates", False),
        params=given,
    )


def _bare(schema: Schema) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in ("description", "default")}


def _offer(name: str, function: Callable[..., Any], max_width: int) -> Offer:
    """Read what a strategy takes off its signature."""
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function)
    description = describe("strategy", name, function)
    docs = {parameter.name: parameter.doc for parameter in description.parameters}
    parameters: dict[str, Schema] = {}
    for item in signature.parameters.values():
        schema = None if item.kind is not item.KEYWORD_ONLY else _schema(hints[item.name])
        if schema is None:
            continue
        if item.name == "n":
            schema = {**schema, "minimum": 1, "maximum": max_width}
        if item.name == "policy":
            schema = {**schema, "enum": list(POLICIES.names())}
        if item.default is not item.empty:
            wide = item.name == "n" and isinstance(item.default, int)
            schema = {**schema, "default": min(item.default, max_width) if wide else item.default}
        parameters[item.name] = {**schema, "description": docs[item.name]}
    scorer = signature.parameters.get("scorer")
    return Offer(
        name=name,
        doc=description.doc,
        function=function,
        parameters={key: value for key, value in parameters.items() if key not in COMMON},
        needs_scorer=scorer is not None and scorer.default is scorer.empty,
        takes_scorer=scorer is not None,
    )


_SCALARS: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": -(1 << 31), "maximum": 1 << 31},
    float: {"type": "number"},
    str: {"type": "string", "maxLength": MAX_TEXT},
    type(None): {"type": "null"},
}


def _schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON schema of a parameter's type; None for what JSON cannot hold."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal and all(isinstance(choice, str) for choice in arguments):
        return {"type": "string", "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        members = [_schema(member) for member in arguments]
        if any(member is None for member in members):
            return None
        if len(members) == 2 and type(None) in arguments:
            (plain,) = (member for member in members if member is not None and member != {"type": "null"})
            return nullable(plain)
        return {"anyOf": members}
    found = _SCALARS.get(annotation)
    return None if found is None else dict(found)
