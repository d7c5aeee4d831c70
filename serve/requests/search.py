"""The `ttc` object of a request: which strategy runs, with which parameters and limits.

Its model is made from the signatures of the installed strategies, so a strategy that is added shows up here by itself.
Only names of the server's own table are looked up, never a file or an address from a request; scorers are those the
operator configured, by name. A parameter that JSON cannot hold (a scorer object) cannot be set.

Left out: what `NOT_SERVED` names.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Le, MaxLen
from pydantic import Field, create_model

from serve.requests.body import WHOLE, RequestBody, read
from serve.requests.errors import ApiError, agreed, invalid
from ttc.answers.kinds import KINDS
from ttc.config.registry import POLICIES, STRATEGIES
from ttc.config.signatures import Drawing, bind, describe, drawing_of, options_of
from ttc.config.values import nearest
from ttc.errors import ConfigError, MissingExtra

NOT_SERVED: Mapping[str, str] = {
    "auto": "its plan is a file, which a request must not name",
    "budget_forcing": "the thinking fields do what it does, for every strategy, under the server's ceilings",
}
"""Strategies that a request cannot choose, and why."""
MAX_TEXT = 200
MAX_SEED = (1 << 63) - 1
ANY_SEED = -1
"""Clients of vLLM and llama.cpp send this for "no seed"."""

ProgressLevel: TypeAlias = Literal["off", "summary", "full"]


class SearchFields(RequestBody):
    """The `ttc` object without the parameters of strategies, which `ServedStrategies.model` adds."""

    strategy: str | None = None
    scorer: str | None = Field(None, description="One of the scorers this server has.")
    max_total_tokens: Annotated[int, Ge(1), WHOLE] | None = Field(
        None, description="Most tokens of the whole search: generated, judged and scored."
    )
    seed: Annotated[int, Ge(0), Le(MAX_SEED), WHOLE] | None = None
    answer_kind: Literal[tuple(sorted(KINDS))] | None = Field(  # type: ignore[valid-type]
        None, description="How final answers are read and compared in votes."
    )
    progress: ProgressLevel | None = Field(None, description="Progress chunks while a search runs.")
    return_candidates: bool | None = Field(None, description="Return the text of every candidate.")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The `ttc` object: a strategy with its parameters and limits."""

    strategy: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_total_tokens: int | None = None
    scorer: str | None = None
    seed: int | None = None
    answer_kind: str | None = None
    progress: ProgressLevel | None = None
    return_candidates: bool = False


@dataclass(frozen=True, slots=True)
class ServedStrategy:
    """A strategy this server runs: its function, and a model of the parameters that a request may set."""

    name: str
    doc: str
    function: Callable[..., Any]
    parameters: type[RequestBody]
    needs_scorer: bool
    takes_scorer: bool

    def bind(self, params: Mapping[str, Any], scorer: object | None) -> dict[str, Any]:
        """The keyword arguments of `params` (JSON); raises ApiError naming what is unknown or does not fit."""
        fields = self.parameters.model_fields
        for key in params:
            if key not in fields:
                names = list(fields)
                raise invalid(
                    f"ttc.{key}",
                    f"ttc.{key}: strategy {self.name} has no such parameter{nearest(key, names)} "
                    f"(it takes: {', '.join(names) or 'none'}; ttc.strategy chooses another)",
                    "unknown_parameter",
                )
        values = read(self.parameters, dict(params), "ttc").model_dump(exclude_unset=True)
        width = fields["n"].default if "n" in fields else None
        arguments = values if width is None else {"n": width, **values}
        try:
            return bind(self.function, arguments, supply={"scorer": scorer} if self.takes_scorer else {})
        except ConfigError as exc:
            raise ApiError(400, "invalid_value", f"ttc: {exc}", param="ttc") from exc

    @property
    def drawing(self) -> Drawing:
        """How it draws, as it declares."""
        return drawing_of(self.function)

    def width(self, arguments: Mapping[str, Any]) -> int:
        """How many draws one choice may have, called with `arguments`."""
        width = {**options_of(self.function), **arguments}.get("n", 1)
        return width if isinstance(width, int) and width >= 1 else 1

    def at_once(self, arguments: Mapping[str, Any]) -> int:
        """How many draws of one choice may run together."""
        width, wave = self.width(arguments), self.drawing.at_once(self.function, arguments)
        return width if wave is None else min(width, wave)

    def questions(self, arguments: Mapping[str, Any], num_choices: int) -> tuple[int, int]:
        """Most questions of its own for so many choices, and how many of its texts each shows."""
        num_questions, num_shown = self.drawing.questions(self.function, arguments)
        return num_questions * num_choices, num_shown

    def to_json(self) -> dict[str, Any]:
        """The strategy with the JSON schema of each parameter, for GET /version and the playground."""
        return {
            "name": self.name,
            "description": self.doc,
            "needs_scorer": self.needs_scorer,
            "parameters": self.parameters.model_json_schema()["properties"],
        }


