"""`ttc eval`: run a task under one or more strategies, with intervals, prices and a report.

    ttc eval --strategy tree                               the packaged model on arithmetic
    ttc eval --strategy direct:temperature=0,majority,tree --n 16 --limit 1000 --out runs/first
    ttc eval --task gsm8k --engine vllm --model Qwen/Qwen3-4B --scorer prm:Qwen/Qwen2.5-Math-PRM-7B --strategy best_of_n

The folder holds records.jsonl (one synced line per problem), run.json, summary.json, report.html, curve.csv and
figure.png; several strategies have a folder each. Interrupted or killed, the same command with the same --out goes on
where it stopped; failed problems are kept unless --retry-errors is given. What decides a run stands in run.json, with
models, user files and problems by content: over other weights or a changed strategy file it is refused by name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.numbers.summary import write_summary
from evals.report import render_table, write_report
from evals.runs.experiment import Arm, Experiment, Result, all_params, execute
from evals.runs.progress import ProgressBar
from evals.task import Task
from evals.tasks import TASKS, load_task, task_file
from ttc.cli.memory import keep_little
from ttc.cli.options import (
    DEFAULT_ENGINE,
    StrategyChoice,
    add_engine_options,
    add_sampling_options,
    add_strategy_options,
    add_thinking_options,
    check_writable,
    resolve_budget,
    resolve_engine,
    resolve_sampling,
    resolve_scorer,
    resolve_strategies,
    resolve_thinking,
    resolve_verifier,
)
from ttc.cli.recipe import add_recipe_option
from ttc.config.config import label_of, overrides, parse_spec, split_specs
from ttc.config.plugin_fault import without_scores
from ttc.config.registry import STRATEGIES, bind
from ttc.core import Budget, Sampling
from ttc.errors import ConfigError
from ttc.rehearsal import refuse_early
from ttc.session.thinking import Thinking
from ttc.strategies.auto import kind_without_plan

EPILOG = """\
exit codes:
  0    done
  1    failed while running; the run can be continued
  2    bad input; nothing was started
  3    finished, but some problems failed (they are in records.jsonl with their error)
  130  interrupted; the run can be continued

Results go to stdout, everything else to stderr. --json ends stdout with one line per strategy that was asked for."""
LEGEND = (
    "tokens, FLOPs and seconds are per problem; covered: some candidate is right; regret: points that choosing lost; "
    "cut: ran out of tokens"
)
DEFAULT_LIMIT = 100
DEFAULT_CONCURRENCY = 64
GREEDY = "direct:temperature=0"
MAX_CONCURRENCY = 65536
"""Problems in flight that still fit into memory; no engine runs as many at once."""


def register(subparsers: Any) -> None:
    """Add `ttc eval`."""
    parser = subparsers.add_parser(
        "eval",
        help="measure strategies on a task",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    task = parser.add_argument_group("task")
    task.add_argument(
        "--task",
        default="arithmetic",
        metavar="NAME[:ARG]|FILE",
        help="a task, or a .jsonl or .toml file; its parameters: --set task.KEY=VALUE (default: arithmetic)",
    )
    task.add_argument("--level", metavar="L", help="difficulty, where the task has levels")
    task.add_argument(
        "--problems-seed", type=int, metavar="SEED", help="picks the problems of a procedural task (default: 0)"
    )
    task.add_argument("--limit", default=str(DEFAULT_LIMIT), metavar="N", help="problems, or all (default: 100)")
    task.add_argument(
        "--unsafe-code", action="store_true", help="run model-written programs without a sandbox where none works"
    )
    task.add_argument("--data", metavar="DIR", help="folder with the datasets (default: TTC_DATA, else the hub)")
    runs = parser.add_argument_group("run")
    runs.add_argument("--out", metavar="DIR", help="run folder; an existing one is continued (default: runs/...)")
    runs.add_argument(
        "--concurrency",
        type=int,
        default=DEFAULT_CONCURRENCY,
        metavar="N",
        help=f"problems in flight (default: {DEFAULT_CONCURRENCY})",
    )
    runs.add_argument("--retry-errors", action="store_true", help="run problems again that failed before")
    runs.add_argument(
        "--baseline",
        metavar="NAME,...",
        help="strategies added to a lone one: default direct:temperature=0 (greedy), and majority on the packaged "
        "model; or none",
    )
    runs.add_argument("--json", action="store_true", help="end stdout with one JSON line per strategy")
    add_recipe_option(parser)
    add_engine_options(parser)
    add_strategy_options(parser, default="tree", several=True)
    add_thinking_options(parser)
    add_sampling_options(parser, seed="0; --problems-seed picks the problems")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate; see EPILOG for the exit codes."""
    out = Path(args.out or _default_out(args)).expanduser()
    experiment = _plan(args, out)
    check_writable("--out", out)
    if experiment.engine.name == DEFAULT_ENGINE:
        keep_little()
    if experiment.task.note:
        print(f"{experiment.task.name}: {experiment.task.note}", file=sys.stderr)
    total = len(experiment.items) * len(experiment.arms)
    try:
        with ProgressBar(total) as progress:
            results = asyncio.run(
                execute(
                    experiment,
                    concurrency=args.concurrency,
                    retry_errors=args.retry_errors,
                    watcher=progress,
                )
            )
    except KeyboardInterrupt:
        print(f"\ninterrupted; continue with: {_command(out)}", file=sys.stderr)
        return 130
    _report(results, out, as_json=args.json)
    return 3 if any(result.entry["errors"] for result in results) else 0


