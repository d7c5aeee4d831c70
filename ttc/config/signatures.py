"""The signature is the schema: options, defaults, documentation and checks are all read from the function itself.

    def vllm(model: str | None = None, options: VllmOptions = VllmOptions()) -> Engine
    bind(vllm, {"threads": "2"}, supply={"model": "m"})        {"threads": 2, "model": "m"}
    call(vllm, {"threads": "2"}, supply={"model": "m"})        vllm(model="m", options=VllmOptions(threads=2))

A user can name the keyword-only parameters. In place of an options class (a keyword-only dataclass, which functions may
share, or the parameter `options`) the user names its fields. A union of dataclasses has one for each backend, told
apart by a field with a single `Literal` value. `describe` says what a function takes, for `ttc list` and help texts;
`bind` checks values against it and parses text by the annotations. So documentation, help and checks cannot drift
apart. An option's help text is its entry in the `Args:` section of the docstring (Google style), of the nearest class
that has one. What types cannot express, an options class checks on construction and a factory with `checked_by`: both
before anything is loaded.

Left out: positional parameters other than `model`; they belong to the caller. Shared fields with default factories.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from ttc.config.values import nearest, read_named, tag_of, type_text, variant, variants
from ttc.core import Strategy
from ttc.errors import ConfigError

Factory = TypeVar("Factory", bound=Callable[..., Any])
_T = TypeVar("_T")
_CHECK = "__ttc_check__"
_READS_LOGPROBS = "__ttc_reads_logprobs__"
_DRAWING = "__ttc_drawing__"
_OPTIONS = "options"
_REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One keyword of a registered function: its type as text, its default, and its line of documentation."""

    name: str
    type: str
    required: bool
    default: Any
    doc: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; a default that JSON cannot hold is given as text."""
        plain = self.default is None or isinstance(self.default, (bool, int, float, str))
        default = self.default if plain else repr(self.default)
        return {"name": self.name, "type": self.type, "required": self.required, "default": default, "doc": self.doc}


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a registered function: the first line of its documentation, and its keyword parameters.

    `about` is the rest of its module's documentation: paper, cost, what is left out.
    """

    kind: str
    name: str
    doc: str
    takes_model: bool
    parameters: tuple[Parameter, ...]
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "kind": self.kind,
            "name": self.name,
            "doc": self.doc,
            "takes_model": self.takes_model,
            "parameters": [parameter.to_json() for parameter in self.parameters],
        }


def describe(kind: str, name: str, function: Callable[..., Any]) -> Description:
    """Return the description of `function`: its options, and the first line of its documentation.

    The line is its module's if the module has the same name (one technique, one file), else its own.
    """
    module_doc = inspect.getdoc(sys.modules.get(function.__module__)) or ""
    own_doc = inspect.getdoc(function) or ""
    own_module = function.__module__.rpartition(".")[2] == function.__name__
    lines = ((module_doc if own_module else "") or own_doc or module_doc).strip().splitlines()
    schema = _Schema.of(function)
    kinds = [kind for kinds in schema.classes.values() for kind in kinds]
    classes = (base for kind in kinds for base in reversed(kind.__mro__) if base is not object)
    docs = [module_doc, *(inspect.getdoc(each) or "" for each in classes), own_doc]
    argument_docs = {name: text for doc in docs for name, text in _argument_docs(doc).items()}
    parameters = tuple(
        Parameter(
            name=name,
            type=type_text(annotation),
            required=default is _REQUIRED and all(name in _fields(kind) for kind in schema.kinds_beside(name)),
            default=None if default is _REQUIRED else default,
            doc=argument_docs.get(name, ""),
        )
        for name, (annotation, default) in schema.options.items()
    )
    about = module_doc.strip().partition("\n")[2].strip() if own_module else ""
    doc = lines[0].strip() if lines else ""
    return Description(kind, name, doc, "model" in schema.positional, parameters, about)


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of every option that a user can name; None of a required one."""
    options = _Schema.of(function).options.items()
    return {name: None if default is _REQUIRED else default for name, (_, default) in options}


def strategy_options(function: Callable[..., Any]) -> list[str]:
    """Return the options of `function` whose value is itself a strategy."""
    options = _Schema.of(function).options.items()
    return [name for name, (kind, _) in options if Strategy in (kind, *typing.get_args(kind))]


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call with the values that `bind` gave; missing ones are None."""
    schema = _Schema.of(function)
    return {**schema.defaults, **schema.arguments(values)}


