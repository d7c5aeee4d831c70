"""`ttc solve "12+30*2"`: one question, one strategy; the answer on stdout, what it cost on stderr."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from dataclasses import dataclass
from typing import Any

from ttc.answers import KINDS
from ttc.cli.options import (
    PartChoice,
    StrategyChoice,
    add_engine_options,
    add_sampling_options,
    add_strategy_options,
    add_thinking_options,
    fit_to_context,
    resolve_budget,
    resolve_engine,
    resolve_sampling,
    resolve_scorer,
    resolve_strategies,
    resolve_thinking,
)
from ttc.cli.recipe import add_recipe_option
from ttc.cli.rehearsal import refuse_early
from ttc.commands._tree import tree_lines
from ttc.config.plugin_fault import without_scores
from ttc.config.recipes import dump
from ttc.core import Answer, Budget, Message, Problem, Sampling
from ttc.errors import ConfigError, UnknownName
from ttc.session.solve import solve
from ttc.session.thinking import Thinking


@dataclass(frozen=True, slots=True)
class How:
    """How to draw and what may be spent; `fit` lowers the default max_tokens to the model's context."""

    seed: int
    sampling: Sampling
    thinking: Thinking
    budget: Budget | None
    fit: bool


def register(subparsers: Any) -> None:
    """Add `ttc solve`."""
    parser = subparsers.add_parser("solve", help="answer one question", description=__doc__)
    parser.add_argument("question", help="the question; - reads it from standard input")
    parser.add_argument("--kind", default="math", help="kind of final answer: math, number, choice, ...")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--json", action="store_true", help="print everything about the answer as one JSON object")
    parser.add_argument("--show-tree", action="store_true", help="show steps, scores and pruned branches on stderr")
    parser.add_argument("--show-thinking", action="store_true", help="show the chosen thinking on stderr")
    add_recipe_option(parser)
    add_engine_options(parser)
    add_strategy_options(parser, default="direct")
    add_thinking_options(parser)
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer the question; 3 when no answer was found."""
    problem = _problem(args)
    strategies = resolve_strategies(args, default="direct")
    if len(strategies) != 1:
        raise ConfigError("ttc solve takes one --strategy; ttc eval compares several")
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    how = How(
        seed,
        resolve_sampling(args, Sampling()),
        resolve_thinking(args),
        resolve_budget(args),
        fit=args.max_tokens is None,
    )
    engine, scorer = resolve_engine(args), resolve_scorer(args, strategies)
    refuse_early(strategies, has_scorer=scorer is not None, sampling=how.sampling, thinking=how.thinking)
    answer = asyncio.run(_solve(problem, strategies[0], engine, scorer, how))
    _print(answer, strategies[0].label, seed, args)
    return 0 if answer.finish_reason == "stop" and answer.text.strip() else 3


def _problem(args: argparse.Namespace) -> Problem:
    if args.kind not in KINDS:
        raise UnknownName("kind", args.kind, KINDS)
    question = sys.stdin.read() if args.question == "-" else args.question
    if not question.strip():
        raise ConfigError("the question is empty")
    system = () if args.system is None else (Message("system", args.system),)
    return Problem("question", (*system, Message("user", question.strip())), args.kind)


async def _solve(
    problem: Problem,
    strategy: StrategyChoice,
    engine_choice: PartChoice,
    scorer_choice: PartChoice | None,
    how: How,
) -> Answer:
    engine = engine_choice.create_engine()
    try:
        scorer = None if scorer_choice is None else scorer_choice.create_scorer(engine)
        sampling = fit_to_context(how.sampling, engine, problem, how.thinking) if how.fit else how.sampling
        return await solve(
            problem,
            engine=engine,
            strategy=strategy.bind(scorer),
            seed=how.seed,
            sampling=sampling,
            thinking=how.thinking,
            budget=how.budget,
        )
    finally:
        await engine.close()


def _print(answer: Answer, label: str, seed: int, args: argparse.Namespace) -> None:
    if args.show_tree:
        print("\n".join(tree_lines(answer)), file=sys.stderr)
    if args.show_thinking and answer.thinking:
        print(answer.thinking.strip() + "\n", file=sys.stderr)
    if args.json:
        print(json.dumps({"strategy": label, "seed": seed, **dump(answer)}))
    else:
        print(answer.text.strip() if answer.final is None else answer.final)
    print(_cost_line(answer, label, seed), file=sys.stderr)


def _cost_line(answer: Answer, label: str, seed: int) -> str:
    usage = answer.usage
    parts = [f"{usage.generated:,} generated"]
    parts += [f"{usage.thinking:,} of them thinking"] if usage.thinking else []
    parts += [f"{usage.scored:,} scored"] if usage.scored else []
    parts += [f"{usage.judged:,} judged"] if usage.judged else []
    calls = "1 call" if usage.calls == 1 else f"{usage.calls} calls"
    line = f"{label}: {usage.tokens:,} tokens ({', '.join(parts)}), {calls}, {usage.flops / 1e9:,.2f} GFLOP"
    line += f", {answer.seconds:.2f} s, --seed {seed}"
    if answer.finish_reason != "stop":
        limit = "--budget" if answer.stop_cause == "budget" else "--max-tokens"
        line += f"; cut before it ended: raise {limit}"
    unscored = without_scores([answer])
    line += f"; {unscored}" if unscored else ""
    return line + (f"; stopped: {answer.stop_cause}" if answer.stop_cause != "done" else "")
