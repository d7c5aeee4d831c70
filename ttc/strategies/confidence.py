"""Confidence (DeepConf): weight votes by the model's own confidence, and abort weak traces while they grow.

Fu et al. 2025, "Deep Think with Confidence" (arXiv 2508.15260). A trace's confidence is that of its weakest group: the
lowest mean over `group` consecutive tokens (over the whole trace if it is shorter). `warmup` traces run to their end
and set the threshold that a share `keep` of them reaches (0.1 is the paper's DeepConf-low, 0.9 its DeepConf-high);
later traces are aborted in the first piece in which a group falls below it. Drawing stops when one class has the share
`consensus` of the confidence-weighted vote. Cost: at most n completions; an aborted one costs its tokens up to the end
of the piece.

With warmup=n all traces run to their end, and the share `keep` of them that is surest votes (the paper's offline form).
There another `part` of a trace may count; it is known at the end only, so nothing is aborted for it.

Confidence is computed from what engines report: the probability of the sampled token (the paper: mean log-probability
of the top 20), or self-certainty over the whole vocabulary. Ties: see `ttc.choosing.selection`. Left out: top-k
log-probabilities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.choosing.selection import fallback, tally, vote
from ttc.config.signatures import reads_logprobs
from ttc.config.values import above, at_least, at_most
from ttc.core import Answer, Candidate, Logprobs, Problem
from ttc.errors import ConfigError
from ttc.session.growing import Draw, begin, check_pieces, grow_all
from ttc.session.session import Session, check_n

Part: TypeAlias = Literal["lowest", "bottom", "tail", "mean"]


@reads_logprobs
async def confidence(
    problem: Problem,
    session: Session,
    *,
    n: int = 32,
    warmup: int = 8,
    keep: float = 0.5,
    group: int = 64,
    part: Part = "lowest",
    consensus: float = 0.95,
    measure: Literal["logprob", "certainty"] = "logprob",
    chunk: int = 64,
    wave: int = 8,
) -> Answer:
    """Return the answer that the confident traces vote for.

    Args:
        problem: the question.
        session: the metered engine.
        n: most traces.
        warmup: traces that run to their end and set the threshold.
        keep: share of the warm-up traces that reach the threshold; 1 keeps and aborts nothing.
        group: tokens of one group (the paper: 2048, for traces of tens of thousands).
        part: lowest is the weakest group, bottom the mean of the weakest tenth of all groups, tail the last `group`
            tokens, mean all tokens.
        consensus: share of the weight of one class that ends the drawing; above 1: never.
        measure: logprob is the geometric mean probability of sampled tokens, certainty their KL from uniform in nats.
        chunk: tokens a trace grows by between two looks at it.
        wave: traces that grow together after the warm-up.

    Raises:
        ConfigError: a parameter outside its range, n > 1 at temperature 0, or an engine without log-probabilities.
    """
    check_n("confidence", n, session.sampling)
    check_pieces("confidence", session, chunk)
    at_least("confidence", 1, warmup=warmup, group=group, wave=wave)
    at_most("confidence", n, "n", warmup=warmup)
    above("confidence", 0, keep=keep, consensus=consensus)
    at_most("confidence", 1, keep=keep)
    if not session.capabilities.logprobs:
        raise ConfigError(f"confidence needs log-probabilities, which {session.capabilities.model} does not report")
    if measure == "certainty" and not session.capabilities.certainty:
        raise ConfigError(f"confidence: {session.capabilities.model} reports no certainty; set measure=logprob")
    root = session.render()
    gauge = _Gauge(measure, group, part)
    draws = await begin(session, root, n, chunk)
    traces = await _trace(session, draws[:warmup], gauge, -math.inf, chunk)
    threshold = _threshold([trace.level for trace in traces if trace.draw.finished], keep)
    stop_cause = "done"
    while True:
        candidates = [trace.close(session) for trace in traces]
        confident = [c for c in candidates if c.score is not None and c.score >= threshold]
        weights = tally(confident, session.key, attrgetter("score"))
        if len(traces) == len(draws) or traces[-1].spent:
            break
        if weights and weights[0] >= consensus * math.fsum(weights):
            stop_cause = "consensus"
            break
        traces += await _trace(session, draws[len(traces) : len(traces) + wave], gauge, threshold, chunk)
    for trace in traces:
        if trace.aborted:
            session.prune(trace.draw.whole.path)
    leader = vote(confident, session.key, attrgetter("score")) or vote(candidates, session.key) or fallback(candidates)
    return session.answer(leader, candidates, stop_cause)


@dataclass(frozen=True, slots=True)
class _Gauge:
    """Reads the confidence of a trace from the column that `measure` names."""

    measure: Literal["logprob", "certainty"]
    group: int
    part: Part

    def read(self, draw: Draw) -> float | None:
        """The confidence so far; None while it is not known."""
        column = draw.prompt.certainty if self.measure == "certainty" else draw.prompt.logprobs
        if column is None:
            raise ConfigError(f"confidence: the engine reports no {self.measure}; set measure=logprob")
        level = level_of(column, self.group, self.part, whole=draw.ended)
        return level if level is None or self.measure == "certainty" else math.exp(level)


@dataclass(frozen=True, slots=True)
class _Trace:
    """A trace and its confidence so far; `aborted` when that fell below the threshold."""

    draw: Draw
    level: float | None = None
    aborted: bool = False

    @property
    def spent(self) -> bool:
        """Whether the budget ended it before its first token, so that no more can be drawn."""
        return self.draw.ended and not self.draw.num_sampled

    def close(self, session: Session) -> Candidate:
        return self.draw.candidate(session, None if self.aborted else self.level)


async def _trace(session: Session, draws: Sequence[Draw], gauge: _Gauge, threshold: float, chunk: int) -> list[_Trace]:
    """Grow draws until each has ended or fallen below the threshold."""
    traces = [_Trace(draw, gauge.read(draw) if draw.ended else None) for draw in draws]
    while live := [at for at, trace in enumerate(traces) if not (trace.draw.ended or trace.aborted)]:
        for at, draw in zip(live, await grow_all(session, [traces[at].draw for at in live], chunk), strict=True):
            level = gauge.read(draw)
            weak = level is not None and level < threshold
            traces[at] = replace(traces[at], draw=draw, level=level, aborted=weak)
    return traces


def level_of(column: Logprobs, group: int, part: Part, *, whole: bool) -> float | None:
    """Return the mean of `column` over a part of it; injected tokens do not count.

    Only the lowest group is known before the column is `whole`, once a group is full, since it can only fall.
    """
    values = [value for value in column if value is not None]
    is_known = whole or (part == "lowest" and len(values) >= group)
    return _LEVELS[part](values, group) if values and is_known else None


_LEVELS: Mapping[Part, Callable[[Sequence[float], int], float]] = MappingProxyType(
    {
        "lowest": lambda values, group: min(_group_means(values, group)),
        "bottom": lambda values, group: _mean(_lowest_tenth(_group_means(values, group))),
        "tail": lambda values, group: _mean(values[-group:]),
        "mean": lambda values, group: _mean(values),
    }
)


def _group_means(values: Sequence[float], group: int) -> list[float]:
    """The mean of every `group` values in a row; of all, where there are fewer."""
    size = min(group, len(values))
    sums = list(itertools.accumulate(values, initial=0.0))
    return [(end - begin) / size for begin, end in zip(sums, sums[size:], strict=False)]


def _lowest_tenth(values: Sequence[float]) -> list[float]:
    return sorted(values)[: max(len(values) // 10, 1)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _threshold(levels: Sequence[float | None], keep: float) -> float:
    """Return the quantile 1 - keep of the levels (linear between ranks); -inf keeps everything."""
    values = sorted(level for level in levels if level is not None)
    if keep == 1 or not values:
        return -math.inf
    place = (1 - keep) * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
