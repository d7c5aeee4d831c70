"""`ttc replay RUN`: other strategies over a recorded run, without a model.

They use its samples and scores, exactly.

    ttc eval --strategy best_of_n --n 64 --out runs/pool                  record a pool once
    ttc replay runs/pool --strategy majority --n 16                       vote over its first 16 samples
    ttc replay runs/pool --strategy best_of_n:select=weighted,aggregation=min,adaptive:n=64 --out runs/replayed

RUN is the folder of one strategy that drew whole samples: majority, or best_of_n where scores are wanted. Without --n,
strategies draw as many as the pool holds. The new folders are runs like any other: compare and report them. A problem
that failed there has failed here, too, at what it cost there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.experiment import settings_of
from evals.loop import evaluate
from evals.numbers.summary import SUMMARY, read_summary, summarise, usage_of, write_summary
from evals.report import render_table
from evals.run_folder import CONTENTS, RECORDS, digest, read_run, readable_config
from evals.task import Item
from ttc.cli.options import add_options, read_options
from ttc.cli.parts import SEVERAL, StrategyOptions, check_writable, resolve_budget, resolve_strategies, strategies
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump, section
from ttc.core import Answer, Budget, Candidate, Problem, Record, Sampling, Submission, TargetLike, Verdict
from ttc.durable import alone_in
from ttc.errors import ConfigError, RecordError, VerifierError
from ttc.identity.digests import file_digest, strategy_contents
from ttc.replay import PoolScorer, RecordedDraw, pool_of, replay
from ttc.session.solve import charged

CONCURRENCY = 64


class RecordedRun:
    """A recorded run whose samples can stand in for an engine."""

    def __init__(self, config: Mapping[str, Any], records: Sequence[Record], samples: str) -> None:
        """`records` are those of all problems; one that failed has no pool. `samples` is the digest of their file."""
        self.config, self.records, self.samples = config, records, samples
        solved = [record for record in records if record.answer is not None]
        self.pools: dict[str, dict[int, RecordedDraw]] = {record.problem.id: pool_of(record) for record in solved}
        self.failed = {record.problem.id: record for record in records if record.answer is None}
        fields = Sampling.__dataclass_fields__
        values = {key: value for key, value in config["sampling"].items() if key in fields}
        for name in ("stop", "stop_token_ids"):
            values[name] = tuple(values.get(name) or ())
        own = (config.get("params") or {}).get("temperature")  # of the strategy, which overrides the run's
        self.sampling = Sampling(**(values if own is None else {**values, "temperature": own}))

    @property
    def usual_temperature(self) -> float | None:
        """The temperature that a label leaves out; None where the recorded run's own label states it."""
        settings = self.config.get("settings") or {}
        return None if "temperature" in settings else self.sampling.temperature

    @property
    def num_samples(self) -> int:
        """The largest n that every problem has."""
        return min(len(pool) for pool in self.pools.values())


def open_source(folder: Path) -> RecordedRun:
    """Read a run; raises ConfigError when it cannot be replayed, naming the problem and the reason."""
    path = folder / RECORDS
    size = path.stat().st_size if path.is_file() else 0
    run = read_run(folder)
    if all(record.answer is None for record in run.records):
        raise ConfigError(f"{folder} holds no solved problem, so there is nothing to replay")
    samples = file_digest(path)
    if path.stat().st_size != size:
        raise ConfigError(f"{folder} is being written; replay it when that has ended")
    return RecordedRun(run.config, run.records, samples)


async def replay_run(
    source: RecordedRun, choice: StrategyChoice, out: Path, budget: Budget | None = None
) -> tuple[dict[str, Any], Sequence[Record]]:
    """Replay one strategy into the run folder `out`; return its summary entry and records.

    The folder is a run like any other. Its configuration is that of the recorded run, with the strategy and its
    parameters replaced and `replay_of` naming the digest of the source; its contents are the recorded samples and the
    strategy's own files.

    Raises:
        ConfigError: the strategy cannot be replayed, wants more samples than there are, or `out` holds another run.
    """
    scorer = PoolScorer(source.pools) if choice.takes_scorer else None
    config = {
        **source.config,
        "strategy": choice.name,
        "params": choice.all_params(),
        "settings": settings_of(choice, source.sampling.temperature, source.usual_temperature),
        "scorer": source.config.get("scorer") if scorer else None,
        "budget": dump(budget),
        "replay_of": digest(source.config),
        CONTENTS: {
            "recorded samples": source.samples,
            **strategy_contents(choice),
        },
    }
    solve = _solver(source, choice, scorer, budget)
    await solve(next(record.problem for record in source.records if record.answer))  # refused before a folder is made
    items = [_item(record) for record in source.records]
    records = await evaluate(out, config, items, solve, _RecordedVerdicts(source.records), concurrency=CONCURRENCY)
    entry = {**summarise(records, config), "model": source.config.get("model"), "records": "."}
    write_summary(out, [entry])
    return entry, records


def _solver(
    source: RecordedRun, choice: StrategyChoice, scorer: PoolScorer | None, budget: Budget | None
) -> Callable[[Problem], Awaitable[Answer]]:
    """What answers a recorded problem by a strategy, with its recorded draws."""
    strategy, seed = choice.bind(scorer), int(source.config["seed"])

    async def solve(problem: Problem) -> Answer:
        if problem.id in source.failed:
            record = source.failed[problem.id]
            raise charged(RecordError(f"it failed in the recorded run: {record.error}"), usage_of(record))
        pool = source.pools[problem.id]
        return await replay(problem, pool, strategy, seed=seed, sampling=source.sampling, budget=budget)

    return solve


def _item(record: Record) -> Item:
    cluster = str(record.provenance.get("cluster") or "")
    return Item(record.problem, record.target, cluster, record.provenance.get("difficulty"))


class _RecordedVerdicts:
    """Gives the verdicts of the recorded run; a text without one was cut by this replay's budget and is no answer."""

    name, version = "recorded", "1"

    def __init__(self, records: Sequence[Record]) -> None:
        self._known: dict[tuple[str, str, str], Verdict] = {}
        for record in records:
            answer = record.answer
            if answer is None or record.verdict is None:
                continue
            pairs: list[tuple[Answer | Candidate, Verdict]] = [(answer, record.verdict)]
            pairs += zip(answer.candidates, record.verdicts, strict=True)
            for path, verdict in pairs:
                self._known[_key(record.target, path.text, path.finish_reason)] = verdict

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Nothing to do: golds were checked when the run was recorded."""

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Look the verdict up."""
        key = _key(target, submission.text, submission.finish_reason)
        if key in self._known:
            return self._known[key]
        if submission.finish_reason != "stop":
            return Verdict("no_answer", version=self.version)
        raise VerifierError("the replayed strategy answered what the recorded run never verified")

    async def close(self) -> None:
        """Nothing to stop."""


def _key(target: TargetLike, text: str, finish_reason: str) -> tuple[str, str, str]:
    return json.dumps(target, sort_keys=True), text, finish_reason


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(StrategyOptions):
    """The options of `ttc replay`."""

    source: Path
    out: Path | None = None
    strategy: tuple[str, ...] = strategies("majority", SEVERAL)


def register(subparsers: Any) -> None:
    """Add `ttc replay`."""
    parser = subparsers.add_parser("replay", description=__doc__)
    parser.add_argument("source", type=Path, metavar="RUN", help="a folder of one strategy that ttc eval wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN-replay, a folder each)")
    add_options(parser, ReplayOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay every strategy that is named and print the table; returns 0."""
    options = read_options(ReplayOptions, args)
    if options.scorer is not None:
        raise ConfigError("--scorer has no effect: a replay uses the recorded scores")
    for name in ("engine", "scorer", "thinking", "sampling", "task"):
        if section(options.settings, name):
            raise ConfigError(f"--set {name}.KEY has no effect: a replay uses what was recorded")
    source = open_source(options.source)
    choices = [_sized(choice, source.num_samples) for choice in resolve_strategies(options)]
    budget = resolve_budget(options.budget)
    apart = options.out is None or len(choices) > 1
    out = options.out or options.source.with_name(f"{options.source.resolve().name}-replay")
    check_writable("--out", out)
    entries: list[dict[str, Any]] = []
    for choice in choices:
        folder = out / re.sub(r"[^A-Za-z0-9._-]+", "-", _label(choice, options.n)) if apart else out
        entry, _ = asyncio.run(replay_run(source, choice, folder, budget))
        entries.append({**entry, "records": os.path.relpath(folder, out)})
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        rows = [*_rows_before(out, source, entries), *entries]
        write_summary(out, rows)
    print(render_table(rows))
    print(f"replayed into {out}; report it: ttc report {out}", file=sys.stderr)
    return 0


def _rows_before(out: Path, source: RecordedRun, entries: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows of the folder's summary that are other replays of this run, as it is now."""
    mine = {entry["records"] for entry in entries}
    for row in read_summary(out) if (out / SUMMARY).is_file() else ():
        if row.get("records") in mine:
            continue
        config = readable_config(out / str(row.get("records", "."))) or {}
        samples = (config.get(CONTENTS) or {}).get("recorded samples")
        if config.get("replay_of") == digest(source.config) and samples == source.samples:
            yield row


def _label(choice: StrategyChoice, n: int | None) -> str:
    """The strategy's name with its parameters, --n included."""
    return choice.label if n is None or choice.params.get("n") != n else f"{choice.label}-n{n}"


def _sized(choice: StrategyChoice, num_samples: int) -> StrategyChoice:
    """Give a strategy without an n all samples of the pool."""
    if "n" in choice.params or "n" not in choice.all_params():
        return choice
    return replace(choice, params={**choice.params, "n": num_samples})
