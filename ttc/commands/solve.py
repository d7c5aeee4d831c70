"""`ttc solve "12+30*2"`: answer one question by one strategy.

    ttc solve "12+30*2" --strategy tree --n 8 --show-tree                         the packaged toy, which does sums only
    ttc solve "What is 6*7?" --model Qwen/Qwen3-0.6B --strategy majority --n 8
    ttc solve "What is 6*7?" --base-url http://127.0.0.1:8000/v1 --strategy majority --n 8

The answer goes to stdout, what it cost to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ttc.answers import KINDS
from ttc.cli.options import add_options, add_recipe_option, option, read_options
from ttc.cli.parts import (
    NOT_REPRODUCIBLE,
    TOY,
    EngineOptions,
    SamplingOptions,
    StrategyOptions,
    ThinkingOptions,
    as_recommended,
    is_reproducible,
    resolve_budget,
    resolve_engine,
    resolve_sampling,
    resolve_scorer,
    resolve_strategies,
    resolve_thinking,
    without_seeds,
)
from ttc.cli.process import typed_in
from ttc.cli.rehearsal import refuse_early
from ttc.config.plugins import cut_by_budget, without_scores
from ttc.config.recipes import dump
from ttc.config.values import counted
from ttc.core import Answer, Message, Path, Problem, Sampling
from ttc.engines.shared.wrapped import with_markers
from ttc.errors import ConfigError, UnknownName
from ttc.session.solve import fit_to_context, solve


@dataclass(frozen=True, kw_only=True)
class SolveOptions(SamplingOptions, ThinkingOptions, StrategyOptions, EngineOptions):
    """The options of `ttc solve`."""

    question: str
    kind: str = option("math", "kind of final answer: math, number, choice, ...")
    system: str | None = option(None, "system message", metavar="TEXT")
    json: bool = option(False, "print everything about the answer as one JSON object")
    show_tree: bool = option(False, "show steps, scores and pruned branches on stderr")
    show_thinking: bool = option(False, "show the chosen thinking on stderr")


def register(subparsers: Any) -> None:
    """Add `ttc solve`."""
    parser = subparsers.add_parser("solve", description=__doc__)
    parser.add_argument("question", help="the question; - reads it from standard input")
    add_recipe_option(parser)
    add_options(parser, SolveOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer the question; 3 when no answer was found."""
    options = read_options(SolveOptions, args)
    problem = _problem(options)
    strategies = resolve_strategies(options)
    if len(strategies) != 1:
        raise ConfigError("ttc solve takes one --strategy; ttc eval compares several")
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    sampling, thinking = resolve_sampling(options, Sampling()), resolve_thinking(options, options.settings)
    budget = resolve_budget(options.budget)
    engine_choice = resolve_engine(options, options.settings)
    scorer_choice = resolve_scorer(options.scorer, options.settings, strategies, is_packaged=options.is_packaged)
    if options.seed is None:
        readers = [*strategies[0].functions, *([] if scorer_choice is None else [scorer_choice.factory])]
        engine_choice = without_seeds(engine_choice, options.settings, readers)
    refuse_early(strategies, has_scorer=scorer_choice is not None, sampling=sampling, thinking=thinking)

    if options.is_packaged:
        print(TOY, file=sys.stderr)

    async def work() -> tuple[Answer, int]:
        engine = with_markers(engine_choice.create_engine(), thinking)
        try:
            scorer = None if scorer_choice is None else scorer_choice.create_scorer(engine)
            own = as_recommended(sampling, options, engine.capabilities)
            if options.max_tokens is None:  # the default is lowered to the model's context
                own = fit_to_context(own, engine, problem, thinking)
            answer = await solve(
                problem,
                engine=engine,
                strategy=strategies[0].bind(scorer),
                seed=seed,
                sampling=own,
                thinking=thinking,
                budget=budget,
            )
            return answer, own.max_tokens
        finally:
            await engine.close()

    answer, longest = asyncio.run(work())
    _print(answer, strategies[0].label, seed if is_reproducible(engine_choice) else None, longest, options)
    return 0 if answer.finish_reason == "stop" and answer.text.strip() else 3


