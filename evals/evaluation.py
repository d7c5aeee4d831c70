"""What `ttc.evaluate` returns: the problems with their answers, and the numbers over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from evals.numbers.statistics import Interval
from evals.numbers.summary import summarise
from evals.report.kit import count, interval, money, percent, seconds
from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump
from ttc.config.values import counted
from ttc.core import NO_VERDICT, Answer, Prices, Record, Sampling, TargetLike, Usage, Verdict
from ttc.errors import MissingExtra

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class EvaluatedProblem:
    """One problem: what was asked, answered and judged. `error` says why there is no answer."""

    id: str
    question: str
    target: TargetLike
    answer: Answer | None
    verdict: Verdict | None
    error: str | None
    usage: Usage

    @property
    def correct(self) -> bool:
        """Whether the answer is right; a problem that failed is not."""
        return self.verdict is not None and self.verdict.correct

    def to_row(self) -> dict[str, Any]:
        """The problem as one flat row; what is not known is None."""
        answer, verdict = self.answer, self.verdict
        return {
            "id": self.id,
            "question": self.question,
            "target": self.target,
            "final": None if answer is None else answer.final,
            "correct": self.correct,
            "status": None if verdict is None else verdict.status,
            "score": None if verdict is None else verdict.score,
            "text": None if answer is None else answer.text,
            "thinking": None if answer is None else answer.thinking,
            "finish_reason": None if answer is None else answer.finish_reason,
            "prompt_tokens": self.usage.prompt,
            "tokens": self.usage.tokens,
            "seconds": None if answer is None else answer.seconds,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Evaluation(Sequence[EvaluatedProblem]):
    """What a strategy gave: a sequence of problems in the order of the rows, and the numbers over all of them.

    `accuracy` has its 95 % interval; `coverage` is the share of problems with a right candidate; `dollars` is None
    where no prices are known. `summary` has what `summary.json` of a run has, curves included.
    """

    strategy: str
    problems: tuple[EvaluatedProblem, ...]
    accuracy: Interval
    coverage: float
    usage: Usage
    seconds: float
    dollars: float | None
    seed: int
    summary: Mapping[str, Any] = field(repr=False)

    @overload
    def __getitem__(self, index: int) -> EvaluatedProblem: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[EvaluatedProblem, ...]: ...

    def __getitem__(self, index: int | slice) -> EvaluatedProblem | tuple[EvaluatedProblem, ...]:
        """A problem by its number."""
        return self.problems[index]

    def __len__(self) -> int:
        """How many problems there are."""
        return len(self.problems)

    def __iter__(self) -> Iterator[EvaluatedProblem]:
        """The problems in order."""
        return iter(self.problems)

    @property
    def errors(self) -> tuple[EvaluatedProblem, ...]:
        """The problems that failed."""
        return tuple(problem for problem in self.problems if problem.error is not None)

    @property
    def num_undecided(self) -> int:
        """How many answers the verifier did not decide on; they count as not right."""
        return sum(problem.verdict is not None and problem.verdict.status in NO_VERDICT for problem in self.problems)

    def to_rows(self) -> list[dict[str, Any]]:
        """A flat dictionary per problem."""
        return [problem.to_row() for problem in self.problems]

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a data frame.

        Raises:
            MissingExtra: pandas is not installed; `to_rows` needs nothing.
        """
        try:
            import pandas
        except ImportError as exc:
            raise MissingExtra("pandas", "frames") from exc
        return pandas.DataFrame(self.to_rows())

    def __str__(self) -> str:
        """One line: accuracy with interval, tokens, seconds, money."""
        bounds = interval(self.accuracy.low, self.accuracy.high)
        parts = [
            f"{self.strategy}: {percent(self.accuracy.value)} ({bounds}) of {counted(len(self), 'problem')}",
            f"{count(self.usage.tokens / len(self))} tokens a problem",
            seconds(self.seconds),
            *([] if self.dollars is None else [money(self.dollars)]),
            *([f"{len(self.errors)} failed"] if self.errors else []),
            *([f"{self.num_undecided} without a verdict"] if self.num_undecided else []),
        ]
        return ", ".join(parts)


def evaluation_of(
    choice: StrategyChoice, records: Sequence[Record], seed: int, lasted: float, prices: Prices | None, usual: Sampling
) -> Evaluation:
    """What the records of an evaluation that took `lasted` seconds amount to; `usual` is the sampling it began with."""
    config = {"seed": seed, "strategy": choice.name, "params": choice.all_params(), "sampling": dump(usual)}
    summary = summarise(records, config)
    usage = Usage(**summary["usage"])
    return Evaluation(
        strategy=choice.label,
        problems=tuple(map(_problem, records)),
        accuracy=Interval(summary["accuracy"], summary["low"], summary["high"]),
        coverage=summary["coverage"],
        usage=usage,
        seconds=lasted,
        dollars=None if prices is None else prices.cost(usage),
        seed=seed,
        summary=summary,
    )


def _problem(record: Record) -> EvaluatedProblem:
    usage = record.answer.usage if record.answer else Usage(**record.provenance["spent"])
    question = record.problem.messages[-1].content
    return EvaluatedProblem(
        record.problem.id, question, record.target, record.answer, record.verdict, record.error, usage
    )
