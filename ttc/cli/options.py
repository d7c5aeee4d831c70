"""The options that `ttc solve`, `ttc chat` and `ttc eval` share, and what they resolve to.

`add_*_options` put options on a parser; `resolve_*` turn the parsed arguments into checked choices. Resolving imports
the chosen function and binds its parameters by its signature, but loads no model: every name and every parameter is
refused or accepted before the first expensive step.

`--set` reaches every parameter: `beam_width=4` goes to the strategies that have it, `majority.n=64` to one of them,
`engine.device=cuda`, `scorer.batch=8` and `thinking.wait=Hmm` to those parts.
"""

from __future__ import annotations

import argparse
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ttc.cli.choices import PartChoice, StrategyChoice
from ttc.config.config import build, label_of, overrides, parse_spec, split_model, split_specs
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS, Registry, bind
from ttc.config.values import nearest
from ttc.core import Budget, Engine, Problem, Sampling
from ttc.errors import ConfigError, PromptTooLong
from ttc.search.tree import make_policy
from ttc.session.thinking import Thinking

__all__ = [
    "PartChoice",
    "StrategyChoice",
    "add_engine_options",
    "add_sampling_options",
    "add_strategy_options",
    "add_thinking_options",
    "check_parts",
    "check_writable",
    "fit_to_context",
    "resolve_budget",
    "resolve_engine",
    "resolve_sampling",
    "resolve_scorer",
    "resolve_strategies",
    "resolve_thinking",
    "resolve_verifier",
]

PARTS = ("engine", "scorer", "thinking")
DEFAULT_ENGINE = "embedded"
DEFAULT_SCORER = "prm"
INJECTION_RESERVE = 128
"""Tokens kept free for hand-over and wait texts."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add --engine and --model."""
    group = parser.add_argument_group("engine")
    group.add_argument("--engine", default=None, metavar="NAME[:MODEL]", help="engine (default: embedded)")
    group.add_argument("--model", metavar="PATH|ID", help="model folder or hub id (default: the engine's own)")


def add_strategy_options(parser: argparse.ArgumentParser, *, default: str, several: bool = False) -> None:
    """Add --strategy, --n, --scorer, --set and --budget; `several` lets --strategy repeat, `default` is named."""
    group = parser.add_argument_group("strategy")
    more = "; repeat it, or separate by commas, to run several" if several else ""
    group.add_argument(
        "--strategy",
        action="append",
        metavar="NAME[:KEY=VALUE,...]",
        help=f"strategy, or file.py:function{more} (default: {default}; see: ttc list strategies)",
    )
    group.add_argument("--n", type=int, metavar="N", help="number of samples, where the strategy has that parameter")
    group.add_argument(
        "--scorer",
        metavar="NAME[:MODEL]",
        help="scorer for strategies that rank paths (default: prm, the packaged one, with the packaged model)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any parameter: beam_width=4, majority.n=64, engine.device=cuda, scorer.KEY, thinking.KEY",
    )
    group.add_argument(
        "--budget", metavar="KEY=VALUE,...", help="limits per problem: tokens, flops, seconds, calls (tokens=2000)"
    )


def add_thinking_options(parser: argparse.ArgumentParser) -> None:
    """Add --thinking, --max-thinking, --min-thinking and --waits."""
    group = parser.add_argument_group("thinking")
    group.add_argument("--thinking", choices=("on", "off", "auto"), help="the chat template's switch (default: auto)")
    group.add_argument("--max-thinking", type=int, metavar="TOKENS", help="cap on thinking; 0 is no thinking")
    group.add_argument("--min-thinking", type=int, metavar="TOKENS", help="keep thinking at least so long")
    group.add_argument("--waits", type=int, metavar="TIMES", help="suppress the end of thinking so many times")