def _problem(options: SolveOptions) -> Problem:
    if options.kind not in KINDS:
        raise UnknownName("kind", options.kind, KINDS)
    question = typed_in(sys.stdin.read) if options.question == "-" else options.question
    if not question.strip():
        raise ConfigError("the question is empty")
    system = () if options.system is None else (Message("system", options.system),)
    return Problem("question", (*system, Message("user", question.strip())), options.kind)


def _print(answer: Answer, label: str, seed: int | None, max_tokens: int, options: SolveOptions) -> None:
    if options.show_tree:
        print("\n".join(tree_lines(answer)), file=sys.stderr)
    if options.show_thinking and answer.thinking:
        print(answer.thinking.strip() + "\n", file=sys.stderr)
    if options.json:
        print(json.dumps({"strategy": label, "seed": seed, **dump(answer)}))
    else:
        print(answer.text.strip() if answer.final is None else answer.final)
    print(cost_line(answer, label, seed, max_tokens), file=sys.stderr)


def cost_line(answer: Answer, label: str, seed: int | None, max_tokens: int) -> str:
    """What the answer cost, on one line; without a seed, the run cannot be repeated. A draw had up to `max_tokens`."""
    usage = answer.usage
    parts = [f"{usage.generated:,} generated"]
    parts += [f"{usage.thinking:,} of them thinking"] if usage.thinking else []
    parts += [f"{usage.scored:,} scored"] if usage.scored else []
    parts += [f"{usage.judged:,} judged"] if usage.judged else []
    work = f"{usage.flops / 1e9:,.2f} GFLOP" if usage.flops else "FLOPs –"  # an endpoint does not give its model's size
    line = f"{label}: {counted(usage.tokens, 'token')} ({', '.join(parts)}), {counted(usage.calls, 'call')}, {work}"
    line += f", {answer.seconds:.2f} s, " + (NOT_REPRODUCIBLE if seed is None else f"--seed {seed}")
    if answer.finish_reason != "stop":
        limit = "--budget" if cut_by_budget(answer, max_tokens) else "--max-tokens"
        line += f"; cut before it ended: raise {limit}"
    elif not answer.text.strip():
        line += "; the model " + ("ended inside its thought (--show-thinking)" if answer.thinking else "wrote nothing")
    unscored = without_scores([answer])
    line += f"; {unscored}" if unscored else ""
    return line + (f"; stopped: {answer.stop_cause}" if answer.stop_cause != "done" else "")


MAX_CHARS = 72
"""Characters of a step that are shown."""


def tree_lines(answer: Answer) -> list[str]:
    """Return the tree of `answer`, a line a step, children in path order; the chosen path is marked with `*`."""
    scores = {event.path: event.data.get("value") for event in answer.trace if event.kind == "score"}
    pruned = {event.path for event in answer.trace if event.kind == "prune"}
    selection = next((event.path for event in answer.trace if event.kind == "select"), ())
    steps = {event.path: event.data for event in answer.trace if event.kind == "generate"}
    children: dict[Path, list[Path]] = {}
    for path in sorted(steps):
        children.setdefault(path[:-1], []).append(path)

    def branch(parent: Path, indent: str) -> Iterator[str]:
        paths = children.get(parent, [])
        for path in paths:
            is_last, on_path = path == paths[-1], selection[: len(path)] == path
            line = _step_line(steps[path], scores.get(path), path in pruned)
            yield f"{indent}{'└' if is_last else '├'}{'*' if on_path else '─'} {line}"
            yield from branch(path, indent + ("   " if is_last else "│  "))

    return list(branch((), ""))


def _step_line(step: Mapping[str, Any], score: float | None, pruned: bool) -> str:
    text = " ".join(str(step["text"]).split())
    text = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    number = "" if score is None else f"  {score:.3f}"
    return f"{text}  [{int(step['num_tokens'])}]{number}{'  pruned' if pruned else ''}"
