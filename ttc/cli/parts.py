"""Options that commands share (parts, strategies, thinking, sampling), and what they resolve to.

`resolve_*` turn options into checked choices. Resolving imports the chosen function and binds its parameters by its
signature, but loads no model: every name and parameter is checked before the first expensive step.

`--set` reaches every parameter: `beam_width=4` goes to the strategies that have it, `majority.n=64` to one of them,
`engine.device=cuda`, `scorer.batch=8` and `thinking.wait=Hmm` to those parts.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeVar

from ttc.cli.options import option
from ttc.config.choices import DEFAULT_ENGINE, DEFAULT_SCORER, ENDPOINT, PartChoice, StrategyChoice
from ttc.config.recipes import label_of, overrides, parse_spec, section, sections, split_specs
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES
from ttc.config.signatures import options_of, wants_logprobs
from ttc.config.values import build, nearest
from ttc.core import MAX_TOKENS, Budget, Capabilities, Sampling
from ttc.durable import SCRATCH
from ttc.errors import ConfigError
from ttc.search.tree import make_policy
from ttc.session.thinking import MAX_WAITS, Thinking

T = TypeVar("T")

NOT_REPRODUCIBLE = "not reproducible on this server (--seed makes it so where the server takes seeds, and slower)"
PARTS = ("engine", "scorer", "thinking")
SEVERAL = "; repeat it, or separate by commas, to run several"


def settings(text: str, group: str | None = None) -> Mapping[str, object]:
    """The option --set, with this help."""
    kind: Mapping[str, object] = option({}, text, metavar="KEY=VALUE", group=group, name="set")
    return kind


def strategies(default: str, more: str = "") -> tuple[str, ...]:
    """The option --strategy with its default in the help; `more` says how to name several."""
    text = f"strategy, or file.py:function{more}; see: ttc list strategies"
    kind: tuple[str, ...] = option((default,), text, metavar="NAME[:KEY=VALUE,...]", group="strategy")
    return kind


TOY = "the packaged model does integer arithmetic only, such as 12+30*2; --model names one of yours"
"""The hint of commands that accept any question."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which engine and model run."""

    engine: str | None = option(
        None,
        f"engine (default: {DEFAULT_ENGINE}, or {ENDPOINT} with --base-url)",
        metavar="NAME[:MODEL]",
        group="engine",
    )
    model: str | None = option(
        None,
        "model folder, hub id, or the name on an endpoint (default: the engine's own)",
        metavar="PATH|ID",
        group="engine",
    )
    base_url: str | None = option(
        None, "an OpenAI-compatible endpoint: http://127.0.0.1:8000/v1", metavar="URL", group="engine"
    )

    @property
    def is_packaged(self) -> bool:
        """Whether the packaged model runs."""
        return self.engine in (None, DEFAULT_ENGINE) and self.model is None and self.base_url is None


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """Which strategies run, with their scorer, parameters and budget."""

    strategy: tuple[str, ...] = strategies("direct")
    n: int | None = option(
        None, "number of samples, where the strategy has that parameter", metavar="N", group="strategy"
    )
    scorer: str | None = option(
        None,
        "judges answers or steps, for best_of_n, tree and others: prm:MODEL "
        "(default: the packaged reward model, with the packaged model)",
        metavar="NAME[:MODEL]",
        group="strategy",
    )
    settings: Mapping[str, object] = settings(
        "any parameter: beam_width=4, majority.n=64, engine.device=cuda, scorer.KEY, thinking.KEY", "strategy"
    )
    budget: str | None = option(
        None,
        "limits per problem: tokens, flops, seconds, calls (tokens=2000)",
        metavar="KEY=VALUE,...",
        group="strategy",
    )


