"""`ttc list`: strategies, scorers, engines, verifiers, tasks, ... with their parameters.

    ttc list                            the names of everything
    ttc list strategies                 every strategy, with what it costs and its parameters
    ttc list strategies majority        one of them

Defaults and documentation are read from the signatures.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from ttc.config.registry import VERIFIERS, Registry, plugins
from ttc.config.signatures import Description, Parameter
from ttc.errors import ConfigError, TTCError, UnknownName
from ttc.records import encode
from ttc.verifiers.shared.contract import Card, card_of

REGISTRIES = "ttc.registries"
WITH_ABOUT = ("strategy", "policy")
"""Kinds whose listing states paper, cost and what is left out."""


def register(subparsers: Any) -> None:
    """Add `ttc list`."""
    parser = subparsers.add_parser("list", description=__doc__)
    parser.add_argument("what", nargs="?", help=", ".join(sorted(plugins(REGISTRIES))))
    parser.add_argument("name", nargs="?", help="only this one")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the descriptions of one registry, or the names in all of them."""
    if args.what is None:
        print("\n".join(_overview(as_json=args.json)))
        return 0
    registry = find_registry(args.what)
    names = registry.names() if args.name is None else (args.name,)
    for name in names:
        description = _describe(registry, name, strict=args.name is not None)
        card = _card(description) if registry == VERIFIERS else None
        if args.json:
            print(json.dumps(description.to_json() | ({"card": encode(card)} if registry == VERIFIERS else {})))
        else:
            print(_text(description) + (_card_text(card) if registry == VERIFIERS else ""))
    return 0


def find_registry(what: str) -> Registry:
    """Return the registry called `what`, singular or plural (`strategy`, `strategies`)."""
    registries = plugins(REGISTRIES)
    for name, entry in registries.items():
        if what == name:
            return _loaded(entry.load())
    for entry in registries.values():
        registry = _loaded(entry.load())
        if registry.kind == what:
            return registry
    raise UnknownName("list", what, registries)


def _overview(*, as_json: bool) -> Iterator[str]:
    """A line for each registry, with its names."""
    entries = sorted(plugins(REGISTRIES).items())
    indent = max(len(what) for what, _ in entries) + 2
    for what, entry in entries:
        names = _loaded(entry.load()).names()
        if as_json:
            yield json.dumps({"what": what, "names": names})
        else:
            yield textwrap.fill(f"{what:<{indent}}{', '.join(names)}", 120, subsequent_indent=" " * indent)


def _loaded(registry: object) -> Registry:
    if not isinstance(registry, Registry):
        raise ConfigError(f"an entry point of {REGISTRIES} must be a Registry, got {type(registry).__name__}")
    return registry


def _describe(registry: Registry, name: str, *, strict: bool) -> Description:
    """Describe `name`; in a listing, one that cannot be loaded is shown with the reason."""
    try:
        return registry.describe(name)
    except (TTCError, ImportError) as exc:
        if strict:
            raise
        return Description(registry.kind, name, f"unavailable: {exc}", False, ())


def _card(description: Description) -> Card | str | None:
    """The card of a verifier with its defaults, or why these cannot make one; None if it declares no card."""
    needed = [parameter.name for parameter in description.parameters if parameter.required]
    if needed:
        return f"depends on {', '.join(needed)}"
    try:
        return card_of(VERIFIERS.load(description.name)())
    except (TTCError, ImportError) as exc:
        return f"unavailable: {exc}"


def _card_text(card: Card | str | None) -> str:
    if not isinstance(card, Card):
        return f"    card: {card or 'none is declared'}\n"
    rows = {
        "version": card.version,
        "takes": card.inputs,
        "correct": card.correct_when,
        "score": card.partial_credit,
        "limits": f"a verdict within {card.max_s:g} s of work; {card.limits}",
        "weak": "; ".join(card.weaknesses),
        "canaries": f"{len(card.canaries)}",
    }
    lines = [
        textwrap.fill(text, 110, initial_indent=f"      {name:<9}", subsequent_indent=" " * 15)
        for name, text in rows.items()
    ]
    return "\n".join(["    card", *lines]) + "\n"


def _text(description: Description) -> str:
    lines = [f"{description.name}{'[:MODEL]' if description.takes_model else ''}", f"    {description.doc}"]
    if description.kind in WITH_ABOUT and description.about:
        lines.append(textwrap.indent(description.about, "    ", lambda line: bool(line.strip())))
    lines += [line for parameter in description.parameters for line in _parameter_lines(parameter)]
    return "\n".join(lines) + "\n"


def _parameter_lines(parameter: Parameter) -> list[str]:
    default = parameter.to_json()["default"]
    value = "required" if parameter.required else f"default {default!r}"
    head = f"      {parameter.name}: {parameter.type}  ({value})"
    return [head, *textwrap.wrap(parameter.doc, 100, initial_indent=" " * 10, subsequent_indent=" " * 10)]
