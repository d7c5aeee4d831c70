"""Replay: run a strategy again over a recorded pool of samples and scores, without a model.

Every record holds its draws (the candidates, and the trace with tokens and scores), so a vote, a selection or a
stopping rule can be run on it exactly: the same code, the same draws, the same scores, at once. The pool takes the
place of the engine (`PoolEngine`), the scorer (`PoolScorer`) and the reading of answers (`PoolSession`).

What can be replayed draws whole samples of the problem's own prompt: direct, majority, best_of_n with every selection
and aggregation, adaptive with every rule, knockout by recorded scores. Strategies that continue draws, ask again or
grow a tree are refused, as are pools cut by a stopping rule and more samples than the pool has. It costs what the real
run would have cost: generated tokens and draws exactly, scored tokens as each draw's share of the pool's by length;
prompt tokens and FLOPs are not known and are 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ttc.answers import kind_of
from ttc.config.values import counted
from ttc.core import (
    Answer,
    Budget,
    Candidate,
    Capabilities,
    Completion,
    Message,
    Problem,
    Prompt,
    Record,
    Sampling,
    Score,
    Strategy,
    Usage,
    UsageSink,
)
from ttc.errors import ConfigError
from ttc.session.session import Session


@dataclass(frozen=True, slots=True)
class RecordedDraw:
    """One recorded sample: how it was read, its length, and its scores if it was scored."""

    candidate: Candidate
    num_tokens: int
    num_thinking: int
    score: Score | None
    num_scored: int


def pool_of(record: Record) -> dict[int, RecordedDraw]:
    """Return the draws of a record by their number; raises ConfigError when it is no pool of whole samples."""
    answer = record.answer
    name = record.problem.id
    if answer is None:
        raise ConfigError(f"problem {name!r} failed ({record.error}), so there is nothing to replay")
    events = [event for event in answer.trace if event.kind == "generate"]
    samples = {event.path: event.data for event in events}
    scored = {event.path: event.data for event in answer.trace if event.kind == "score"}
    if [event.path for event in events] != [candidate.path for candidate in answer.candidates] or any(
        len(path) != 1 for path in samples
    ):
        raise ConfigError(f"problem {name!r}: only runs of whole samples can be replayed: majority or best_of_n")
    if answer.stop_cause != "done":
        raise ConfigError(
            f"problem {name!r}: its samples were stopped ({answer.stop_cause}), so their pool is biased; record one "
            "with majority or best_of_n and without a budget"
        )
    total, passed, num_before, draws = sum(int(data["num_tokens"]) for data in samples.values()), 0, 0, {}
    for candidate in answer.candidates:
        data, score = samples[candidate.path], scored.get(candidate.path)
        passed += int(data["num_tokens"])
        upto = round(answer.usage.scored * passed / total) if total else 0
        draws[candidate.path[0]] = RecordedDraw(
            candidate=candidate,
            num_tokens=int(data["num_tokens"]),
            num_thinking=int(data["num_thinking"]),
            score=None if score is None else Score(score["value"], tuple(score["steps"]), score["note"]),
            num_scored=upto - num_before,
        )
        num_before = upto
    return draws


class PoolEngine:
    """Returns recorded draws; has no text, no ids and no other prompt."""

    def __init__(self, pool: Mapping[int, RecordedDraw], temperature: float) -> None:
        """`pool` is one problem's, drawn at `temperature`."""
        self._pool, self._temperature = pool, temperature
        self._counters = Usage()

    @property
    def capabilities(self) -> Capabilities:
        """Text only: what continues a draw is refused by the strategies themselves."""
        return Capabilities(model="replay", max_context=1 << 30, token_ids=False, schedule_invariant=True)

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """The one prompt that was drawn from; refused for another thinking mode."""
        if thinking is not None:
            raise ConfigError(
                "a replay keeps the thinking settings of the recorded run; a strategy that changes them needs a new run"
            )
        return Prompt(text="", token_ids=None, messages=tuple(messages))

    def encode(self, text: str) -> tuple[int, ...]:
        """Refused: there are no ids."""
        raise ConfigError("a replay has no token ids; only strategies over whole samples can be replayed")

    def decode(self, ids: Sequence[int]) -> str:
        """Refused: there are no ids."""
        raise ConfigError("a replay has no token ids; only strategies over whole samples can be replayed")

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Return recorded draws; one longer than `sampling.max_tokens` is cut and gives no answer."""
        if prompt.path or prompt.text:
            raise ConfigError("a replay cannot ask anything new; only strategies over whole samples can be replayed")
        if sampling.temperature != self._temperature:
            raise ConfigError(
                f"the recorded draws are of temperature {self._temperature:g}, not {sampling.temperature:g}: leave the "
                "strategy's temperature out, or make a new run"
            )
        return [self._drawn(number, sampling.max_tokens, on_usage) for number in draws]

    def _drawn(self, number: int, max_tokens: int, on_usage: UsageSink) -> Completion:
        if number not in self._pool:
            raise ConfigError(f"the recorded pool holds {counted(len(self._pool), 'sample')}; lower n to what it has")
        draw = self._pool[number]
        is_cut = draw.num_tokens > max_tokens
        num_tokens = min(draw.num_tokens, max_tokens)
        usage = Usage(generated=num_tokens, thinking=min(draw.num_thinking, num_tokens), calls=1, attempts=1)
        self._counters += usage
        on_usage(usage)
        reason = "length" if is_cut else draw.candidate.finish_reason
        return Completion(path=(number,), text=draw.candidate.text, token_ids=(), finish_reason=reason, usage=usage)

    def counters(self) -> Usage:
        """Totals so far."""
        return self._counters

    async def close(self) -> None:
        """Nothing to free."""


class PoolScorer:
    """Gives the recorded scores; one object for all problems of a run."""

    def __init__(self, pools: Mapping[str, Mapping[int, RecordedDraw]]) -> None:
        """`pools` by problem id."""
        self._pools = pools
        self._charged: dict[str, set[int]] = {}
        """The draws of each problem that were charged: a scorer remembers what it has read."""

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Look the scores up; a draw that was not scored in the run raises ConfigError."""
        return [self._score(prompt, on_usage) for prompt in prompts]

    def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        number, numbers = prompt.path[0], self._charged.setdefault(prompt.problem_id, set())
        draw = self._pools[prompt.problem_id][number]
        if draw.score is None:
            raise ConfigError("the recorded run has no scores; replay a strategy that needs none, such as majority")
        on_usage(Usage(scored=0 if number in numbers else draw.num_scored))
        numbers.add(number)
        return draw.score

    def release(self, problem_id: str) -> None:
        """Charge the draws of a problem anew."""
        self._charged.pop(problem_id, None)


