"""`ttc eval`: measure strategies on a task, with intervals and prices.

    ttc eval --strategy tree                               the packaged model on arithmetic
    ttc eval --strategy direct:temperature=0,majority,tree --n 16 --limit 1000 --out runs/first
    ttc eval --base-url http://127.0.0.1:8000/v1 --task mine.csv --strategy direct,majority,adaptive --n 8
    ttc eval --task gsm8k --engine vllm --model Qwen/Qwen3-4B --scorer prm:Qwen/Qwen2.5-Math-PRM-7B --strategy best_of_n

The folder holds records.jsonl (one synced line per problem), run.json, summary.json, report.html, curve.csv and
figure.png, .svg and .pdf; several strategies have a folder each. Interrupted or killed, the same command with the same
--out goes on where it stopped; failed problems, and answers without a verdict, are kept unless --retry-errors is given.
run.json records what decides a run, with models, user files and problems by content, so a run with other weights or a
changed strategy file is not continued: the error names what differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from evals.commands._terminal import ProgressReport, complaints, undecided, unscored
from evals.experiment import Arm, Experiment, Result, TotalSpender, execute
from evals.numbers.summary import SUMMARY, counted_apart, read_summary, write_summary
from evals.report import render_table, write_report
from evals.run_folder import CONTENTS, Run, read_run, readable_config, stored_config
from evals.task import MAX_LIMIT, TASKS, Task, has_rows, load_task, task_file
from ttc.cli.options import add_options, add_recipe_option, option, read_options
from ttc.cli.parts import (
    NOT_REPRODUCIBLE,
    SEVERAL,
    TOY,
    EngineOptions,
    SamplingOptions,
    StrategyOptions,
    ThinkingOptions,
    check_writable,
    chooses_sampling,
    is_reproducible,
    resolve_budget,
    resolve_engine,
    resolve_sampling,
    resolve_scorer,
    resolve_strategies,
    resolve_thinking,
    strategies,
    without_seeds,
)
from ttc.cli.process import keep_little
from ttc.cli.rehearsal import refuse_early
from ttc.config.choices import DEFAULT_ENGINE, PartChoice, StrategyChoice
from ttc.config.recipes import dump, label_of, parse_spec, section, split_specs
from ttc.config.registry import VERIFIERS
from ttc.config.signatures import call
from ttc.config.values import check_seed, counted
from ttc.core import Budget, Prices, Sampling
from ttc.durable import alone_in
from ttc.errors import ConfigError
from ttc.identity.digests import part_contents
from ttc.session.thinking import Thinking

EPILOG = """\
exit codes:
  0    done
  1    failed while running; the run can be continued
  2    bad input; nothing was started
  3    finished, but some problems failed (they are in records.jsonl with their error), some answers got no verdict
       (--retry-errors judges these again, and draws nothing for them), or scores could not be used
  130  interrupted; the run can be continued
  143  terminated (SIGTERM); the run can be continued

