"""Replays of recorded runs: other strategies over the same samples and scores, with the recorded verdicts; no model.

A replayed run is a run folder like any other, so it can be compared, reported and replayed itself. Its configuration is
that of the recorded run, with the strategy and its parameters replaced and `replay_of` naming the digest of the source;
its contents are the recorded samples and the strategy's own files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evals.numbers.summary import summarise, write_summary
from evals.run_folder import CONFIG, CONTENTS, RECORDS, digest, evaluate, read_run
from evals.runs.experiment import settings_of
from evals.task import Item
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump
from ttc.core import Answer, Budget, Candidate, Problem, Record, Sampling, Submission, Target, Verdict
from ttc.errors import ConfigError, VerifierError
from ttc.identity.contents import strategy_contents
from ttc.identity.digests import file_digest
from ttc.replay import PoolScorer, RecordedDraw, pool_of, replay
from ttc.session.solve import Strategy

CONCURRENCY = 64


class RecordedRun:
    """A recorded run whose samples can stand in for an engine."""

    def __init__(self, folder: Path, config: Mapping[str, Any], records: Sequence[Record]) -> None:
        """`records` are those of problems that did not fail."""
        self.folder, self.config, self.records = folder, config, records
        self.pools: dict[str, dict[int, RecordedDraw]] = {record.problem.id: pool_of(record) for record in records}
        fields = Sampling.__dataclass_fields__
        values = {key: value for key, value in config["sampling"].items() if key in fields}
        for name in ("stop", "stop_token_ids"):
            values[name] = tuple(values.get(name) or ())
        self.sampling = Sampling(**values)

    @property
    def usual_temperature(self) -> float | None:
        """The temperature that needs no saying; None where the recorded run's own name says its temperature."""
        settings = self.config.get("settings") or {}
        return None if "temperature" in settings else self.sampling.temperature

    @property
    def num_samples(self) -> int:
        """The largest n that every problem has."""
        return min(len(pool) for pool in self.pools.values())


def open_source(folder: Path) -> RecordedRun:
    """Read a run; raises ConfigError when it cannot be replayed, naming the problem and why."""
    inner = sorted(path.parent for path in folder.glob(f"*/{CONFIG}")) if not (folder / CONFIG).is_file() else []
    if inner:
        raise ConfigError(f"{folder} holds several runs; name one of them: {', '.join(map(str, inner))}")
    run = read_run(folder)
    records = [record for record in run.records if record.answer is not None]
    if not records:
        raise ConfigError(f"{folder} holds no solved problem, so there is nothing to replay")
    return RecordedRun(folder, run.config, records)


async def replay_run(
    source: RecordedRun, choice: StrategyChoice, out: Path, budget: Budget | None = None
) -> tuple[dict[str, Any], Sequence[Record]]:
    """Replay one strategy into the run folder `out`; return its summary entry and records.

    Raises:
        ConfigError: the strategy cannot be replayed, wants more samples than there are, or `out` holds another run.
    """
    scorer = PoolScorer(source.pools) if choice.takes_scorer and choice.needs_scorer else None
    config = {
        **source.config,
        "strategy": choice.name,
        "params": choice.all_params(),
        "settings": settings_of(choice, source.sampling.temperature, source.usual_temperature),
        "scorer": source.config.get("scorer") if scorer else None,
        "budget": dump(budget),
        "replay_of": digest(source.config),
        CONTENTS: {
            "recorded samples": file_digest(source.folder / RECORDS),
            **strategy_contents(choice),
        },
    }
    items = [_item(record) for record in source.records]
    solve = partial(_solve, source=source, strategy=choice.bind(scorer), budget=budget)
    records = await evaluate(out, config, items, solve, _Recorded(source.records), concurrency=CONCURRENCY)
    entry = {**summarise(records, config), "model": source.config.get("model"), "records": "."}
    write_summary(out, [entry])
    return entry, records


async def _solve(problem: Problem, *, source: RecordedRun, strategy: Strategy, budget: Budget | None) -> Answer:
    return await replay(
        problem,
        source.pools[problem.id],
        strategy,
        seed=int(source.config["seed"]),
        sampling=source.sampling,
        budget=budget,
    )


def _item(record: Record) -> Item:
    cluster = str(record.provenance.get("cluster") or "")
    return Item(record.problem, record.target, cluster, record.provenance.get("difficulty"))


class _Recorded:
    """Gives the verdicts of the recorded run; what it never saw was cut by this replay's budget and is no answer."""

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

    def check_gold(self, target: Target, item: str = "") -> None:
        """Was done when the run was recorded."""

    async def verify(self, target: Target, submission: Submission) -> Verdict:
        """Look the verdict up."""
        key = _key(target, submission.text, submission.finish_reason)
        if key in self._known:
            return self._known[key]
        if submission.finish_reason != "stop":
            return Verdict("no_answer", version=self.version)
        raise VerifierError("the replayed strategy answered what the recorded run never verified")

    async def close(self) -> None:
        """Nothing to stop."""


def _key(target: Target, text: str, finish_reason: str) -> tuple[str, str, str]:
    return json.dumps(target, sort_keys=True), text, finish_reason