class ServedStrategies:
    """The strategies of this server, by name; made once at the start."""

    def __init__(self, names: Iterable[str] | None, scorers: Iterable[str], max_width: int) -> None:
        """`names` limits what is served (None: all that are installed); `max_width` bounds every `n`, given or not.

        Raises:
            ConfigError: a name that is not installed.
        """
        self._offers: dict[str, ServedStrategy] = {}
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

    def __getitem__(self, name: str) -> ServedStrategy:
        return self._offers[name]

    def __contains__(self, name: str) -> bool:
        return name in self._offers

    def model(self) -> type[SearchFields]:
        """The model of the `ttc` object: what any strategy takes; which of it fits is checked when one is chosen."""
        choices: dict[str, list[Any]] = {}
        texts: dict[str, str | None] = {}
        for name in self.names:
            for key, parameter in self[name].parameters.model_fields.items():
                choices.setdefault(key, []).append(self[name].parameters.__annotations__[key])
                texts.setdefault(key, parameter.description)
        described = "How compute is spent. " + " ".join(f"{name}: {self[name].doc}" for name in self.names)
        fields: dict[str, Any] = {"strategy": (_one_of(self.names) | None, Field(None, description=described))}
        if self._scorers:
            fields["scorer"] = (_one_of(self._scorers) | None, SearchFields.model_fields["scorer"])
        for key, types_of in choices.items():
            fields[key] = (typing.Union[(*types_of, None)], Field(None, description=texts[key]))
        return create_model("Search", __base__=SearchFields, **fields)

    def to_json(self) -> list[dict[str, Any]]:
        """Every strategy with its parameters."""
        return [self[name].to_json() for name in self.names]


def read_search(body: SearchFields | None, seed: int | None) -> SearchRequest:
    """Read a `ttc` object; `seed` is the request's top-level one."""
    values = {} if body is None else body.model_dump(exclude_none=True)
    inner = values.pop("seed", None)
    _, seed = agreed({"seed": None if seed == ANY_SEED else seed, "ttc.seed": inner})
    known = {name: values.pop(name) for name in SearchFields.model_fields if name in values}
    return SearchRequest(**known, seed=seed, params=values)


def _offer(name: str, function: Callable[..., Any], max_width: int) -> ServedStrategy:
    """Read a strategy's parameters from its signature."""
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function)
    description = describe("strategy", name, function)
    texts = {parameter.name: parameter.doc for parameter in description.parameters}
    fields: dict[str, Any] = {}
    for item in signature.parameters.values():
        if item.kind is not item.KEYWORD_ONLY or item.name in SearchFields.model_fields:
            continue
        kind, default = _checked(hints[item.name]), item.default
        if kind is None:
            continue
        if item.name == "n":
            kind = Annotated[int, Ge(1), Le(max_width), WHOLE]
            default = min(default, max_width) if isinstance(default, int) else default
        if item.name == "policy":
            kind = _one_of(POLICIES.names())
        optional = item.name in ("n", "policy") and type(None) in typing.get_args(hints[item.name])
        kind = kind | None if optional else kind
        required = default is item.empty
        fields[item.name] = (kind, Field(... if required else default, description=texts[item.name]))
    scorer = signature.parameters.get("scorer")
    return ServedStrategy(
        name=name,
        doc=description.doc,
        function=function,
        parameters=create_model(f"Parameters of {name}", __base__=RequestBody, **fields),
        needs_scorer=scorer is not None and scorer.default is scorer.empty,
        takes_scorer=scorer is not None,
    )


def _one_of(names: Iterable[str]) -> Any:
    return Literal[tuple(names)]


_SCALARS: Mapping[Any, Any] = {
    bool: bool,
    int: Annotated[int, Ge(-(1 << 31)), Le(1 << 31), WHOLE],
    float: float,
    str: Annotated[str, MaxLen(MAX_TEXT)],
}


def _checked(annotation: Any) -> Any:
    """The type of a parameter with the bounds that a request gets; None for what JSON cannot hold."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal and all(isinstance(choice, str) for choice in arguments):
        return annotation
    if origin in (typing.Union, types.UnionType):
        members = [member if member is type(None) else _checked(member) for member in arguments]
        return None if None in members else typing.Union[tuple(members)]  # noqa: UP007
    return _SCALARS.get(annotation)