Results go to stdout, everything else to stderr. --json ends stdout with one line per strategy that was asked for."""
LEGEND = (
    "tokens, FLOPs and seconds are per problem; covered: some candidate is right; "
    "regret: accuracy lost by picking the wrong candidate; cut: ran out of tokens"
)
GREEDY = "direct:temperature=0"
MAX_CONCURRENCY = 65536
"""The most problems in flight that memory holds; no engine runs as many at once."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions(SamplingOptions, ThinkingOptions, StrategyOptions, EngineOptions):
    """The options of `ttc eval`."""

    task: str = option(
        "arithmetic",
        "a task, or a .jsonl, .csv, .json, .parquet or .toml file; its parameters: --set task.KEY=VALUE",
        metavar="NAME[:ARG]|FILE",
        group="task",
    )
    level: str | None = option(None, "difficulty, for tasks with levels", metavar="L", group="task")
    problems_seed: int | None = option(
        None, "picks the problems of a procedural task (default: 0)", metavar="SEED", group="task"
    )
    limit: str = option("100", "problems, or all", metavar="N", group="task")
    unsafe_code: bool = option(False, "run model-written programs without a sandbox where none works", group="task")
    data: str | None = option(
        None,
        "file of the task's rows, or folder with datasets (default: TTC_DATA, else the hub)",
        metavar="PATH",
        group="task",
    )
    out: str | None = option(
        None, "run folder; an existing one is continued (default: runs/...)", metavar="DIR", group="run"
    )
    concurrency: int | None = option(
        None, "problems in flight (default: what keeps the engine busy, at least 64)", metavar="N", group="run"
    )
    retry_errors: bool = option(
        False, "run failed problems again, and judge answers without a verdict again", group="run"
    )
    baseline: str | None = option(
        None,
        "what a lone strategy is compared with, or none (default: direct:temperature=0, which is greedy; on the "
        "packaged model majority, too)",
        metavar="NAME,...",
        group="run",
    )
    json: bool = option(False, "end stdout with one JSON line per strategy", group="run")
    price_in: float | None = option(
        None,
        "price of a million tokens of prompts (default: what the server says, if it does)",
        metavar="DOLLARS",
        group="run",
    )
    price_out: float | None = option(
        None, "price of a million generated tokens; given together with --price-in", metavar="DOLLARS", group="run"
    )
    strategy: tuple[str, ...] = strategies("tree", SEVERAL)
    seed: int | None = option(
        None, "seed of all random draws (default: 0; --problems-seed picks the problems)", group="sampling"
    )

    def __post_init__(self) -> None:
        """Refuse a number of problems in flight that no memory can hold."""
        super().__post_init__()
        check_seed("eval", seed=self.seed, problems_seed=self.problems_seed)
        if self.concurrency is not None and not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"--concurrency must be >= 1 and <= {MAX_CONCURRENCY}, got {self.concurrency}")

    @property
    def prices(self) -> Prices | None:
        """The user's prices; raises like `prices_of`."""
        return prices_of(self.price_in, self.price_out)

    @property
    def task_settings(self) -> dict[str, object]:
        """The parameters of the task: --set task.KEY=VALUE, and its own options."""
        own = {"level": self.level, "data": self.data}
        return section(self.settings, "task") | {key: value for key, value in own.items() if value is not None}

    @property
    def without_task(self) -> EvalOptions:
        """These options without the parameters of the task among --set."""
        return replace(self, settings={k: v for k, v in self.settings.items() if not k.startswith("task.")})


def register(subparsers: Any) -> None:
    """Add `ttc eval`."""
    parser = subparsers.add_parser("eval", description=__doc__, epilog=EPILOG)
    add_recipe_option(parser)
    add_options(parser, EvalOptions)
    parser.set_defaults(run=run, continues=True)


def run(args: argparse.Namespace) -> int:
    """Evaluate; see EPILOG for the exit codes."""
    options = read_options(EvalOptions, args)
    out = Path(options.out or _default_out(options)).expanduser()
    args.again = continuation(out)
    return evaluate(options, out)[0]


def evaluate(options: EvalOptions, out: Path) -> tuple[int, list[Result]]:
    """Evaluate into the folder `out` and print the table; returns the exit code, and what each strategy gave.

    Raises:
        ConfigError: a name, parameter or file that cannot be used; nothing was started.
        TTCError: the engine or the verifier is broken; the run can be continued.
    """
    check_writable("--out", out)
    experiment = plan(options, out)
    if experiment.engine.name == DEFAULT_ENGINE:
        keep_little()
    if experiment.task.note:
        print(f"{experiment.task.name}: {experiment.task.note}", file=sys.stderr)
    _tell_of_plans(experiment)
    usual = None if chooses_sampling(options) else experiment.sampling
    with closing(ProgressReport(len(experiment.items), len(experiment.arms), usual)) as progress:
        results = asyncio.run(
            execute(
                experiment,
                concurrency=options.concurrency,
                retry_errors=options.retry_errors,
                watcher=progress,
                spend_total=_total_spender(experiment.arms),
            )
        )
    _report(results, out, as_json=options.json, of_rows=has_rows(Path(options.task).expanduser()))
    if options.is_packaged and experiment.task.name != "arithmetic":
        print(TOY, file=sys.stderr)
    if not is_reproducible(experiment.engine):
        print(f"{experiment.engine.label}: {NOT_REPRODUCIBLE}", file=sys.stderr)
    is_whole = not any(result.entry["errors"] or undecided(result) or unscored(result) for result in results)
    return 0 if is_whole else 3, results


