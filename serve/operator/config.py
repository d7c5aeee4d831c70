"""What the operator sets: models, presets, keys, limits; from `ttc serve`'s options or a TOML file, all checked.

    default = "qwen"                        [models.qwen]
    [limits]                                engine = "vllm"
    request_timeout_s = 300                 model = "Qwen/Qwen3-4B"
    [presets."qwen:tree-16"]                params = { gpu_memory_utilization = 0.5 }
    model = "qwen"                          fallback = "small"
    strategy = "tree"                       [models.qwen.scorers.prm]
    n = 16                                  kind = "prm"

An unknown key is refused with the nearest. Reading loads no model.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serve.operator.keys import NANO, Key, read_keys
from serve.requests.fields import MAX_TEMPERATURE
from serve.requests.thinking import EFFORTS, UNLIMITED, Effort, ThinkingPolicy, laid_over
from ttc.answers.kinds import KINDS
from ttc.config.choices import DEFAULT_ENGINE, DEFAULT_SCORER, PartChoice
from ttc.config.recipes import load_toml, merge, sections, split_model
from ttc.config.registry import ENGINES, SCORERS
from ttc.config.signatures import options_of
from ttc.config.values import build, nearest, parse
from ttc.errors import ConfigError, UnknownName


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """Bounds on one request and on the server; tokens, seconds and bytes as named.

    `stored_bytes` are those of responses that clients may refer to, 0 stores none; `max_choices` bounds OpenAI's n,
    `max_width` a strategy's; `max_sequences` is what may be admitted at once, waiting included; at most
    `max_search_draws` run at once for requests of several draws; a client that takes nothing for `stall_s` is let go.
    An upstream server may be silent for `upstream_first_s` before its first byte and for `upstream_gap_s` between two;
    it is asked how it is every `health_s`.
    """

    max_body_bytes: int = 1 << 20
    stored_bytes: int = 1 << 26
    max_choices: int = 16
    max_width: int = 128
    max_tokens: int = 32768
    default_max_tokens: int = 4096
    max_total_tokens: int = 1 << 19
    max_sequences: int = 1024
    max_search_draws: int = 1 << 16
    request_timeout_s: float = 600.0
    heartbeat_s: float = 10.0
    stall_s: float = 60.0
    drain_s: float = 30.0
    progress_interval_s: float = 0.1
    upstream_first_s: float = 120.0
    upstream_gap_s: float = 30.0
    health_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what is not positive."""
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0 and (name, self.stored_bytes) != ("stored_bytes", 0):
                raise ConfigError(f"limits.{name} must be > 0, got {getattr(self, name)}")


