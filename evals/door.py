"""`ttc.evaluate`: a strategy on problems of one's own, from Python, with intervals and prices.

    result = ttc.evaluate(rows, strategy="majority", n=8)
    print(result)                           accuracy with its 95 % interval, tokens and seconds
    result.accuracy.low, result.usage.tokens, result[0].answer.final
    result.to_frame()                       a row per problem (pandas)

Problems are rows: a list of dictionaries or a data frame, with the columns of a task file (`evals.tasks.rows`):
`question` (or `prompt`, `problem`, `messages`) and `answer` (or `target`), optionally `id`, `kind`, `cluster`,
`difficulty`. Numbers are those of `ttc eval`: the same verifiers, draws and intervals.

Errors are raised until the first problem is answered. After that a failing problem is a row with its error, and a check
function that raises gives no verdict. Cost: the strategy's, and a millisecond a verdict. Left out: run folders, so
nothing is resumed (`ttc eval --task FILE` keeps one), and several strategies at once: two results over the same rows
are paired by their ids.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from evals.evaluation import Evaluation, evaluation_of
from evals.experiment import problems_in_flight
from evals.loop import MAX_STREAK, Trust, verdicts_of
from evals.task import CHECKS, Item
from evals.tasks._columns import Columns
from evals.tasks._tables import Problems, items_of_table
from ttc.concurrent import gather
from ttc.config.choices import PartChoice
from ttc.config.functions import CheckFunction, ScoreFunction, as_verifier
from ttc.config.plugins import blamed, described, leaf
from ttc.config.registry import VERIFIERS
from ttc.config.values import at_least, build
from ttc.core import (
    Answer,
    Budget,
    Engine,
    Priced,
    Prices,
    Record,
    Sampling,
    Scorer,
    Strategy,
    Submission,
    TargetLike,
    Usage,
    Verdict,
    Verifier,
)
from ttc.errors import (
    UNANSWERABLE,
    ConfigError,
    EngineError,
    PluginError,
    TTCError,
    Unsupported,
)
from ttc.session.door import (
    check_scorer,
    choose_engine,
    choose_scorer,
    choose_strategy,
    opened,
    synchronous,
    usual_scorer,
    with_options,
)
from ttc.session.solve import fit_to_context, solve, spent
from ttc.session.thinking import Thinking
from ttc.verifiers.service.service import Service

USUAL = Sampling(max_tokens=1024)
"""How a task file is asked by default."""


@with_options
async def aevaluate(
    problems: Problems,
    *,
    strategy: str | Strategy = "direct",
    n: int | None = None,
    params: Mapping[str, object] | None = None,
    engine: str | Engine | None = None,
    model: str | None = None,
    base_url: str | None = None,
    scorer: str | Scorer | ScoreFunction | None = None,
    verifier: str | Verifier | CheckFunction | None = None,
    kind: str | None = None,
    columns: Mapping[str, Any] | None = None,
    seed: int | None = None,
    sampling: Sampling | None = None,
    thinking: Thinking | None = None,
    budget: Budget | None = None,
    concurrency: int | None = None,
    prices: Prices | None = None,
) -> Evaluation:
    """Evaluate a strategy on rows: `await ttc.aevaluate(rows, strategy="majority", n=8)`.

    Strategy, engine, model, address and scorer are as in `ttc.arun`; the verifier is named, an object, or a function of
    target and submission (`ttc.config.functions`), which may give a reward in [0, 1]. Without one the answer kind
    decides, which `kind` names and the answers show otherwise.

    Args:
        problems: a list of dictionaries, a data frame of pandas or polars, or a split of a Hugging Face dataset.
        strategy: what spends the compute.
        n: samples, where the strategy has that parameter.
        params: its other parameters.
        engine: what runs the model; closed at the end where it is named.
        model: name or folder of the model, where the engine is not an object.
        base_url: the address of an OpenAI-compatible endpoint; its key is in OPENAI_API_KEY.
        scorer: for strategies that rank.
        verifier: what compares answers with targets.
        kind: answer kind: math, number, choice, exact, ...
        columns: the columns of question, answer, choices, ... if rows have other names for them, as `--set task.KEY=`
            does: {"question": "passage,question", "answer": "label"}.
        seed: keys all draws; if absent, a new one, which the result holds.
        sampling: how tokens are drawn; if absent, the length is fitted to the model's context.
        thinking: caps and mode of thinking.
        budget: limits of a single problem.
        concurrency: problems in flight; if absent, as many as keep the engine busy.
        prices: dollars per million tokens; if absent, what the server says, if it does.

    Raises:
        ConfigError: a row, name, parameter or value that does not fit; nothing was spent.
        TTCError: the engine, scorer or verifier is broken from the first problem on; what a function raises then goes
            through unchanged. Once a problem was answered and judged, a failure is a row with its error, or a verdict
            `error`; if the engine is gone, the rest is not asked. What was paid for comes back.
    """
    if concurrency is not None:
        at_least("evaluate", 1, concurrency=concurrency)
    choice, chosen = choose_strategy(strategy, n, params), choose_engine(engine, model, base_url)
    scorer = usual_scorer(choice, chosen) if scorer is None else scorer
    check_scorer(choice, scorer)
    items = items_of_table(problems, kind, build(Columns, columns or {}, where="columns."))
    checker = _verifier(verifier, items[0].problem.kind)
    base_seed = secrets.randbelow(1 << 31) if seed is None else seed
    async with AsyncExitStack() as stack:
        stack.push_async_callback(checker.close)
        for item in items:
            checker.check_gold(item.target, f"problem {item.problem.id!r}")
        running = await stack.enter_async_context(opened(chosen))
        work = _Work(
            running,
            choice.bind(choose_scorer(scorer, running)),
            checker,
            base_seed,
            sampling,
            thinking or Thinking(),
            budget,
        )
        started = time.perf_counter()
        records = await work.run(items, concurrency or problems_in_flight(running, choice))
        lasted = time.perf_counter() - started
        known = prices or (running.prices if isinstance(running, Priced) else None)
    return evaluation_of(choice, records, base_seed, lasted, known, sampling or USUAL)


evaluate = synchronous(aevaluate)
"""`aevaluate` from synchronous code, in notebooks too: `ttc.evaluate(rows, strategy="majority", n=8)`."""


def _verifier(verifier: str | Verifier | CheckFunction | None, kind: str) -> Verifier:
    """The given verifier, or that of the answer kind; a named one runs behind a service."""
    if verifier is not None and not isinstance(verifier, str):
        return _Patient(as_verifier(verifier))
    check = CHECKS[kind]
    name, params = (check.verifier, check.params) if verifier is None else (verifier, {})
    return Service(PartChoice.of(VERIFIERS, name, params).create_verifier())


class _Patient:
    """A user's verifier: an error after its first verdict becomes a verdict, so nothing is lost."""

    def __init__(self, verifier: Verifier) -> None:
        self.name, self.version = verifier.name, verifier.version
        self.check_gold, self.close = verifier.check_gold, verifier.close
        self._verifier, self._has_judged = verifier, False

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        try:
            verdict = await self._verifier.verify(target, submission)
        except Exception as error:
            if not self._has_judged:
                raise
            return Verdict("error", reason=described(blamed(error))[:200], version=self.version)
        self._has_judged = self._has_judged or submission.finish_reason == "stop"
        return verdict