def _tell_of_plans(experiment: Experiment) -> None:
    """Warn where a plan's expectations do not hold here, or the accuracy measured here would not hold elsewhere."""
    for arm in experiment.arms:
        path = arm.choice.params.get("plan")
        for doubt in _doubts_of_plan(path, experiment) if isinstance(path, str) else ():
            print(f"{arm.choice.label}: {path} was calibrated {doubt}", file=sys.stderr)


def _doubts_of_plan(path: str, experiment: Experiment) -> Iterator[str]:
    from ttc.allocation.plan import load_plan, questions_of, weights_in

    source = load_plan(path).source
    there, here = source.get("weights"), weights_in(part_contents(experiment.engine))
    if there and here and here.isdisjoint(there):
        yield "with other weights than this model's; make one of a run of this model: ttc calibrate RUN"
    how = {"sampling": dump(experiment.sampling), "thinking": dump(experiment.thinking)}
    if how not in source.get("drawn", [how]):
        yield "on draws of other sampling or thinking, so the tokens and the accuracy it expects are not this run's"
    questions = questions_of(item.problem for item in experiment.items)
    num_shared = len(questions.intersection(source.get("problems", ())))
    if num_shared:
        yield (
            f"on {num_shared} of the {counted(len(questions), 'problem')} that it is measured on, so the accuracy is "
            "not that of new ones; make a plan of a run on others (--problems-seed, where the task makes its own)"
        )


def plan(options: EvalOptions, out: Path) -> Experiment:
    """Check every name, parameter and file; nothing heavy is loaded."""
    task_settings, options = options.task_settings, options.without_task
    choices = resolve_strategies(options)
    engine = resolve_engine(options, options.settings)
    task = read_task(options.task, task_settings)
    problems_seed = _problems_seed(options.problems_seed, task)
    sampling = replace(resolve_sampling(options, task.sampling), seed=None)
    arms = _arms(choices, _baselines(options, choices, sampling.temperature), out)
    scorer = resolve_scorer(
        options.scorer, options.settings, [arm.choice for arm in arms], is_packaged=options.is_packaged
    )
    if options.seed is None:
        readers = [each for arm in arms for each in arm.choice.functions] + ([] if scorer is None else [scorer.factory])
        engine = without_seeds(engine, options.settings, readers)
    thinking, budget = resolve_thinking(options, options.settings), resolve_budget(options.budget)
    arms = [replace(arm, choice=_with_total(arm.choice, budget)) for arm in arms]
    ordered = [arm.choice for arm in sorted(arms, key=lambda arm: arm.baseline)]
    _refuse_early(ordered, has_scorer=scorer is not None, sampling=sampling, thinking=thinking)
    verifier = PartChoice.of(VERIFIERS, task.check.verifier, _check_params(options.unsafe_code, task))
    limit = _limit(options.limit)
    return Experiment(
        task=task,
        items=task.sequence(limit, problems_seed),
        engine=engine,
        scorer=scorer,
        verifier=verifier,
        sampling=sampling,
        fit=options.max_tokens is None,
        thinking=thinking,
        budget=budget,
        seed=0 if options.seed is None else options.seed,
        limit=limit,
        arms=arms,
        problems_seed=problems_seed if task.procedural else None,
        task_file=task_file(options.task),
        prices=options.prices,
    )