def bind(
    function: Callable[..., Any], params: Mapping[str, object], *, supply: Mapping[str, object], label: str = ""
) -> dict[str, Any]:
    """Return the named values for `function`: `params` checked and parsed, with the values of `supply` that it takes.

    A string is parsed by the annotation. `supply` fills parameters that are not text, such as `scorer`; values that
    `function` does not take are left out. Messages call it by `label`, or else by its own name.

    Raises:
        ConfigError: an unknown option (with the nearest), a value that does not fit, or a required one missing;
            or what the function's own check refuses (`checked_by`), or its options class.
    """
    label = label or function.__name__
    schema, settings = _Schema.of(function), parsed(function, params, supply=supply, label=label)
    names = schema.names_for(schema.choice(settings, label))
    missing = [name for name in names if schema.options[name][1] is _REQUIRED and name not in settings]
    if missing:
        kinds = schema.kinds_beside(missing[0])
        tag = f" {_tag(variant(kinds, settings, ''))}" if len(kinds) > 1 else ""
        wants = type_text(schema.options[missing[0]][0])
        raise ConfigError(f"{label}{tag} needs {missing[0]!r} ({wants}), which was not given")
    arguments = {**schema.defaults, **schema.arguments(settings)}
    if hasattr(function, _CHECK):
        _check(getattr(function, _CHECK), arguments)
    return settings


def parsed(
    function: Callable[..., Any], params: Mapping[str, object], *, supply: Mapping[str, object], label: str = ""
) -> dict[str, Any]:
    """Like `bind`, but required options may be missing, and only types are checked."""
    schema, label = _Schema.of(function), label or function.__name__
    values = {name.replace("-", "_"): value for name, value in params.items()}
    choice = schema.choice(values, f"{label}: ")
    takes = {name: schema.options[name][0] for name in schema.names_for(choice) if name not in supply}

    def unknown(name: str) -> ConfigError:
        if name in schema.options and name not in supply:
            kinds = schema.kinds_beside(name)
            readers = " or ".join(_tag(kind) for kind in kinds if name in _fields(kind))
            own = next(kind for kind in choice.values() if kind in kinds)
            return ConfigError(f"{label} {_tag(own)} does not read {name}: it is for {readers}")
        names = ", ".join(takes) or "none"
        return ConfigError(f"{label} has no parameter {name!r}{nearest(name, list(takes))} (it takes: {names})")

    free = set(values) - set(schema.options) - set(supply) if schema.is_open else set()
    settings = read_named({n: v for n, v in values.items() if n not in free}, takes, f"{label}: ", unknown)
    settings |= {name: values[name] for name in values if name in free}
    return settings | {n: v for n, v in supply.items() if n in schema.options or n in schema.positional}


def call(function: Callable[..., Any], params: Mapping[str, object], *, supply: Mapping[str, object]) -> Any:
    """Call `function` with what `bind` makes of `params` and `supply`; raises like it."""
    return function(**_Schema.of(function).arguments(bind(function, params, supply=supply)))


def reads_logprobs(factory: Factory) -> Factory:
    """Mark a strategy or scorer that reads log-probabilities; engines that pay for them compute them only then."""
    setattr(factory, _READS_LOGPROBS, True)
    return factory


def wants_logprobs(factory: Callable[..., Any]) -> bool:
    """Whether `factory` is marked by `reads_logprobs`."""
    return bool(getattr(factory, _READS_LOGPROBS, False))


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a strategy draws, as far as who runs it for others must know.

    `whole`: each draw is one request to the engine, so a grammar can hold its answer. `wave` says how many draws run
    together, from the options that it names; None: all of them. `adds` says, likewise, how many characters that no draw
    sampled it may add to its replies (results of tools), which max_tokens does not count; None: none. `asks` says how
    many questions of its own it may ask beside its draws, and how many of its texts each shows; None: none.
    """

    whole: bool = False
    wave: Callable[..., int] | None = None
    adds: Callable[..., int] | None = None
    asks: Callable[..., tuple[int, int]] | None = None

    def at_once(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> int | None:
        """How many draws of `function` run together when it is called with `arguments`; None: all of them."""
        if self.wave is None:
            return None
        return max(_told(self.wave, function, arguments), 1)

    def added(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> int | None:
        """Most characters that it adds to its replies when it is called with `arguments`; None: it adds none."""
        return None if self.adds is None else _told(self.adds, function, arguments)

    def questions(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[int, int]:
        """Most questions of its own when it is called with `arguments`, and how many of its texts each shows."""
        return (0, 0) if self.asks is None else _told(self.asks, function, arguments)


def _told(rule: Callable[..., _T], function: Callable[..., Any], arguments: Mapping[str, Any]) -> _T:
    """What `rule` says of the options that it names, when `function` is called with `arguments`."""
    values = {**options_of(function), **arguments}
    return rule(**{name: values[name] for name in inspect.signature(rule).parameters})


def drawing(
    *,
    whole: bool = False,
    wave: Callable[..., int] | None = None,
    adds: Callable[..., int] | None = None,
    asks: Callable[..., tuple[int, int]] | None = None,
) -> Callable[[Factory], Factory]:
    """Declare how a strategy draws (see `Drawing`); one without a declaration draws all at once and in pieces."""

    def declare(factory: Factory) -> Factory:
        setattr(factory, _DRAWING, Drawing(whole, wave, adds, asks))
        return factory

    return declare


def drawing_of(factory: Callable[..., Any]) -> Drawing:
    """What `factory` declares with `drawing`."""
    declaration = getattr(factory, _DRAWING, None)
    return declaration if isinstance(declaration, Drawing) else Drawing()


def checked_by(check: Callable[..., None]) -> Callable[[Factory], Factory]:
    """Let `check` refuse a factory's arguments by name, in `bind` and before the factory's own body."""

    def decorate(factory: Factory) -> Factory:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def checked(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            _check(check, bound.arguments)
            return factory(*args, **kwargs)

        setattr(checked, _CHECK, check)
        return cast("Factory", checked)

    return decorate


def _check(check: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Call `check` with the `arguments` that it names, or with all if it takes any."""
    parameters = inspect.signature(check).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    check(**(arguments if takes_all else {name: arguments[name] for name in parameters}))