IGNORABLE = frozenset(
    {
        *("ignore_eos", "keep_alive", "logit_bias", "verbosity", "top_a", "typical_p", "tfs_z", "mirostat"),
        *("mirostat_eta", "mirostat_tau", "num_ctx", "num_batch", "num_thread", "num_gpu", "options", "usage"),
    }
)
"""Fields of popular clients that an operator may have ignored."""


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]+)?")
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_USUAL_PORT = re.compile(r"http://.*:80|https://.*:443")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What a connection may do before its key is known, and who may ask from a browser.

    Bytes, seconds and counts as named. `hosts` are names by which this server is asked besides its own loopback ones;
    they matter without keys only. `cors_origins` are pages that may ask from a browser, `*` is every page. `ignore`
    names fields of IGNORABLE that are left out of requests, which the header x-ttc-ignored says; else they are refused.
    """

    max_header_bytes: int = 1 << 16
    header_s: float = 10.0
    max_connections: int = 2048
    hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that are not positive, and malformed origins."""
        for name in ("max_header_bytes", "header_s", "max_connections"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"http.{name} must be > 0, got {getattr(self, name)}")
        for name in self.ignore:
            if name not in IGNORABLE:
                raise ConfigError(
                    f"http.ignore: {name!r} cannot be ignored{nearest(name, sorted(IGNORABLE))}; these can: "
                    f"{', '.join(sorted(IGNORABLE))}"
                )
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ConfigError(
                    f"http.hosts: {host!r} is no name as the header Host has it: write desk.lan, in small letters, "
                    "without https:// and without a port"
                )
        for origin in self.cors_origins:
            if origin != "*" and (not _ORIGIN.fullmatch(origin) or _USUAL_PORT.fullmatch(origin)):
                raise ConfigError(
                    f"http.cors_origins: {origin!r} is no origin as browsers send it: write https://HOST or "
                    "https://HOST:PORT, in small letters, without a path, a wildcard or the usual port; * is every page"
                )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve: its engine and scorers, not loaded yet.

    `cost` ranks models for `auto` (lower is cheaper); `fallback` answers when this one cannot. `price_in` and
    `price_out` are dollars per million tokens, of those it reads (scorers included) and of those it writes.
    """

    name: str
    engine: PartChoice
    scorers: Mapping[str, PartChoice] = field(default_factory=dict)
    cost: float = 1.0
    fallback: str | None = None
    fallback_after_s: float | None = None
    price_in: float | None = None
    price_out: float | None = None

    def __post_init__(self) -> None:
        """Refuse prices below 0, one without the other, and a cost that ranks nowhere."""
        if not math.isfinite(self.cost):
            raise ConfigError(f"models.{self.name}.cost must be a number, got {self.cost}")
        prices = (self.price_in, self.price_out)
        if any(price is not None and not 0 <= price < math.inf for price in prices):
            raise ConfigError(f"models.{self.name}: price_in and price_out must be dollars >= 0, got {prices}")
        if (self.price_in is None) != (self.price_out is None):
            raise ConfigError(f"models.{self.name} has one of price_in and price_out: write both, 0 for what is free")

    @property
    def has_prices(self) -> bool:
        """Whether it is known what its tokens cost."""
        return self.price_in is not None

    def price(self, read: int, written: int) -> int:
        """What so many tokens cost, in billionths of a dollar; 0 without prices."""
        return round(((self.price_in or 0) * read + (self.price_out or 0) * written) * NANO / 1_000_000)

    def most_price(self, read: int, rest: int) -> int:
        """What `read` tokens of a prompt cost, and `rest` more that are read or written."""
        return self.price(read, 0) + max(self.price(rest, 0), self.price(0, rest))

    def tokens_for(self, money: int, read: int) -> int | None:
        """How many tokens `money` pays for, of which `read` are those of a prompt; None if all others are free."""
        dearest = max(self.price_in or 0, self.price_out or 0) * NANO / 1_000_000
        if not dearest:
            return None
        rest = round(max(money - self.price(read, 0), 0) / dearest)
        return read + max(rest - (self.most_price(read, rest) > money), 0)


@dataclass(frozen=True, slots=True)
class PresetSpec:
    """A named choice of model, strategy and thinking, listed as a model of its own.

    `temperature` is for requests without one, and for requests with 0 if several draws would then be equal.
    """

    name: str
    model: str
    strategy: str = "direct"
    params: Mapping[str, Any] = field(default_factory=dict)
    scorer: str | None = None
    max_total_tokens: int | None = None
    answer_kind: str | None = None
    thinking_budget: int | None = None
    reasoning_effort: str | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that a request could not ask for either."""
        where = f"presets.{self.name}"
        if self.reasoning_effort is not None and self.reasoning_effort not in EFFORTS:
            raise UnknownName(f"effort of {where}", self.reasoning_effort, EFFORTS)
        if self.answer_kind is not None and self.answer_kind not in KINDS:
            raise UnknownName(f"answer kind of {where}", self.answer_kind, KINDS)
        if self.thinking_budget is not None and self.thinking_budget < UNLIMITED:
            raise ConfigError(f"{where}.thinking_budget must be at least {UNLIMITED}, got {self.thinking_budget}")
        if self.reasoning_effort == "none" and self.thinking_budget not in (None, 0):
            raise ConfigError(f"{where}.thinking_budget asks for thought, and its reasoning_effort for none: name one")
        if self.temperature is not None and not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(f"{where}.temperature must lie in 0..{MAX_TEMPERATURE}, got {self.temperature}")
        if self.max_total_tokens is not None and self.max_total_tokens < 1:
            raise ConfigError(f"{where}.max_total_tokens must be at least 1, got {self.max_total_tokens}")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Everything about a server but the address it listens on.

    With `fills_model` a request that names no model is one to `default`; else it is refused. What keys with a budget
    have spent is kept in `spend_file`.
    """

    models: tuple[ModelSpec, ...]
    default: str
    presets: tuple[PresetSpec, ...] = ()
    limits: ServeLimits = field(default_factory=ServeLimits)
    thinking: ThinkingPolicy = field(default_factory=ThinkingPolicy)
    http: HttpSettings = field(default_factory=HttpSettings)
    keys: tuple[Key, ...] = ()
    strategies: tuple[str, ...] | None = None
    answer_kind: str = "math"
    auto: Mapping[str, str] = field(default_factory=dict)
    log_prompts: bool = False
    fills_model: bool = False
    spend_file: pathlib.Path | None = None

    @property
    def has_budgets(self) -> bool:
        """Whether any key has a budget."""
        return any(key.limits.max_budget is not None for key in self.keys)

    def __post_init__(self) -> None:
        """Refuse unknown names, and presets that this server's own limits would always refuse."""
        models = [spec.name for spec in self.models]
        names = models + [preset.name for preset in self.presets]
        if len(set(names)) < len(names) or "auto" in names:
            raise ConfigError(f"model and preset names must differ from each other and from auto, got {names}")
        for where, name in [
            ("default", self.default),
            *((f"presets.{preset.name}.model", preset.model) for preset in self.presets),
            *((f"models.{spec.name}.fallback", spec.fallback) for spec in self.models if spec.fallback),
        ]:
            if name not in models:
                raise ConfigError(f"{where}: no model {name!r}{nearest(name, models)} (known: {', '.join(models)})")
        for spec in self.models:
            if not spec.name.strip():
                raise ConfigError("a model needs a name: write [models.NAME]")
            if spec.fallback == spec.name:
                raise ConfigError(f"models.{spec.name}.fallback must be another model than itself")
            if spec.fallback_after_s is not None and (spec.fallback is None or not spec.fallback_after_s > 0):
                raise ConfigError(f"models.{spec.name}.fallback_after_s must be > 0 and beside a fallback")
        for key in self.keys:
            for spec in self.models:
                if key.limits.max_budget is not None and not spec.has_prices:
                    fix = "write price_in and price_out there, in dollars per million tokens, 0 for what is free"
                    raise ConfigError(f"keys.{key.name}.max_budget: [models.{spec.name}] has no prices: {fix}")
        for preset in self.presets:
            for name, value, (place, most) in (
                (
                    "thinking_budget",
                    preset.thinking_budget,
                    ("thinking.max_thinking_tokens", self.thinking.max_thinking_tokens),
                ),
                (
                    "max_total_tokens",
                    preset.max_total_tokens,
                    ("limits.max_total_tokens", self.limits.max_total_tokens),
                ),
            ):
                if value is not None and most is not None and value > most:
                    raise ConfigError(f"presets.{preset.name}.{name} = {value} exceeds {place} = {most}")
        if self.answer_kind not in KINDS:
            raise UnknownName("answer kind", self.answer_kind, KINDS)
        for level, name in self.auto.items():
            if level not in EFFORTS:
                raise ConfigError(f"auto.{level}: no effort of that name{nearest(level, EFFORTS)}")
            if name not in names:
                raise ConfigError(f"auto.{level}: no model or preset {name!r}{nearest(name, names)}")