def prices_of(price_in: float | None, price_out: float | None) -> Prices | None:
    """Return the prices of both options; raises ConfigError for one without the other, or a value that is no price."""
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise ConfigError("--price-in and --price-out are given together, in dollars per million tokens")
    for name, price in (("--price-in", price_in), ("--price-out", price_out)):
        if not 0 <= price < math.inf:
            raise ConfigError(f"{name} must be dollars per million tokens, 0 or more, got {price:g}")
    return Prices(price_in, price_out)


def _problems_seed(seed: int | None, task: Task) -> int:
    if seed is not None and not task.procedural:
        raise ConfigError(f"--problems-seed has no effect: the problems of task {task.name} are fixed")
    return 0 if seed is None else seed


def _refuse_early(
    choices: Sequence[StrategyChoice], *, has_scorer: bool, sampling: Sampling, thinking: Thinking
) -> None:
    """Let strategies refuse their values before a model is loaded; one that learns its plan is not checked."""
    planless = [c for c in choices if c.params.get("total") is not None and c.params.get("plan") is None]
    if planless:
        from ttc.strategies.auto import kind_without_plan  # imports all of allocation, which few runs need

        for choice in planless:
            kind_without_plan(choice.params.get("width"), choice.params.get("policy"), None)
    others = [choice for choice in choices if choice not in planless]
    refuse_early(others, has_scorer=has_scorer, sampling=sampling, thinking=thinking)


def _total_spender(arms: Sequence[Arm]) -> TotalSpender | None:
    """The planner of totals, loaded where a strategy has one."""
    if all(arm.choice.params.get("total") is None for arm in arms):
        return None
    from evals.allocation.planner import spend_total

    return spend_total


def read_task(name: str, params: Mapping[str, object]) -> Task:
    """Return the task of --task with its parameters; TTC_DATA names the folder of datasets where nothing else does."""
    supply = {"data": os.environ["TTC_DATA"]} if os.environ.get("TTC_DATA") and "data" not in params else {}
    task: Task = TASKS.checked(name, call(load_task(name), params, supply=supply))
    return task


def _check_params(unsafe: bool, task: Task) -> Mapping[str, object]:
    """Return the parameters of the task's verifier; the sandbox of program verification can be switched off."""
    if unsafe and task.check.verifier == "code":
        return {**task.check.params, "unsafe": True}
    return task.check.params