@dataclass(frozen=True, kw_only=True)
class ThinkingOptions:
    """How much a model thinks."""

    thinking: Literal["on", "off", "auto"] | None = option(
        None, "the chat template's switch (default: auto)", metavar="on|off|auto", group="thinking"
    )
    max_thinking: int | None = option(None, "cap on thinking; 0 is no thinking", metavar="TOKENS", group="thinking")
    min_thinking: int | None = option(
        None, "do not end thinking before this many tokens", metavar="TOKENS", group="thinking"
    )
    waits: int | None = option(
        None, "suppress the end of thinking up to this many times", metavar="TIMES", group="thinking"
    )

    def __post_init__(self) -> None:
        """Refuse contradictory thinking options, by their names."""
        spans = {"--max-thinking": self.max_thinking, "--min-thinking": self.min_thinking, "--waits": self.waits}
        for name, value in spans.items():
            most = MAX_WAITS if name == "--waits" else MAX_TOKENS
            if value is not None and not 0 <= value <= most:
                raise ConfigError(f"{name} must be >= 0 and <= {most}, got {value}")
        if self.thinking == "off" and any(spans.values()):
            raise ConfigError(f"--thinking off and {next(name for name in spans if spans[name])} contradict each other")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn."""

    temperature: float | None = option(None, "0 is greedy", metavar="T", group="sampling")
    top_p: float | None = option(
        None, "sample from the likeliest tokens of this total share", metavar="P", group="sampling"
    )
    top_k: int | None = option(None, "sample from the K likeliest tokens", metavar="K", group="sampling")
    min_p: float | None = option(
        None, "sample from tokens with at least this share of the likeliest one's probability", metavar="P",
        group="sampling",
    )  # fmt: skip
    repetition_penalty: float | None = option(
        None, "above 1, tokens that the text contains already become less likely (1: off)", metavar="FACTOR",
        group="sampling",
    )  # fmt: skip
    max_tokens: int | None = option(None, "cap on one sample, thinking included", metavar="TOKENS", group="sampling")
    seed: int | None = option(None, "seed of all random draws (default: a new one, which is shown)", group="sampling")


def resolve_engine(options: EngineOptions, settings: Mapping[str, object]) -> PartChoice:
    """Return the engine of --engine, --model, --base-url and --set engine.KEY=VALUE.

    Raises:
        ConfigError: an unknown name or parameter, a value that does not fit, or an address that is given twice.
    """
    own = section(settings, "engine")
    if "base_url" in own and options.base_url is not None:
        raise ConfigError("--base-url and --set engine.base_url name the address twice: leave one out")
    if "base_url" in own and options.engine is None:
        raise ConfigError(f"--set engine.base_url needs --engine {ENDPOINT}; or write --base-url {own['base_url']}")
    if options.base_url is None:
        return PartChoice.of(ENGINES, options.engine or DEFAULT_ENGINE, own, options.model)
    return PartChoice.of(ENGINES, options.engine or ENDPOINT, {**own, "base_url": options.base_url}, options.model)


def without_seeds(
    engine: PartChoice, settings: Mapping[str, object], readers: Iterable[Callable[..., object]]
) -> PartChoice:
    """Return `engine` for a run that need not be reproducible.

    If the engine pays for seeds and log-probabilities, no seeds are requested, and log-probabilities only if one
    of `readers` (strategies, scorers) reads them. Explicit settings take precedence.
    """
    names = options_of(engine.factory)
    unasked = {"seeded": False} | ({} if any(map(wants_logprobs, readers)) else {"logprobs": False})
    own = section(settings, "engine")
    left_out = {name: value for name, value in unasked.items() if name in names and name not in own}
    return replace(engine, params={**engine.params, **left_out})


def is_reproducible(engine: PartChoice) -> bool:
    """Whether the same seed gives the same draws; only engines that pay for seeds can leave them out."""
    return engine.params.get("seeded") is not False


def resolve_scorer(
    name: str | None,
    settings: Mapping[str, object],
    strategies: Sequence[StrategyChoice],
    *,
    is_packaged: bool,
) -> PartChoice | None:
    """Return the scorer of --scorer, the packaged one where the packaged model runs, or None where none is wanted.

    Raises:
        ConfigError: a strategy needs a scorer and there is no default for this model.
    """
    if name is None and any(choice.needs_scorer for choice in strategies):
        if not is_packaged:
            who = next(choice.name for choice in strategies if choice.needs_scorer)
            scorer_names = ", ".join(SCORERS.names())
            raise ConfigError(
                f"{who} needs a scorer for this model: take a strategy without one, --strategy majority, or name a "
                "reward model, --scorer prm:PATH (it scores steps) or orm:PATH (whole answers); all scorers: "
                f"{scorer_names}"
            )
        name = DEFAULT_SCORER
    if name is None:
        if section(settings, "scorer"):
            raise ConfigError("--set scorer.KEY needs --scorer")
        return None
    if not any(choice.takes_scorer for choice in strategies):
        names = ", ".join(choice.name for choice in strategies)
        raise ConfigError(f"--scorer {name} has no effect: none of {names} takes a scorer")
    return PartChoice.of(SCORERS, name, section(settings, "scorer"))


def resolve_strategies(options: StrategyOptions) -> list[StrategyChoice]:
    """Return the strategies of --strategy with --n and --set applied.

    Raises:
        ConfigError: an unknown strategy or parameter, a value that does not fit, or the same strategy twice.
    """
    specs = [parse_spec(text) for item in options.strategy for text in split_specs(item)]
    inner = {key: value for key, value in options.settings.items() if key.startswith("of.")}  # of a strategy of each
    others = {key: value for key, value in options.settings.items() if key not in inner}
    tables = by_part(others, ("", *PARTS, *(name for name, _ in specs)))
    general = tables[""] | inner
    accepted = [list(options_of(STRATEGIES.load(name))) for name, _ in specs]
    if options.n is not None and not any("n" in names for names in accepted):
        raise ConfigError(f"--n has no effect: {', '.join(name for name, _ in specs)} has no parameter n")
    for key in general:
        if not any(key.partition(".")[0] in names for names in accepted):
            parameters = sorted({name for names in accepted for name in names} - {"scorer"})
            who = ", ".join(name for name, _ in specs)
            listed = ", ".join(parameters) or "none"
            raise ConfigError(f"{who} has no parameter {key!r}{nearest(key, parameters)} (known: {listed})")
    choices = []
    for (name, inline), names in zip(specs, accepted, strict=True):
        params: dict[str, object] = {} if options.n is None or "n" not in names else {"n": options.n}
        params |= {key: value for key, value in general.items() if key.partition(".")[0] in names}
        params |= tables[name] | inline
        choice = StrategyChoice.of(name, params, label_of(name, inline))
        if isinstance(choice.params.get("policy"), str):
            make_policy(choice.params["policy"], 1)
        choices.append(choice)
    labels = [choice.label for choice in choices]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"the same strategy twice in --strategy {' '.join(labels)}")
    return choices


def by_part(settings: Mapping[str, T], parts: Sequence[str]) -> dict[str, dict[str, T]]:
    """`sections` of --set; raises ConfigError for sampling, too, which has options of its own."""
    options = {field.name: f"--{field.name.replace('_', '-')}" for field in fields(SamplingOptions)}
    for key, value in settings.items():
        part, _, own = key.partition(".")
        if part == "sampling" and own in options:
            raise ConfigError(f"--set {key}: it has an option of its own, write {options[own]} {value}")
    return sections(settings, parts)


_LINKS = {
    errno.ENOENT: "a link to a folder that does not exist; create it",
    errno.ELOOP: "a link that leads back to itself; delete it",
}
"""What a link is that cannot be followed, and what to do about it."""


def check_writable(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be created or written to; leaves nothing behind."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    try:
        there.stat()
    except OSError as exc:
        link = _LINKS.get(exc.errno or 0, f"a link that cannot be followed ({exc.strerror}); repair it")
        raise ConfigError(f"{option} {folder}: {there} is {link}, or name another") from exc
    if not there.is_dir():
        raise ConfigError(f"{option} {folder}: {there} is a file; name a folder")
    try:  # the trial file's name makes other processes ignore it
        with tempfile.TemporaryDirectory(prefix=".", suffix=SCRATCH, dir=there):
            pass
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # its name may be too long
    except OSError as exc:
        raise ConfigError(f"{option} {folder}: {there} cannot be written to ({exc.strerror}); name another") from exc


def check_file(option: str, path: Path) -> None:
    """Refuse a file that cannot be created or replaced; leaves nothing behind."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file in it")
    check_writable(option, path.parent)


