"""Commands without what they need: read by their own parsers, and bound as far as no model and no data set is there.

What is bound: strategies, engines, scorers, sampling, thinking and budgets of `eval` and `solve`; recipes with their
scale and settings; specs of distillation; the configuration of a server. Left out: what a hub or a device would say.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from distill.spec.spec import read_spec
from evals.commands import eval as eval_command
from evals.commands.eval import EvalOptions
from evals.commands.quickstart import QuickstartOptions
from evals.task import load_task
from serve.operator.config import from_options, load_config
from tests.documents import ROOT, Typed
from train.recipe.recipe import read_recipe
from ttc.cli import cli
from ttc.cli.options import read_options
from ttc.config.recipes import overrides

Act = Callable[[Typed], None]
_PLAN = re.compile(r"plan=([\w./-]+\.json)")
PLANS = ROOT / "tests" / "ttc" / "plans"
"""What stands in for a plan that the reader makes: by samples alone, and with a scorer."""


def dry(typed: Typed) -> None:
    """Look at one command without running it.

    Raises:
        LookupError: a program that these pages do not use.
        AssertionError: something that the command names is not there.
        SystemExit, ConfigError: as the command itself refuses it.
    """
    if not typed.words:
        return
    program = Path(typed.words[0]).name
    PROGRAMS[program](typed)


def _ttc(typed: Typed) -> None:
    words = list(typed.words[1:])
    args = cli._parse(words)
    verb = next((name for name in BINDERS if words[: len(name)] == list(name)), None)
    if verb is not None:
        BINDERS[verb](args)


def _eval(args: argparse.Namespace) -> None:
    options = read_options(EvalOptions, args)
    load_task(options.task)
    stand_in = PLANS / ("votes.json" if options.scorer is None else "routes.json")
    there = [_PLAN.sub(lambda m: m[0] if Path(m[1]).is_file() else f"plan={stand_in}", s) for s in options.strategy]
    options = replace(options, strategy=tuple(there))
    if options.model is not None and "/" not in options.model:  # a folder that the reader makes
        options = replace(options, model=str(ROOT / "ttc" / "nano" / "teacher"))
    known = {key: value for key, value in options.settings.items() if not key.startswith("task.")}
    plan = getattr(eval_command, "plan", None) or eval_command._plan
    plan(replace(options, task="arithmetic", level=None, data=None, settings=known), Path("runs/dry"))


def _train(args: argparse.Namespace) -> None:
    settings = {k: v for k, v in overrides(args.settings).items() if not k.startswith("thinking.")}
    own = ROOT / args.recipe  # a file of the checkout, where the reader is
    read_recipe(str(own) if own.is_file() else args.recipe, scale=args.scale, overrides=settings)


def _distill(args: argparse.Namespace) -> None:
    flags = ("method", "teacher.model", "teacher.strategy", "student", "task", "held_out", "n", "limit", "seed")
    given = {key: value for key in flags if (value := getattr(args, key)) is not None}
    read_spec(args.spec, {**given, **overrides(args.settings)})


def _serve(args: argparse.Namespace) -> None:
    if args.config is not None:
        load_config(Path(args.config))
    else:
        model = args.model or args.named_model
        from_options(model, args.engine, args.name, args.scorer, args.upstream, overrides(args.set))


BINDERS: Mapping[tuple[str, ...], Callable[[argparse.Namespace], object]] = {
    ("eval",): _eval,
    ("quickstart",): lambda args: read_options(QuickstartOptions, args),
    ("train", "run"): _train,
    ("train", "plan"): _train,
    ("distill", "run"): _distill,
    ("distill", "plan"): _distill,
    ("serve",): _serve,
}


def _make(typed: Typed) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [word for word in typed.words[1:] if "=" not in word]
    assert set(named) <= set(targets), f"{typed.place}: no target of the Makefile: {named}"


def _pip(typed: Typed) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = settings["project"]["optional-dependencies"]
    engines = {each["extra"] for group in settings["tool"]["uv"]["conflicts"] for each in group}
    extras = [name for word in typed.words for group in re.findall(r"\.\[(.+)\]", word) for name in group.split(",")]
    assert set(extras) <= set(known), f"{typed.place}: no extra of pyproject.toml: {extras}"
    is_pinned = "constraints.txt" in typed.words
    assert not (is_pinned and engines & {*extras}), f"{typed.place}: engines pin other versions than constraints.txt"
    files = [word for before, word in zip(typed.words, typed.words[1:], strict=False) if before in ("-c", "-r")]
    assert all((ROOT / name).is_file() for name in files), f"{typed.place}: no such file: {files}"


def _python(typed: Typed) -> None:
    """A module is there, and its package reads every option that is named."""
    if typed.words[1:2] != ("-m",):
        assert all((ROOT / word).exists() for word in typed.words[1:2]), f"{typed.place}: no such file"
        return
    name = typed.words[2]
    if name in ("venv", "pip", "pytest"):
        return
    assert importlib.util.find_spec(name) is not None, f"{typed.place}: no module {name}"
    if name == "ttc":
        _ttc(replace(typed, words=typed.words[2:]))
        return
    source = "".join(path.read_text() for path in (ROOT / name.partition(".")[0]).rglob("*.py"))
    flags = [word.partition("=")[0] for word in typed.words if word.startswith("--")]
    lost = [flag for flag in flags if f'"{flag}"' not in source and f'"{flag[2:]}"' not in source]
    assert not lost, f"{typed.place}: {name} has no {', '.join(lost)}"


def _bash(typed: Typed) -> None:
    assert (ROOT / typed.words[1]).is_file(), f"{typed.place}: no such file: {typed.words[1]}"


def _elsewhere(typed: Typed) -> None:
    """A program of others: nothing of ours is named."""


PROGRAMS: Mapping[str, Act] = {
    "ttc": _ttc,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "python3": _python,
    "bash": _bash,
    **dict.fromkeys(("git", "cd", "source", "curl", "vllm", "llama-server", "pytest", "sha256sum"), _elsewhere),
}