def _limit(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_LIMIT:
        raise ConfigError(f"--limit must be a whole number >= 1 and <= {MAX_LIMIT}, or all, got {text!r}")
    return int(text)


def _arms(choices: Sequence[StrategyChoice], baselines: Sequence[StrategyChoice], out: Path) -> list[Arm]:
    """Give each strategy its folder; a lone strategy gets `out` itself, with its baselines in folders below."""
    added = [Arm(choice, out / _folder_name(choice), baseline=True) for choice in baselines]
    return [*added, *(Arm(choice, _folder(choice, out, alone=len(choices) == 1)) for choice in choices)]


def _folder(choice: StrategyChoice, out: Path, *, alone: bool) -> Path:
    """The folder of a strategy's run: the one that holds it already, else one without another strategy's run."""
    own, there = out / _folder_name(choice), readable_config(out)
    if readable_config(own) is not None or (there is None and not alone):
        return own
    if there is None:
        return out
    is_there = there.get("strategy") == choice.name and (alone or there.get("params") == dump(choice.all_params()))
    return out if is_there else own


def _folder_name(choice: StrategyChoice) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", choice.label)


def _baselines(options: EvalOptions, choices: Sequence[StrategyChoice], temperature: float) -> list[StrategyChoice]:
    """Return what a lone strategy is compared with: greedy decoding, and the vote of as many samples where cheap.

    Named baselines are read like --strategy; a default one that equals the lone strategy is left out.
    """
    if len(choices) != 1:
        if options.baseline not in (None, "none"):
            raise ConfigError("--baseline is for a single strategy; name it in --strategy")
        return []
    n = choices[0].all_params().get("n")
    votes = isinstance(n, int) and n > 1 and temperature > 0
    usual = [GREEDY, "majority"] if options.is_packaged and votes else [GREEDY]
    specs = [parse_spec(text) for text in (usual if options.baseline is None else split_specs(options.baseline))]
    same_n: dict[str, object] = {"n": n} if votes else {}
    usual_params = {"majority": same_n}
    baselines = [
        StrategyChoice.of(name, {**usual_params.get(name, {}), **inline}, label_of(name, inline))
        for name, inline in specs
        if name != "none"
    ]
    names = [choices[0].name] if options.baseline is None else []
    return [choice for choice in baselines if choice.name not in names and choice.label != choices[0].label]


def _with_total(choice: StrategyChoice, budget: Budget | None) -> StrategyChoice:
    """Give the tokens of --budget to a strategy that spends a total; for others they limit each problem."""
    if budget is None or budget.tokens is None or "total" not in choice.all_params():
        return choice
    if any(choice.params.get(name) is not None for name in ("total", "tokens")):
        return choice
    return replace(choice, params={**choice.params, "total": budget.tokens})


def _default_out(options: EvalOptions) -> str:
    names = "-".join(options.strategy)
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{Path(options.task).stem}-{names}")[:60]
    return f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{label}"


def continuation(out: Path) -> str:
    """Return the command line that continues this run."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--out=")]
    if "--out" in arguments:
        at = arguments.index("--out")
        del arguments[at : at + 2]
    return shlex.join(["ttc", *arguments, "--out", str(out)])


def _report(results: Sequence[Result], out: Path, *, as_json: bool, of_rows: bool) -> None:
    entries = [{**result.entry, "records": os.path.relpath(result.arm.folder, out)} for result in results]
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):  # another evaluation of this folder may be writing its rows
        kept = list(_kept(results, out))
        shown = [*(entry for entry, _ in kept), *entries]
        write_summary(out, shown)
    records = [*(run.records for _, run in kept), *(result.records for result in results)]
    try:
        print(render_table(shown))
        if counted_apart(shown):
            print(counted_apart(shown), file=sys.stderr)
    finally:  # also when nobody reads the table any more
        page = write_report(out, shown, records, partial(print, file=sys.stderr))
    print(f"{LEGEND}\nreport: {page}", file=sys.stderr)
    if len(shown) > 1:
        print(f"paired tests: {shlex.join(['ttc', 'compare', str(out)])}", file=sys.stderr)
    for result, entry in zip(results, entries, strict=True):
        for complaint in complaints(result, of_rows=of_rows):
            print(f"{result.arm.choice.label}: {complaint}", file=sys.stderr)
        if as_json and not result.arm.baseline:
            print(json.dumps({key: value for key, value in entry.items() if key != "curve"} | {"out": str(out)}))


def _kept(results: Sequence[Result], out: Path) -> Iterator[tuple[Mapping[str, Any], Run]]:
    """Runs of other strategies in the folder's summary, with their entries; those of other content are reported."""
    if not (out / SUMMARY).is_file():
        return
    mine = {result.arm.folder.resolve() for result in results}
    contents = (stored_config(results[0].arm.folder) or {}).get(CONTENTS) or {}
    for entry in read_summary(out):
        folder = out / str(entry.get("records", "."))
        if folder.resolve() in mine:
            continue
        try:
            there_config = stored_config(folder)
        except ConfigError as exc:
            print(f"{folder} is not in the table: {exc}", file=sys.stderr)
            continue
        if there_config is None:
            continue
        run = read_run(folder)
        there = run.config.get(CONTENTS) or {}
        other = [name for name in there if name in contents and there[name] != contents[name]]
        if other:
            print(f"{folder} is not in the table: it was made with other {', '.join(other)}", file=sys.stderr)
        else:
            yield entry, run