@dataclass(frozen=True, slots=True)
class _Scorer:
    """A table [models.NAME.scorers.LABEL]; LABEL is its kind where none is stated."""

    kind: str | None = None
    model: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Model:
    """A table [models.NAME]."""

    engine: str = "embedded"
    model: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    scorers: Mapping[str, _Scorer] = field(default_factory=dict)
    cost: float = 1.0
    fallback: str | None = None
    fallback_after_s: float | None = None
    price_in: float | None = None
    price_out: float | None = None


@dataclass(frozen=True, slots=True)
class _File:
    """A file: its tables, then the plain values at its top."""

    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limits: ServeLimits = field(default_factory=ServeLimits)
    thinking: Mapping[str, Any] = field(default_factory=dict)
    http: HttpSettings = field(default_factory=HttpSettings)
    keys: Any = field(default_factory=dict)
    """Read by `read_keys`, which shows nothing of it."""
    auto: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    strategies: tuple[str, ...] | None = None
    answer_kind: str = "math"
    log_prompts: bool = False
    spend_file: str | None = None


def load_config(path: pathlib.Path) -> ServeConfig:
    """Read a TOML file; raises ConfigError with the key and the nearest known one."""
    file = build(_File, load_toml(path))
    if not file.models:
        raise ConfigError(f"{path}: no [models.NAME] table")
    models = tuple(_model(name, table, file.limits) for name, table in file.models.items())
    return ServeConfig(
        models=models,
        default=models[0].name if file.default is None else file.default,
        presets=tuple(_preset(name, table) for name, table in file.presets.items()),
        limits=file.limits,
        thinking=_thinking(file.thinking),
        http=file.http,
        keys=read_keys(file.keys, str(path)),
        strategies=file.strategies,
        answer_kind=file.answer_kind,
        auto=file.auto,
        log_prompts=file.log_prompts,
        fills_model=file.default is not None,
        spend_file=path.with_suffix(".spend")
        if file.spend_file is None
        else pathlib.Path(file.spend_file).expanduser(),
    )


def _thinking(table: Mapping[str, Any]) -> ThinkingPolicy:
    """The policy; its table of efforts is laid over the default one."""
    efforts = parse("thinking.efforts", table.get("efforts", {}), Mapping[str, int])
    plain = {key: value for key, value in table.items() if key not in ("efforts", "default_effort")}
    policy = build(ThinkingPolicy, plain, where="thinking.")
    effort = _effort("thinking.", "default_effort", table)
    return replace(policy, efforts=laid_over(policy.efforts, efforts), default_effort=effort)


def _effort(where: str, name: str, table: Mapping[str, Any]) -> str | None:
    """The effort in a table, None where there is none: the effort called none is one."""
    effort: str | None = parse(where + name, table[name], Effort) if name in table else None
    return effort