@dataclass(frozen=True, slots=True)
class _Schema:
    """The parameters of a function: positional ones, and options by name with type and default.

    `defaults` has every parameter, None if it has no default; `classes` has the options classes of a parameter: several
    for a union.
    """

    positional: tuple[str, ...]
    options: Mapping[str, tuple[Any, Any]]
    defaults: Mapping[str, Any]
    classes: Mapping[str, tuple[Any, ...]]
    is_open: bool

    @classmethod
    @functools.lru_cache(maxsize=256)  # an endpoint needs it for the same few functions at every request
    def of(cls, function: Callable[..., Any]) -> _Schema:
        """Read the schema of a function or a class."""
        parameters, hints = inspect.signature(function).parameters.values(), _hints(function)
        required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        classes = {name: variants(hints[name]) for name in (*required, *({_OPTIONS} & hints.keys()))}
        classes = {name: kinds for name, kinds in classes.items() if kinds}
        options: dict[str, tuple[Any, Any]] = {}
        for parameter in parameters:
            own = {parameter.name: (hints[parameter.name], parameter.default)}
            shown = own if parameter.kind is parameter.KEYWORD_ONLY else {}
            for fields in map(_fields, classes[parameter.name]) if parameter.name in classes else (shown,):
                for name, (annotation, default) in fields.items():
                    first, first_default = options.get(name, (annotation, default))
                    options[name] = (_joined(first, annotation), first_default)
        plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return cls(
            positional=tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD),
            options=options,
            defaults={p.name: None if p.default is p.empty else p.default for p in plain},
            classes=classes,
            is_open=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def kinds_beside(self, name: str) -> tuple[Any, ...]:
        """The options classes of the union in which one has the option called `name`."""
        return next((kinds for kinds in self.classes.values() if any(name in _fields(kind) for kind in kinds)), ())

    def choice(self, values: Mapping[str, object], where: str) -> dict[str, Any]:
        """The options class of each such parameter, chosen by the tags among `values`."""
        return {name: variant(kinds, values, where) for name, kinds in self.classes.items()}

    def names_for(self, choice: Mapping[str, Any]) -> list[str]:
        """The options that can be named with this choice of options classes."""
        elsewhere = {name for kinds in self.classes.values() for kind in kinds for name in _fields(kind)}
        elsewhere -= {name for kind in choice.values() for name in _fields(kind)}
        return [name for name in self.options if name not in elsewhere]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, in which the options of a class are one object of it."""
        rest = dict(values)
        return {
            name: kind(**{field: rest.pop(field) for field in _fields(kind) if field in rest})
            for name, kind in self.choice(values, "").items()
        } | rest


@functools.cache
def _fields(kind: Any) -> Mapping[str, tuple[Any, Any]]:
    """The type and the default of each field of an options class."""
    hints = typing.get_type_hints(kind)
    parameters = inspect.signature(kind).parameters
    return {name: (hints[name], parameters[name].default) for name in parameters}


def _joined(first: Any, second: Any) -> Any:
    """One type for an option of several classes: their values together, if all are literals."""
    if first == second:
        return first
    return Literal[(*typing.get_args(first), *typing.get_args(second))]


def _tag(kind: Any) -> str:
    """How a user picks an options class: `backend=vllm`."""
    tag = tag_of(kind)
    return str(kind.__name__) if tag is None else f"{tag[0]}={tag[1]}"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of every parameter.

    Each annotation is resolved by itself: one that exists only for type checkers stays text. Without an annotation, a
    parameter has the type of its default.
    """
    whole = function.func if isinstance(function, functools.partial) else function
    target = whole.__init__ if inspect.isclass(whole) else inspect.unwrap(whole)
    annotations = inspect.get_annotations(target)
    resolved: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = annotations.get(name, type(parameter.default))
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            resolved[name] = typing.get_type_hints(holder, getattr(target, "__globals__", {}))[name]
        except NameError:
            resolved[name] = annotation
    return resolved


def _argument_docs(doc: str) -> dict[str, str]:
    """Read the `Args:` section of a Google-style docstring: parameter name to its text on one line."""
    texts: dict[str, str] = {}
    name, indent = "", None
    for line in doc.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() in ("Args:", "Arguments:"):
            indent = depth
        elif indent is None or not line.strip():
            continue
        elif depth <= indent:
            indent = None
        elif depth <= indent + 4 and (entry := re.match(r"\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)):
            name = entry[1]
            texts[name] = entry[2].strip()
        elif name:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts
