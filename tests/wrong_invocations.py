"""Wrong command lines for every command and option, made from the parsers that the commands themselves declare.

An option is filled with what its kind cannot be: a number with words, empty text, NaN, too many digits, a sign; a name
with one that is not there; a file or folder with one that cannot be; KEY=VALUE with half of it. All else on the line is
right, where a right line costs little (`NAMING`). Options whose text is free (a system message) are left out by name.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ttc.cli.cli import GROUP
from ttc.config.registry import plugins

HUGE = "9" * 25
NUMBERS = ("x", "", "nan", "1.5e", "-7", HUGE)
NAMES = ("no-such-thing", "", "file.py:missing", "?")
FILES = ("{file}/x", "")
PAIRS = ("x", "=", "=1", "no_such_key=1", "engine.no_such=1")
KIND_OF = {
    **dict.fromkeys(("N", "K", "T", "P", "TOKENS", "TIMES", "SEED", "DOLLARS", "GB", "S"), NUMBERS),
    **dict.fromkeys(("FILE", "DIR", "RUN", "LOG"), FILES),
    **dict.fromkeys(("KEY=VALUE", "STAGE.FIELD=VALUE", "KEY=VALUE,..."), PAIRS),
}
FREE = {"--system", "--wandb", "--name", "--open", "--close", "--host", "--data"}
"""Options of which every text is a right one."""
RIGHT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("solve",): ("1+1", "--engine", "simulated"),
    ("chat",): ("--engine", "simulated"),
    ("eval",): ("--engine", "simulated", "--limit", "1", "--strategy", "direct", "--out", "{out}"),
    ("quickstart",): ("--look",),
    ("compare",): ("{run}",),
    ("report",): ("{run}",),
    ("replay",): ("{run}",),
    ("calibrate",): ("{run}",),
    ("serve",): ("--engine", "simulated", "--port", "{port}"),
    ("list",): ("strategies",),
    ("train", "run"): ("no-such-recipe", "--out", "{out}", "--seed", "1"),
    ("train", "plan"): ("r1-zero", "--model", "{model}", "--no-probe"),
    ("train", "adapt"): ("{model}", "--out", "{out}"),
    ("train", "replay"): ("{run}", "--step", "0"),
    ("train", "rescore"): ("{run}",),
    ("train", "report"): ("{run}",),
    ("train", "gate"): ("{run}", "--seed", "1"),
    ("distill", "plan"): ("{spec}", "--out", "{out}"),
    ("distill", "run"): ("--out", "{out}"),
    ("distill", "status"): ("{run}",),
    ("distill", "report"): ("{run}",),
    ("distill", "verify"): ("{run}",),
    ("distill", "trace"): ("{run}", "0"),
}
"""What a command needs beside the option under test, with {run} an evaluation, {out} a new folder, {model} a model."""

NAMING = ("solve", "chat", "eval", "quickstart", "report", "replay", "calibrate", "serve", "list", "verify", "doctor")
"""Commands of which the wrong option is the only fault of the line, so the message must name it."""


@dataclass(frozen=True)
class WrongInvocation:
    """A command line, and the option in it that is wrong, with its value."""

    words: tuple[str, ...]
    option: str
    value: str

    def __str__(self) -> str:
        """As it is typed."""
        return shlex.join(self.words)

    def is_named_in(self, message: str) -> bool:
        """Whether a message says what is wrong: the option, as a key too, or the value that was given."""
        name = self.option.lstrip("-")
        words = (name, re.split(r"[:=.]", self.value.rpartition("/")[2])[0])
        return any(word and word.replace("-", "_") in message.replace("-", "_") for word in words)


def parsers() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command with its parser, the actions of a command for themselves."""
    for name, entry in sorted(plugins(GROUP).items()):
        root = argparse.ArgumentParser(prog="ttc").add_subparsers()
        entry.load()(root)
        yield from _leaves((name,), root.choices[name])


def _leaves(
    path: tuple[str, ...], parser: argparse.ArgumentParser
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield path, parser
    for name, child in (item for action in inner for item in action.choices.items()):
        yield from _leaves((*path, name), child)


def wrong_invocations() -> list[WrongInvocation]:
    """All of them, in the order of commands and options."""
    return [wrong for path, parser in parsers() for wrong in _of_command(path, parser)]


def _of_command(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[WrongInvocation]:
    right = RIGHT.get(path, ())
    yield WrongInvocation((*path, *right, "--no-such-option"), "--no-such-option", "")
    if not any(action.nargs == "+" for action in parser._actions):
        yield WrongInvocation((*path, *right, *["surplus"] * 3), "surplus", "")
    for action in parser._actions:
        option = max(action.option_strings, key=len, default="")
        if option in ("--help", *FREE) or not option:
            continue
        if action.nargs == 0:
            yield WrongInvocation((*path, *right, f"{option}=1"), option, "1")
            continue
        yield WrongInvocation((*path, *_without(option, right), option), option, "")
        for value in _values(action):
            yield WrongInvocation((*path, *_without(option, right), f"{option}={value}"), option, value)


def _without(option: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Words without an option and its value."""
    if option not in words:
        return words
    place = words.index(option)
    return words[:place] + words[place + 2 :]


def _values(action: argparse.Action) -> tuple[str, ...]:
    """What this option cannot be."""
    if action.type in (int, float):
        return NUMBERS
    if action.type is Path:
        return FILES
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return KIND_OF.get(metavar, NAMES)