def _model(name: str, values: Mapping[str, Any], limits: ServeLimits) -> ModelSpec:
    table = build(_Model, values, where=f"models.{name}.")
    scorers = {}
    for label, scorer in table.scorers.items():
        with located(f"models.{name}.scorers.{label}"):
            scorers[label] = PartChoice.of(SCORERS, scorer.kind or label, scorer.params, scorer.model)
    with located(f"models.{name}"):
        engine = _engine(table.engine, table.params, table.model, limits)
    own = {place: getattr(table, place) for place in ("cost", "fallback", "fallback_after_s", "price_in", "price_out")}
    return ModelSpec(name, engine, scorers, **own)


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Put the place in the file before the message of a ConfigError: a part does not know of which model it is."""
    try:
        yield
    except ConfigError as exc:
        exc.args = (f"{where}: {exc}",)
        raise


def _engine(name: str, params: Mapping[str, Any], model: str | None, limits: ServeLimits) -> PartChoice:
    """An engine; strategies wait no longer for a silent upstream server than chats that are passed through."""
    silence = {"idle_s": limits.upstream_first_s, "silent_again": False}
    known = options_of(ENGINES.load(split_model(name)[0]))
    return PartChoice.of(ENGINES, name, {**{key: silence[key] for key in silence if key in known}, **params}, model)


def _preset(name: str, table: Mapping[str, Any]) -> PresetSpec:
    """A preset; what is not a field of its own is a parameter of its strategy."""
    names = PresetSpec.__dataclass_fields__.keys() - {"name", "params"}
    own = {key: value for key, value in table.items() if key in names and key != "reasoning_effort"}
    params = {key: value for key, value in table.items() if key not in names}
    preset = build(PresetSpec, {"name": name, **own, "params": params}, where=f"presets.{name}.")
    return replace(preset, reasoning_effort=_effort(f"presets.{name}.", "reasoning_effort", table))


PACKAGED = "nano-teacher"
SECTIONS = ("engine", "scorer", "limits", "thinking", "http")
SMALL = {"limits": {"max_search_draws": "8"}, "engine": {"kv_bytes": str(1 << 26)}}
"""Settings for a model of 4 MB on a CPU: few draws for searches, so that chats stay fast, and a cache of 64 MiB."""
VOTES = {"majority-8": ("majority", {"n": 8})}
RANKED = {"best-of-8": ("best_of_n", {"n": 8}), "tree-16": ("tree", {"n": 16})}


def from_options(
    model: str | None,
    engine: str | None,
    name: str | None,
    scorer: str | None,
    upstream: str | None,
    sets: Mapping[str, str],
) -> ServeConfig:
    """One model and its presets; the packaged one has a scorer. Raises ConfigError for options that cannot be used."""
    tables = sections(sets, SECTIONS)
    if engine is not None:
        engine, inline = split_model(engine)
        if inline is not None and model is not None:
            raise ConfigError(f"the model is given twice: --engine {engine}:{inline} and {model}")
        model = model if inline is None else inline
    if upstream is not None:
        if engine not in (None, "openai"):
            raise ConfigError(f"--upstream is served by the engine openai, not {engine!r}")
        if "base_url" in tables["engine"]:
            raise ConfigError("--upstream and --set engine.base_url are the same: give one of them")
        engine = "openai"
        tables["engine"]["base_url"] = upstream
    engine = engine or DEFAULT_ENGINE
    packaged = engine == DEFAULT_ENGINE and model is None
    if packaged:
        for place, names in SMALL.items():
            tables[place] = {**names, **tables[place]}
    if scorer is None and packaged:
        scorer = DEFAULT_SCORER
    if scorer is None and tables["scorer"]:
        raise ConfigError("--set scorer.KEY needs --scorer")
    name = name or _name(model, engine, upstream)
    scorers = {}
    if scorer is not None:
        choice = PartChoice.of(SCORERS, scorer, tables["scorer"])
        scorers[choice.name] = choice
    presets = {**VOTES, **(RANKED if scorers else {})}
    limits = build(ServeLimits, tables["limits"], where="limits.")
    return ServeConfig(
        models=(ModelSpec(name, _engine(engine, tables["engine"], model, limits), scorers),),
        default=name,
        presets=tuple(PresetSpec(f"{name}:{label}", name, *preset) for label, preset in presets.items()),
        limits=limits,
        thinking=_thinking(merge({}, tables["thinking"])),
        http=build(HttpSettings, tables["http"], where="http."),
        keys=read_keys({}, "the environment"),
    )


def _name(model: str | None, engine: str, upstream: str | None) -> str:
    if model is None:
        return PACKAGED if engine == DEFAULT_ENGINE else "upstream" if upstream else engine
    path = pathlib.Path(model).expanduser()
    return path.resolve().name if path.exists() else model
