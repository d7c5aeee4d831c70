"""`ttc quickstart`: from what you have to a first measured result, and the command after it.

    ttc quickstart                                                    nothing needed: the packaged toy
    ttc quickstart --model HuggingFaceTB/SmolLM2-135M-Instruct        a folder or a hub id, in this process
    OPENAI_API_KEY=... ttc quickstart --base-url https://api.example.com/v1 --model NAME --data problems.jsonl

Looks at what you have, proposes a strategy that works on it and says why, runs it on twenty problems beside one plain
draw (a single sampled answer), and prints accuracy with its 95 % interval, tokens, seconds and money. --data takes a
file of rows with the columns question (or prompt, problem) and answer (or target); --set task.question=COLUMN and --set
task.answer=COLUMN name others. Without it, twenty problems of the package are used. Cost on an endpoint: usually nine
answers to each of twenty problems; --look stops before that.

The run is one of `ttc eval`: its folder is read by `ttc compare` and `ttc report`. The key is read from the environment
and never written.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.commands._quickstart.finding import Discovery, look
from evals.commands._quickstart.proposal import Proposal, propose
from evals.commands.eval import EvalOptions, continuation, evaluate, plan, prices_of, read_task
from evals.experiment import Result
from evals.report.kit import money, seconds
from evals.report.runs import headline, read_runs
from evals.task import has_rows
from ttc.cli.options import add_options, command_line, option, read_options
from ttc.cli.parts import TOY, check_writable, settings
from ttc.config.choices import DEFAULT_ENGINE, ENDPOINT
from ttc.config.recipes import section
from ttc.config.values import at_least, counted
from ttc.core import Prices, Usage
from ttc.errors import ConfigError

PLAIN = "direct"
"""What the proposal is compared with: one draw, as anybody would ask."""
ENOUGH = 200
"""This many problems tell a difference of about ten points from luck."""


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """The options of `ttc quickstart`."""

    base_url: str | None = option(None, "an OpenAI-compatible endpoint: https://api.example.com/v1", metavar="URL")
    model: str | None = option(
        None, "model folder, hub id, or an endpoint's name (default: its only one, or the toy)", metavar="MODEL"
    )
    api_key_env: str | None = option(
        None, "environment variable that holds the key (default: OPENAI_API_KEY)", metavar="NAME"
    )
    engine: str | None = option(
        None, "engine of a model folder: embedded, vllm, sglang (default: embedded)", metavar="NAME"
    )
    data: str | None = option(
        None, "your problems: a .jsonl, .csv, .json, .parquet or .toml file, or hub:ID", metavar="FILE"
    )
    settings: Mapping[str, object] = settings("any setting of ttc eval: task.answer=COLUMN, engine.device=cuda")
    limit: int = option(20, "problems", metavar="N")
    n: int | None = option(None, "samples of the proposed strategy (default: as proposed)", metavar="N")
    price_in: float | None = option(None, "price of a million tokens of prompts", metavar="DOLLARS")
    price_out: float | None = option(None, "price of a million generated tokens", metavar="DOLLARS")
    max_tokens: int | None = option(None, "cap on one answer, thinking included", metavar="TOKENS")
    out: str | None = option(None, "run folder (default: runs/...)", metavar="DIR")
    look: bool = option(False, "stop after looking: what is there, what would run, the command for it")

    def __post_init__(self) -> None:
        """Refuse numbers that measure nothing."""
        at_least("quickstart", 1, limit=self.limit, n=self.n)


def register(subparsers: Any) -> None:
    """Add `ttc quickstart`."""
    parser = subparsers.add_parser("quickstart", description=__doc__)
    add_options(parser, QuickstartOptions)
    parser.set_defaults(run=run, continues=True)


def run(args: argparse.Namespace) -> int:
    """Look, propose, run, and print the next command; the exit codes are those of `ttc eval`."""
    options = read_options(QuickstartOptions, args)
    out = Path(options.out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-quickstart").expanduser()
    prices = _check(options, out)
    found = look(options.engine, options.model, options.base_url, options.api_key_env, prices)
    proposal = propose(found)
    args.again = continuation(out)
    chosen = _evaluation(options, found, proposal, out)
    planned = plan(chosen, out)  # refuses what cannot run, before anything is printed or spent
    width = max(len(name) for name, _ in found.facts)
    print("\n".join(f"{name:<{width}}  {text}" for name, text in found.facts))
    print(f"\nproposed: {_spec(options, proposal)}: {proposal.why}")
    if found.packaged:
        print(f"a toy: {TOY}")
    if options.look:
        print(f"next: {_command(chosen)}")
        return 0
    count = len(planned.items)
    problems = f"{counted(count, 'problem')} of {chosen.task}"
    print(f"{problems}, beside one plain draw ({PLAIN}); records in {out}\n", flush=True)
    code, results = evaluate(chosen, out)
    if results:
        print("\n".join(_lines(results, chosen, out)))
    return code


def _check(options: QuickstartOptions, out: Path) -> Prices | None:
    """Check what needs neither an endpoint nor a model: the file, the folder, the prices, which are returned."""
    path = Path(options.data or "").expanduser()
    is_there = path.is_file() or has_rows(path) or str(path).startswith("hub:")
    if options.data is not None and not is_there:
        why = "a folder; name a file in it" if path.is_dir() else "there is no such file"
        raise ConfigError(f"--data {path}: {why}")
    if options.data is not None:
        read_task(options.data, section(options.settings, "task")).sequence(options.limit, 0)
    check_writable("--out", out)
    return prices_of(options.price_in, options.price_out)


def _spec(options: QuickstartOptions, proposal: Proposal) -> str:
    return f"{proposal.strategy} of {options.n or proposal.n}"


def _evaluation(options: QuickstartOptions, found: Discovery, proposal: Proposal, out: Path) -> EvalOptions:
    """The evaluation as options of `ttc eval`, which runs it."""
    own: dict[str, object] = {f"engine.{name}": value for name, value in found.settings.items() if name != "base_url"}
    usual = DEFAULT_ENGINE if options.base_url is None else ENDPOINT
    return EvalOptions(
        engine=None if found.engine == usual else found.engine,
        model=found.model,
        base_url=options.base_url,
        task=options.data or ("arithmetic" if found.packaged else "starters"),
        limit=str(options.limit),
        strategy=(PLAIN, proposal.strategy),
        n=options.n or proposal.n,
        scorer=None if found.packaged else found.scorer,
        settings={**own, **options.settings},
        max_tokens=options.max_tokens,
        temperature=found.temperature,
        price_in=options.price_in,
        price_out=options.price_out,
        out=str(out),
    )


def _lines(results: Sequence[Result], chosen: EvalOptions, out: Path) -> list[str]:
    """The result, and the next command."""
    entries = [dict(result.entry) for result in results]
    usages = [Usage(**entry["usage"]) for entry in entries]
    tokens = sum(usage.prompt + usage.tokens + usage.overrun for usage in usages)
    spent = [f"{tokens:,} tokens, prompts included", seconds(sum(float(entry["seconds"]) for entry in entries))]
    priced = all("dollars" in entry for entry in entries)
    spent.append(money(sum(float(entry["dollars"]) for entry in entries)) if priced else _UNPRICED)
    lines = [headline(read_runs(entries)), f"in all: {'; '.join(spent)}"]
    if any(entry["errors"] for entry in entries):
        lines.append("the reasons for failures are above; the next command asks those problems again")
        return [*lines, f"next: {_command(replace(chosen, retry_errors=True))}"]
    if entries[0]["problems"] < ENOUGH:
        count = entries[0]["problems"]
        lines.append(
            f"{counted(count, 'problem')} {'is' if count == 1 else 'are'} a first look; "
            f"it takes {ENOUGH} to tell ten points from luck"
        )
    return [*lines, f"next: {_next(chosen, len(results[0].records), out)}"]


_UNPRICED = "money unknown: no prices were given, and the server states none"


def _next(chosen: EvalOptions, num_problems: int, out: Path) -> str:
    """The command that measures on more problems; if there are no more, the one that compares what was measured."""
    longer = replace(chosen, limit=str(ENOUGH), out=f"{out}-{ENOUGH}")
    if num_problems >= min(ENOUGH, _num_problems(longer)):
        return shlex.join(["ttc", "compare", str(out)])
    return _command(longer)


def _num_problems(options: EvalOptions) -> int:
    """How many problems these options give."""
    task = read_task(options.task, options.task_settings)
    return len(task.sequence(int(options.limit), 0))


def _command(options: EvalOptions) -> str:
    """The evaluation as a command line."""
    return shlex.join(["ttc", "eval", *command_line(options)])