@dataclass(frozen=True, slots=True)
class _Work:
    """An evaluation whose parts are loaded."""

    engine: Engine
    strategy: Strategy
    verifier: Verifier
    seed: int
    sampling: Sampling | None
    thinking: Thinking
    budget: Budget | None

    async def run(self, items: Sequence[Item], concurrency: int) -> list[Record]:
        """Solve and verify all, so many at once; an error ends it only while no problem was answered."""
        records: dict[int, Record] = {}
        streak, trust = 0, Trust()
        todo = iter(enumerate(items))
        shared: dict[Any, Any] = {}
        started = time.monotonic()

        def has_answers() -> bool:
            return any(each.answer is not None for each in records.values())

        async def worker() -> None:
            nonlocal streak
            for index, item in todo:
                stop = await trust.begin()
                if stop is not None:
                    records[index] = _failed(item, stop, Usage())
                    continue
                record, error = await self._record(item, shared)
                at_s = time.monotonic() - started
                records[index] = replace(record, provenance={**record.provenance, "at_s": at_s})
                in_engine = isinstance(error, EngineError) and not isinstance(error, UNANSWERABLE)
                streak = streak + 1 if in_engine else 0
                trust.end(error if streak >= min(MAX_STREAK, len(items)) else None)
                if error is not None and _fails_all(error) and not has_answers():
                    raise error

        await gather(worker() for _ in range(min(concurrency, len(items))))
        if trust.error is not None and not has_answers():
            raise trust.error
        return [records[index] for index in range(len(items))]

    async def _record(self, item: Item, shared: dict[Any, Any]) -> tuple[Record, Exception | None]:
        try:
            answer = await self._solve(item, shared)
        except Exception as raised:
            return _failed(item, raised, spent(raised)), raised
        verdict, *verdicts = await verdicts_of(item, answer, self.verifier)
        return Record(item.problem, item.target, answer, verdict, tuple(verdicts), provenance=_labels(item)), None

    async def _solve(self, item: Item, shared: dict[Any, Any]) -> Answer:
        sampling = self.sampling or fit_to_context(USUAL, self.engine, item.problem, self.thinking)
        return await solve(
            item.problem,
            engine=self.engine,
            strategy=self.strategy,
            seed=self.seed,
            sampling=sampling,
            thinking=self.thinking,
            budget=self.budget,
            shared=shared,
        )


def _labels(item: Item) -> dict[str, Any]:
    return {"cluster": item.group, "difficulty": item.difficulty}


def _fails_all(error: Exception) -> bool:
    """Whether an error would fail every problem alike: a setting, or the user's own code."""
    first = leaf(error)
    return not isinstance(first, TTCError) or isinstance(first, ConfigError | Unsupported | PluginError)


def _failed(item: Item, error: Exception, cost: Usage) -> Record:
    labels = {**_labels(item), "spent": asdict(cost)}
    return Record(item.problem, item.target, error=described(leaf(error)), provenance=labels)