def resolve_thinking(options: ThinkingOptions, settings: Mapping[str, object]) -> Thinking:
    """Return the thinking control of the thinking options and --set thinking.KEY=VALUE."""
    flags = {
        "mode": options.thinking,
        "max_tokens": options.max_thinking,
        "min_tokens": options.min_thinking,
        "num_waits": options.waits,
    }
    own = {key: value for key, value in flags.items() if value is not None}
    return build(Thinking, {**own, **section(settings, "thinking")}, where="thinking.")


def resolve_sampling(options: SamplingOptions, default: Sampling) -> Sampling:
    """Return `default` with the sampling options laid over it."""
    values = {field.name: getattr(options, field.name) for field in fields(SamplingOptions)}
    return replace(default, **{name: value for name, value in values.items() if value is not None})


def chooses_sampling(options: SamplingOptions) -> bool:
    """Whether the options set what a model's authors recommend."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return any(getattr(options, name) is not None for name in names)


def as_recommended(sampling: Sampling, options: SamplingOptions, capabilities: Capabilities) -> Sampling:
    """`sampling` as the model's authors recommend, except for what the options set."""
    return resolve_sampling(options, capabilities.as_recommended(sampling))


def resolve_budget(text: str | None) -> Budget | None:
    """Return the budget of --budget, or None without one."""
    if text is not None and text.replace(".", "", 1).isdecimal():
        raise ConfigError(f"--budget {text} has no unit: write --budget tokens={text}, or flops, seconds, calls")
    return None if text is None else build(Budget, overrides(text.split(","), "--budget"), where="budget.")