def _plan(args: argparse.Namespace, out: Path) -> Experiment:
    """Check every name, parameter and file; nothing heavy is loaded."""
    if not 1 <= args.concurrency <= MAX_CONCURRENCY:
        raise ConfigError(f"--concurrency must be >= 1 and <= {MAX_CONCURRENCY}, got {args.concurrency}")
    args.set, task_params = _split_task_params(args.set)
    asked = resolve_strategies(args, default="tree")
    engine = resolve_engine(args)
    task = _task(args, task_params)
    problems_seed = _problems_seed(args.problems_seed, task)
    sampling = replace(resolve_sampling(args, task.sampling), seed=None)
    _check_spread(asked, sampling.temperature)
    arms = _arms(asked, _baselines(args, asked, sampling.temperature), out)
    scorer = resolve_scorer(args, [arm.choice for arm in arms])
    thinking, budget = resolve_thinking(args), resolve_budget(args)
    arms = [replace(arm, choice=_with_total(arm.choice, budget)) for arm in arms]
    ordered = [arm.choice for arm in sorted(arms, key=lambda arm: arm.baseline)]
    _refuse_early(ordered, has_scorer=scorer is not None, sampling=sampling, thinking=thinking)
    verifier = resolve_verifier(task.check.verifier, _check_params(args, task))
    limit = _limit(args.limit)
    return Experiment(
        task=task,
        items=task.sequence(limit, problems_seed),
        engine=engine,
        scorer=scorer,
        verifier=verifier,
        sampling=sampling,
        fit=args.max_tokens is None,
        thinking=thinking,
        budget=budget,
        seed=0 if args.seed is None else args.seed,
        limit=limit,
        arms=arms,
        problems_seed=problems_seed if task.procedural else None,
        task_file=task_file(args.task),
    )


def _problems_seed(seed: int | None, task: Task) -> int:
    if seed is not None and not task.procedural:
        raise ConfigError(f"--problems-seed has no effect: the problems of task {task.name} are fixed")
    return 0 if seed is None else seed


def _refuse_early(
    choices: Sequence[StrategyChoice], *, has_scorer: bool, sampling: Sampling, thinking: Thinking
) -> None:
    """Let the strategies refuse their values before a model is loaded; one that learns its plan has none to show."""
    planless = [c for c in choices if c.params.get("total") is not None and c.params.get("plan") is None]
    for choice in planless:
        kind_without_plan(choice.params.get("width"), choice.params.get("policy"), None)
    others = [choice for choice in choices if choice not in planless]
    refuse_early(others, has_scorer=has_scorer, sampling=sampling, thinking=thinking)


def _check_spread(asked: Sequence[StrategyChoice], temperature: float) -> None:
    """Refuse several samples at temperature 0, where they would all be equal."""
    for choice in asked:
        n = all_params(choice).get("n")
        if temperature == 0 and isinstance(n, int) and n > 1:
            raise ConfigError(f"{choice.label}: n={n} needs temperature > 0: at 0 all samples are equal")


def _task(args: argparse.Namespace, params: Mapping[str, object]) -> Task:
    factory = load_task(args.task)
    given: dict[str, object] = dict(params)
    if args.level is not None:
        given["level"] = args.level
    if args.data is not None:
        given["data"] = args.data
    supply = {"data": os.environ["TTC_DATA"]} if os.environ.get("TTC_DATA") and "data" not in given else {}
    task: Task = TASKS.checked(args.task, factory(**bind(factory, given, supply=supply)))
    return task


def _check_params(args: argparse.Namespace, task: Task) -> Mapping[str, object]:
    """Return the parameters of the task's verifier; the one of programs may be let off its sandbox."""
    if args.unsafe_code and task.check.verifier == "code":
        return {**task.check.params, "unsafe": True}
    return task.check.params