def add_sampling_options(parser: argparse.ArgumentParser, *, seed: str = "a new one, which is shown") -> None:
    """Add --temperature, --top-p, --top-k, --max-tokens and --seed; `seed` says which one the command takes itself."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    group.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens of this total share")
    group.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens")
    group.add_argument("--max-tokens", type=int, metavar="TOKENS", help="cap on one sample, thinking included")
    group.add_argument("--seed", type=int, help=f"what all random draws are keyed by (default: {seed})")


def resolve_engine(args: argparse.Namespace) -> PartChoice:
    """Return the engine of --engine, --model and --set engine.KEY=VALUE."""
    return _resolve_part(ENGINES, args.engine or DEFAULT_ENGINE, args.model, _section(args, "engine"))


def resolve_scorer(args: argparse.Namespace, strategies: list[StrategyChoice]) -> PartChoice | None:
    """Return the scorer of --scorer, the packaged one where the packaged model runs, or None where none is wanted.

    Raises:
        ConfigError: a strategy needs a scorer and there is no default for this model.
    """
    name = args.scorer
    if name is None and any(choice.needs_scorer for choice in strategies):
        if (args.engine or DEFAULT_ENGINE) != DEFAULT_ENGINE or args.model is not None:
            who = next(choice.name for choice in strategies if choice.needs_scorer)
            known = ", ".join(SCORERS.names())
            raise ConfigError(f"{who} needs a scorer for this model: add --scorer prm:PATH (known: {known})")
        name = DEFAULT_SCORER
    if name is None:
        if _section(args, "scorer"):
            raise ConfigError("--set scorer.KEY needs --scorer")
        return None
    if not any(choice.takes_scorer for choice in strategies):
        names = ", ".join(choice.name for choice in strategies)
        raise ConfigError(f"--scorer {name} has no effect: none of {names} takes a scorer")
    return _resolve_part(SCORERS, name, None, _section(args, "scorer"))


def resolve_verifier(name: str, params: Mapping[str, object]) -> PartChoice:
    """Return the verifier called `name` with `params`."""
    return _resolve_part(VERIFIERS, name, None, params)


def resolve_strategies(args: argparse.Namespace, *, default: str) -> list[StrategyChoice]:
    """Return the strategies of --strategy (or `default`) with --n and --set applied.

    Raises:
        ConfigError: an unknown strategy or parameter, a value that does not fit, or the same strategy twice.
    """
    specs = [parse_spec(text) for given in args.strategy or [default] for text in split_specs(given)]
    functions = [STRATEGIES.load(name) for name, _ in specs]
    general, special = _split_sets(args, [name for name, _ in specs])
    accepted = [_keywords(function) for function in functions]
    if args.n is not None and not any("n" in names for names in accepted):
        raise ConfigError(f"--n has no effect: {', '.join(name for name, _ in specs)} has no parameter n")
    for key in general:
        if not any(key in names for names in accepted):
            known = sorted({name for names in accepted for name in names} - {"scorer"})
            who = ", ".join(name for name, _ in specs)
            listed = ", ".join(known) or "none"
            raise ConfigError(f"{who} has no parameter {key!r}{nearest(key, known)} (known: {listed})")
    choices = []
    for (name, inline), function, names in zip(specs, functions, accepted, strict=True):
        params: dict[str, object] = {} if args.n is None or "n" not in names else {"n": args.n}
        params |= {key: value for key, value in general.items() if key in names}
        params |= special.get(name, {}) | inline
        bound = bind(function, params, supply={"scorer": None})
        checked = {key: value for key, value in bound.items() if key != "scorer"}
        if isinstance(checked.get("policy"), str):
            make_policy(checked["policy"], 1)
        choices.append(StrategyChoice(name, label_of(name, inline), function, checked))
    labels = [choice.label for choice in choices]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"the same strategy twice in --strategy {' '.join(labels)}")
    return choices


def check_parts(args: argparse.Namespace, parts: Sequence[str]) -> None:
    """Refuse a --set that reaches none of `parts`; for commands without strategies."""
    for key in overrides(args.set):
        head = key.partition(".")[0]
        if head not in parts:
            raise ConfigError(f"--set {key}: no part {head!r}{nearest(head, parts)} (known: {', '.join(parts)})")


def check_writable(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written to; leaves nothing behind."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{option} {folder}: {there} is a file; name a folder")
    try:
        with tempfile.TemporaryDirectory(dir=there):
            return
    except OSError as exc:
        raise ConfigError(f"{option} {folder}: {there} cannot be written to ({exc.strerror}); name another") from exc


def resolve_thinking(args: argparse.Namespace) -> Thinking:
    """Return the thinking control of the thinking options and --set thinking.KEY=VALUE."""
    flags = {
        "mode": args.thinking,
        "max_tokens": args.max_thinking,
        "min_tokens": args.min_thinking,
        "num_waits": args.waits,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    return build(Thinking, {**given, **_section(args, "thinking")}, where="thinking.")


def resolve_sampling(args: argparse.Namespace, default: Sampling) -> Sampling:
    """Return `default` with the sampling options laid over it."""
    names = ("temperature", "top_p", "top_k", "max_tokens", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return replace(default, **given)


def fit_to_context(sampling: Sampling, engine: Engine, problem: Problem, thinking: Thinking) -> Sampling:
    """Lower `max_tokens` to what the model's context leaves after the prompt; for a default that nobody asked for.

    Where thinking control may inject text, room for it is kept. A prompt that leaves no room at all is left to the
    engine to refuse.

    Raises:
        PromptTooLong: there is room for an answer, but none beside the text that thinking control may inject.
    """
    prompt = engine.render(problem.messages, thinking.template)
    used = len(prompt.text) if prompt.token_ids is None else len(prompt.token_ids)
    context = engine.capabilities.max_context
    room = context - used - (INJECTION_RESERVE if thinking.active else 0)
    if thinking.active and room < 1 <= context - used:
        raise PromptTooLong(
            f"{used} prompt tokens and {INJECTION_RESERVE} kept free for the end of a thinking budget fill the context "
            f"of {context}: shorten the prompt, or do without --max-thinking, --min-thinking and --waits"
        )
    return replace(sampling, max_tokens=min(sampling.max_tokens, max(room, 1)))


def resolve_budget(args: argparse.Namespace) -> Budget | None:
    """Return the budget of --budget, or None without one."""
    if args.budget is None:
        return None
    return build(Budget, overrides(args.budget.split(","), "--budget"), where="budget.")


def _resolve_part(registry: Registry, spec: str, model: str | None, params: Mapping[str, object]) -> PartChoice:
    name, inline = split_model(spec)
    if model is not None and inline is not None:
        raise ConfigError(f"the model is given twice: {spec!r} and {model!r}")
    factory = registry.load(name)
    chosen = inline if model is None else model
    if chosen is not None and "model" not in inspect.signature(factory).parameters:
        raise ConfigError(f"{registry.kind} {name} takes no model, got {chosen!r}")
    supply = {"engine": None, **({} if chosen is None else {"model": chosen})}
    checked = bind(factory, params, supply=supply)
    return PartChoice(registry.kind, name, chosen, factory, {k: v for k, v in checked.items() if k not in supply})


def _keywords(function: Callable[..., Any]) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _section(args: argparse.Namespace, part: str) -> dict[str, object]:
    prefix = f"{part}."
    sets = overrides(getattr(args, "set", []))
    return {key.removeprefix(prefix): value for key, value in sets.items() if key.startswith(prefix)}


def _split_sets(
    args: argparse.Namespace, strategies: list[str]
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Split --set into keys for every strategy and keys for one (`majority.n`)."""
    general: dict[str, object] = {}
    special: dict[str, dict[str, object]] = {}
    for key, value in overrides(args.set).items():
        head, dot, rest = key.partition(".")
        if not dot:
            general[key] = value
        elif head in strategies:
            special.setdefault(head, {})[rest] = value
        elif head not in PARTS:
            known = [*PARTS, *strategies]
            raise ConfigError(f"--set {key}: no part {head!r}{nearest(head, known)} (known: {', '.join(known)})")
    return general, special