class PoolSession(Session):
    """A session whose answers were read when they were recorded."""

    def __init__(
        self,
        problem: Problem,
        pool: Mapping[int, RecordedDraw],
        *,
        seed: int,
        sampling: Sampling,
        budget: Budget | None,
    ) -> None:
        """See `Session`; `pool` is the problem's."""
        super().__init__(
            problem,
            PoolEngine(pool, sampling.temperature),
            answers=kind_of(problem.kind),
            seed=seed,
            sampling=sampling,
            budget=budget,
        )
        self._pool = pool

    @property
    def without_ids(self) -> str:
        """A pool holds texts; no server and no tokenizer helps."""
        return "which a recorded run does not hold; make a new run with ttc eval, or replay majority or adaptive"

    async def run(self, strategy: Strategy, index: int) -> Answer:
        """Refused: the recorded draws are plain samples."""
        raise ConfigError(
            "a recorded run holds plain draws, so it cannot replay a strategy of strategies: leave of out"
        )

    def candidate_at(
        self, whole: Prompt, finish_reason: str, score: float | None = None, num_tokens: int = 0
    ) -> Candidate:
        """The recorded candidate with the score of this strategy; a cut one has no final answer."""
        candidate = replace(self._pool[whole.path[0]].candidate, score=score)
        if finish_reason != "stop" and candidate.finish_reason == "stop":
            candidate = replace(candidate, final=None, finish_reason="length", num_tokens=num_tokens)
        self._candidates[candidate.path] = candidate
        return candidate


async def replay(
    problem: Problem,
    pool: Mapping[int, RecordedDraw],
    strategy: Strategy,
    *,
    seed: int,
    sampling: Sampling,
    budget: Budget | None = None,
) -> Answer:
    """Return what `strategy` would have answered with the draws of `pool`; `seed` and `sampling` are the run's.

    Raises:
        ConfigError: the strategy wants more than the pool holds.
    """
    started = time.perf_counter()
    session = PoolSession(problem, pool, seed=seed, sampling=sampling, budget=budget)
    try:
        answer = await session.attempt(strategy)
    finally:
        session.close()
    return replace(answer, usage=session.usage, trace=session.trace, seconds=time.perf_counter() - started)