def _split_task_params(pairs: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Take `task.KEY=VALUE` out of --set."""
    mine = [pair for pair in pairs if pair.startswith("task.")]
    return [pair for pair in pairs if pair not in mine], overrides([pair.removeprefix("task.") for pair in mine])


def _limit(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--limit must be a whole number >= 1 or all, got {text!r}")
    return int(text)


def _arms(asked: Sequence[StrategyChoice], baselines: Sequence[StrategyChoice], out: Path) -> list[Arm]:
    """Give each strategy its folder; one that was asked for alone has `out` itself, beside its baselines'."""
    if len(asked) == 1:
        return [
            *(Arm(choice, out / _folder_name(choice), baseline=True) for choice in baselines),
            Arm(asked[0], out),
        ]
    return [Arm(choice, out / _folder_name(choice)) for choice in asked]


def _folder_name(choice: StrategyChoice) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", choice.label)


def _baselines(args: argparse.Namespace, asked: Sequence[StrategyChoice], temperature: float) -> list[StrategyChoice]:
    """Return what a lone strategy is compared with: greedy decoding, and the vote of as many samples where cheap.

    Those that are named stand for themselves, as in --strategy; a usual one that is the lone strategy is left out.
    """
    if len(asked) != 1:
        if args.baseline not in (None, "none"):
            raise ConfigError("--baseline is for a single strategy; name it in --strategy")
        return []
    n = all_params(asked[0]).get("n")
    votes = isinstance(n, int) and n > 1 and temperature > 0
    packaged = args.model is None and (args.engine or DEFAULT_ENGINE) == DEFAULT_ENGINE
    usual = [GREEDY, "majority"] if packaged and votes else [GREEDY]
    specs = [parse_spec(text) for text in (usual if args.baseline is None else split_specs(args.baseline))]
    same_n: dict[str, object] = {"n": n} if votes else {}
    chosen = [_baseline(name, inline, same_n if name == "majority" else {}) for name, inline in specs if name != "none"]
    taken = [asked[0].name] if args.baseline is None else []
    return [choice for choice in chosen if choice.name not in taken and choice.label != asked[0].label]


def _baseline(name: str, inline: Mapping[str, object], usual: Mapping[str, object]) -> StrategyChoice:
    function = STRATEGIES.load(name)
    bound = bind(function, {**usual, **inline}, supply={"scorer": None})
    params = {key: value for key, value in bound.items() if key != "scorer"}
    return StrategyChoice(name, label_of(name, inline), function, params)


def _with_total(choice: StrategyChoice, budget: Budget | None) -> StrategyChoice:
    """Give a strategy that spends a total over the run the tokens of --budget; to others they are a problem's limit."""
    if budget is None or budget.tokens is None or "total" not in all_params(choice):
        return choice
    if any(choice.params.get(name) is not None for name in ("total", "tokens")):
        return choice
    return replace(choice, params={**choice.params, "total": budget.tokens})


def _default_out(args: argparse.Namespace) -> str:
    names = "-".join(args.strategy or ["tree"])
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{Path(args.task).stem}-{names}")[:60]
    return f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{label}"


def _command(out: Path) -> str:
    """Return the command line that continues this run."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--out=")]
    if "--out" in arguments:
        at = arguments.index("--out")
        del arguments[at : at + 2]
    return shlex.join(["ttc", *arguments, "--out", str(out)])


def _report(results: Sequence[Result], out: Path, *, as_json: bool) -> None:
    entries = [{**result.entry, "records": os.path.relpath(result.arm.folder, out)} for result in results]
    out.mkdir(parents=True, exist_ok=True)
    write_summary(out, entries)
    page = write_report(out, entries, [result.records for result in results])
    print(render_table(entries))
    print(f"{LEGEND}\nreport: {page}\npaired tests: {shlex.join(['ttc', 'compare', str(out)])}", file=sys.stderr)
    for result, entry in zip(results, entries, strict=True):
        if result.entry["errors"]:
            print(f"{result.arm.choice.label}: {_failures(result)}; see {result.arm.folder}", file=sys.stderr)
        unscored = _unscored(result)
        if unscored:
            print(f"{result.arm.choice.label}: {unscored}; its answers were chosen without", file=sys.stderr)
        if as_json and not result.arm.baseline:
            print(json.dumps({key: value for key, value in entry.items() if key != "curve"} | {"out": str(out)}))


def _unscored(result: Result) -> str:
    """Say that no score could be used; empty where one could."""
    if not result.arm.choice.takes_scorer:
        return ""
    return without_scores(record.answer for record in result.records if record.answer is not None)


def _failures(result: Result) -> str:
    """Say how many problems failed and how the first one did."""
    errors = [record.error for record in result.records if record.error is not None]
    return f"{len(errors)} of {len(result.records)} problems failed, the first with {errors[0]}"
