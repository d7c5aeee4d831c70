"""Rollouts: groups of completions of one prompt, with all that an update, a replay or a doubt needs.

Any engine and any strategy can produce them. A rollout holds the exact ids that were sampled (promise 4), the engine's
log-probabilities, and which ids thinking control put there instead of the policy: those are never trained on. Sampling
is at temperature 1 without top-p and top-k, because only there are the engine's log-probabilities those of the policy.
An episode with tools (`ttc.agents`) is one rollout: what the tools returned stands among its ids and is not sampled. On
disk a rollout is one JSON line, readable at any moment. Cost: one tuple per completion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evals.task import Item
from ttc.answers import kind_of
from ttc.core import Answer, Candidate, Completion, Engine, Problem, Prompt, Sampling, Target, Usage, Verdict
from ttc.errors import ConfigError, RecordError
from ttc.records import LineFile, decode, encode, iterate
from ttc.session.session import Session, Shared
from ttc.session.solve import Strategy, attempt
from ttc.session.thinking import Thinking

__all__ = ["Collector", "Rollout", "RolloutFile", "Strategy", "group_draws", "read_rollouts"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion of one prompt, judged or not yet.

    `group` is equal for rollouts of one prompt in one step. `sampled` is True at ids the policy drew. `logprobs` are
    the engine's, in nats, None at injected ids. `reward` None means no verdict; `parts` are its components by name.
    `version` counts the updates of the policy that sampled it. `calls` of tools were made, of which `failed_calls`
    came back as errors. `step_rewards` are (place in `token_ids` of a step's last token, what the step is worth).
    """

    step: int
    group: int
    problem_id: str
    difficulty: str
    target: Target
    path: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    text: str
    thinking: str
    final: str | None
    finish_reason: str
    version: int
    seed: int
    verdict: Verdict | None = None
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0
    failed_calls: int = 0
    step_rewards: tuple[tuple[int, float], ...] = ()

    @property
    def truncated(self) -> bool:
        """Whether it was cut by a limit: not finished, whatever it says."""
        return self.finish_reason != "stop"


async def group_draws(problem: Problem, session: Session, *, n: int) -> Answer:
    """Draw n completions and return them all: the plain group of GRPO."""
    prompt = session.render()
    completions = await session.generate(prompt, n)
    return session.answer(None, [session.candidate(prompt, completion) for completion in completions])


class Collector:
    """Draws the rollouts of one step from an engine."""

    def __init__(
        self, engine: Engine, *, strategy: Strategy, sampling: Sampling, thinking: Thinking | None, seed: int
    ) -> None:
        """Refuse what would make the update wrong; `seed` is the run's."""
        if sampling.temperature != 1 or sampling.top_p != 1 or sampling.top_k is not None:
            raise ConfigError(
                "rollout.temperature must be 1, without top_p and top_k: only then are the engine's log-probabilities "
                f"those of the policy that is trained (got {sampling.temperature}, {sampling.top_p}, {sampling.top_k})"
            )
        if not (engine.capabilities.token_ids and engine.capabilities.logprobs):
            raise ConfigError(
                f"engine {engine.capabilities.model} gives no token ids with log-probabilities, which rollouts need; "
                "use embedded, vllm or sglang"
            )
        self.engine = engine
        self.usage = Usage()
        self._shared: Shared = {}
        self._strategy, self._sampling, self._thinking, self._seed = strategy, sampling, thinking, seed

    async def collect(self, items: Sequence[Item], step: int, first_group: int = 0, version: int = 0) -> list[Rollout]:
        """Return the rollouts of `items`, group by group; a problem whose budget ends early gives what it has."""
        # the step is part of the seed, so the same problem drawn again at a later step gives new rollouts
        jobs = (self._group(item, step, first_group + i, version) for i, item in enumerate(items))
        groups = await asyncio.gather(*jobs)
        return [rollout for group in groups for rollout in group]

    async def _group(self, item: Item, step: int, group: int, version: int) -> list[Rollout]:
        problem = replace(item.problem, id=f"{item.problem.id}@{step}")
        session = _Recording(
            problem,
            self.engine,
            seed=self._seed,
            sampling=self._sampling,
            thinking=self._thinking,
            shared=self._shared,
        )
        try:
            answer = await attempt(problem, session, self._strategy)
        finally:
            session.close()
            self.usage += session.usage
        return [self._rollout(item, candidate, session, step, group, version) for candidate in answer.candidates]

    def _rollout(
        self, item: Item, candidate: Candidate, session: _Recording, step: int, group: int, version: int
    ) -> Rollout:
        prompt, completion = session.ends[candidate.path]
        whole = prompt.then(completion)
        ending = len(completion.token_ids) - completion.num_eos  # `then` drops the end of sequence; training needs it
        generated = [*whole.generated_ids, *completion.token_ids[ending:]]
        logprobs = [*(whole.logprobs or ()), *(completion.logprobs or ())[ending:]]
        tool_events = (event for event in session.trace if event.kind == "tool" and event.path == candidate.path)
        failed = [bool(event.data["failed"]) for event in tool_events]
        return Rollout(
            step=step,
            group=group,
            problem_id=item.problem.id,
            difficulty=item.difficulty or "",
            target=item.target,
            path=candidate.path,
            prompt_ids=(whole.token_ids or ())[: whole.rendered_len],
            token_ids=tuple(generated),
            sampled=tuple(value is not None for value in logprobs),
            logprobs=tuple(logprobs),
            text=candidate.text,
            thinking=candidate.thinking,
            final=candidate.final,
            finish_reason=candidate.finish_reason,
            version=version,
            seed=self._seed,
            calls=len(failed),
            failed_calls=sum(failed),
        )


class _Recording(Session):
    """A session that remembers, per path, the prompt and the completion that ended there."""

    def __init__(
        self,
        problem: Problem,
        engine: Engine,
        *,
        seed: int,
        sampling: Sampling,
        thinking: Thinking | None,
        shared: Shared,
    ) -> None:
        answers = kind_of(problem.kind)
        super().__init__(
            problem, engine, answers=answers, seed=seed, sampling=sampling, thinking=thinking, shared=shared
        )
        self.ends: dict[tuple[int, ...], tuple[Prompt, Completion]] = {}

    def record(self, prompt: Prompt, completions: Sequence[Completion]) -> None:
        """See `Session.record`."""
        super().record(prompt, completions)
        self.ends.update({completion.path: (prompt, completion) for completion in completions})


class RolloutFile:
    """Appends the rollouts of each step; a step is synced to disk as a whole."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)

    def append(self, rollouts: Iterable[Rollout]) -> None:
        """Write one step."""
        rows = list(rollouts)
        for number, rollout in enumerate(rows):
            self._file.write(encode(rollout), sync=number == len(rows) - 1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rollouts(path: Path, step: int | None = None) -> Iterator[Rollout]:
    """Yield the rollouts of `path`, of one step or all; a step written twice (a resumed run) counts as last written.

    Raises:
        ConfigError: no such file.
        RecordError: a broken line; names file, line and field.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; a run writes it when rollouts are recorded")
    rollouts: dict[tuple[int, int, str, tuple[int, ...]], Rollout] = {}
    for number, data in iterate(path):
        if step is not None and isinstance(data, dict) and data.get("step") != step:
            continue
        try:
            rollout = decode(Rollout, data)
        except RecordError as exc:
            raise RecordError(f"{path}, line {number}: {exc}") from exc
        rollouts[rollout.step, rollout.group, rollout.problem_id, rollout.path] = rollout
    yield from rollouts.values()
