"""Rollouts: groups of completions of one prompt, with all that an update, a replay or an investigation needs.

Any engine and any strategy can produce them. A rollout holds the exact ids that were sampled (promise 4), the engine's
log-probabilities, and which ids were injected by thinking control: those are never trained on. Sampling is at
temperature 1 without top-p and top-k, because only then are the engine's log-probabilities those of the policy. An
episode with tools (`ttc.agents`) is one rollout: what the tools returned is among its ids, marked as not sampled. On
disk a rollout is one JSON line, readable at any moment. Cost: one tuple per completion.

Group advantages, shaping over a group and rankings are differences between answers to one question; across two
questions they would teach which question is easier. So a group that mixes prompts is refused by name, at the cost of
one comparison of ids per row. A group has a signal when its rewards differ; without one it teaches nothing, and
all-pass or all-fail says whether it is too easy or too hard. Metrics of a step's groups are shares in [0, 1], lengths
in tokens, times in seconds; the update and the engine add their own.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

from evals.task import Item
from ttc.answers.kinds import kind_of
from ttc.concurrent import gather
from ttc.core import (
    Answer,
    Candidate,
    Completion,
    Engine,
    Problem,
    Prompt,
    Sampling,
    Strategy,
    TargetLike,
    Usage,
    Verdict,
)
from ttc.errors import ConfigError, RecordError
from ttc.records import LineFile, decode, encode, iterate
from ttc.session.session import Session, Shared
from ttc.session.thinking import Thinking


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion of one prompt, judged or not yet.

    `group` is equal for rollouts of one prompt in one step. `sampled` is True at ids the policy drew. `logprobs` are
    the engine's, in nats, None at injected ids. `reward` None means no verdict; `parts` are its components by name.
    `version` counts the updates of the policy that sampled it. `calls` of tools were made, of which `failed_calls`
    came back as errors. `step_rewards` are (place in `token_ids` of a step's last token, what the step is worth).
    `reference_logprobs` are the reference model's, None at injected ids; empty where there was none. `critique` is what
    a generative verifier wrote about it. `cluster` names the problem's variants, all of them; empty where it has none.
    """

    step: int
    group: int
    problem_id: str
    difficulty: str
    target: TargetLike
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
    reference_logprobs: tuple[float | None, ...] = ()
    critique: str = ""
    cluster: str = ""

    @property
    def key(self) -> str:
        """The name by which it is held out and weighted, shared by rollouts of the problem and its variants."""
        return self.cluster or self.problem_id

    @property
    def right(self) -> bool:
        """Whether it was judged correct; false without a verdict."""
        return self.verdict is not None and self.verdict.correct

    @property
    def truncated(self) -> bool:
        """Whether it was cut by a limit: not finished, whatever it says."""
        return self.finish_reason != "stop"


async def group_draws(problem: Problem, session: Session, *, n: int) -> Answer:
    """Draw n completions and return them all: the plain group of GRPO."""
    prompt = session.render()
    completions = await session.generate(prompt, n)
    return session.answer(None, [session.candidate(prompt, completion) for completion in completions])


async def branching_draws(problem: Problem, session: Session, *, n: int, every: int) -> Answer:
    """Draw n completions that share beginnings: every `every` tokens each open path splits in two, until there are n.

    Segments of a fixed length as in TreePO (arXiv:2508.17445). Paths that end early make room for others; when all have
    ended, another tree begins at the prompt. Every path is a draw of the policy itself.
    """
    candidates: list[Candidate] = []
    while len(candidates) < n:
        candidates += await _grown_tree(session, session.render(), n - len(candidates), every)
    return session.answer(None, candidates)


async def _grown_tree(session: Session, root: Prompt, leaves: int, every: int) -> list[Candidate]:
    """The leaves of one tree below `root`: as many, or fewer if its paths end before they split."""
    ends: list[Candidate] = []
    growing, left = [root], session.sampling.max_tokens
    while growing:
        room = leaves - len(ends)
        size = left if len(growing) == room else min(every, left)
        sampling, left = replace(session.sampling, max_tokens=size), left - size
        widths = [2 if place < room - len(growing) else 1 for place in range(len(growing))]
        parents = list(zip(growing, widths, strict=True))
        requests = [session.generate(prompt, width, sampling=sampling, piece=left > 0) for prompt, width in parents]
        growing = []
        for (prompt, _), completions in zip(parents, await gather(requests), strict=True):
            for one in completions:
                if left > 0 and one.finish_reason == "length" and one.stop_reason is None:
                    growing.append(prompt.then(one))
                else:
                    ends.append(session.candidate(prompt, one))
    return ends


class Collector:
    """Draws the rollouts of one step from an engine."""

    def __init__(
        self, engine: Engine, *, strategy: Strategy, sampling: Sampling, thinking: Thinking | None, seed: int
    ) -> None:
        """Refuse what would make the update wrong; `seed` is the run's."""
        neutral = {"top_p": 1, "top_k": None, "min_p": 0, "repetition_penalty": 1}
        wrong = {name: getattr(sampling, name) for name, off in neutral.items() if getattr(sampling, name) != off}
        if sampling.temperature != 1 or wrong:
            settings = ", ".join(
                f"{name} {value:g}" for name, value in (("temperature", sampling.temperature), *wrong.items())
            )
            raise ConfigError(
                f"rollout.temperature must be 1, without {', '.join(neutral)}: only then are the engine's "
                f"log-probabilities those of the policy that is trained (got {settings})"
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

    @classmethod
    def plain(cls, engine: Engine, n: int, max_tokens: int, seed: int, thinking: Thinking | None = None) -> Collector:
        """A collector of groups of `n` plain draws."""
        sampling = Sampling(temperature=1.0, max_tokens=max_tokens)
        return cls(engine, strategy=partial(group_draws, n=n), sampling=sampling, thinking=thinking, seed=seed)

    async def collect(self, items: Sequence[Item], step: int, first_group: int = 0, version: int = 0) -> list[Rollout]:
        """Return the rollouts of `items`, group by group; a problem whose budget ends early gives what it has."""
        # the step is part of the seed, so a problem drawn again at a later step gives new rollouts
        jobs = [self._group(item, step, first_group + i, version) for i, item in enumerate(items)]
        groups = await gather(jobs)
        return [rollout for group in groups for rollout in group]

    async def _group(self, item: Item, step: int, group: int, version: int) -> list[Rollout]:
        problem = replace(item.problem, id=f"{item.problem.id}@{step}")
        session = _Recording(
            problem, self.engine, answers=kind_of(problem.kind), seed=self._seed, sampling=self._sampling,
            thinking=self._thinking, shared=self._shared,
        )  # fmt: skip
        try:
            answer = await session.attempt(self._strategy)
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
            cluster=item.cluster,
        )


class _Recording(Session):
    """A session that records, by path, the prompt and the completion that ended there."""

    def __init__(self, problem: Problem, engine: Engine, **options: Any) -> None:
        super().__init__(problem, engine, **options)
        self.ends: dict[tuple[int, ...], tuple[Prompt, Completion]] = {}

    def record(self, prompt: Prompt, completions: Sequence[Completion]) -> None:
        super().record(prompt, completions)
        self.ends.update({completion.path: (prompt, completion) for completion in completions})


class RolloutFile(LineFile):
    """Appends the rollouts of each step; a step is synced to disk as a whole."""

    def append(self, rollouts: Iterable[Rollout]) -> None:
        """Write one step."""
        rows = list(rollouts)
        for number, rollout in enumerate(rows):
            self.write(encode(rollout), sync=number == len(rows) - 1)

    def go_on_from(self, step: int) -> None:
        """Remove what was written of `step` and later ones: a run that resumes before them draws them again."""
        place = 0
        with self.path.open("rb") as lines:
            for line in lines:
                if json.loads(line)["step"] >= step:
                    break
                place += len(line)
        with self._lock:
            self._file.truncate(place)


def write_rollouts(path: Path, rollouts: Iterable[Rollout]) -> None:
    """Write a file of rollouts, replacing that of an interrupted stage."""
    path.unlink(missing_ok=True)
    with RolloutFile(path) as file:
        file.append(rollouts)


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


MAX_SHOWN = 60
Decode: TypeAlias = Callable[[Sequence[int]], str]


def check_groups(rollouts: Iterable[Rollout], decode: Decode) -> None:
    """Refuse rollouts whose group ids mix prompts.

    Raises:
        ConfigError: names the group, both problems, and the words at which their prompts differ.
    """
    first: dict[tuple[int, int], Rollout] = {}
    for rollout in rollouts:
        other = first.setdefault((rollout.step, rollout.group), rollout)
        if other.prompt_ids != rollout.prompt_ids:
            name = f"group {rollout.group} of step {rollout.step}"
            prompts = [(each.problem_id, decode(each.prompt_ids)) for each in (other, rollout)]
            fix = (
                "give each prompt a group id of its own; a strategy that puts other prompts, such as refine or "
                "aggregate, cannot draw a group"
            )
            raise mixed(name, prompts, fix)


def mixed(name: str, prompts: Sequence[tuple[str, str]], fix: str) -> ConfigError:
    """The error for `name`, which holds two (problem, prompt text)."""
    texts = [text for _, text in prompts]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))
    openings = " and ".join(f"{_words(text, shared)!r} (problem {problem})" for problem, text in prompts)
    return ConfigError(f"{name} mixes prompts, whose completions must not be compared: {openings}; {fix}")


def _words(text: str, shared: int) -> str:
    """A few words of a prompt, from the first word that differs from the other one."""
    start = len(text[:shared].rstrip().rpartition(" ")[0]) if shared > MAX_SHOWN // 2 else 0
    words = text[start : start + MAX_SHOWN].strip()
    return ("..." if start else "") + words + ("..." if start + MAX_SHOWN < len(text) else "")


_MAX_FAMILIES = 16
_SECOND_THOUGHT = re.compile(
    r"\b(?:wait|mistake|however|retry|error|verify|wrong|evaluate|check|alternatively)\b", re.I
)
"""Words of self-correction, counted over training as in DeepSeek-R1 (arXiv:2501.12948, supplement C.2)."""
_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def by_group(rollouts: Sequence[Rollout]) -> dict[int, list[Rollout]]:
    """Rollouts by group, in order."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


def has_signal(group: Sequence[Rollout]) -> bool:
    """Whether the rewards of a group, those of steps among them, differ by more than rounding."""
    rewards = [r.reward + sum(value for _, value in r.step_rewards) for r in group if r.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > 1e-6


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of one step's rollouts, zero-signal groups included."""
    groups = list(by_group(rollouts).values())
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    statuses = [rollout.verdict.status for rollout in rollouts if rollout.verdict is not None]
    passed = [[rollout.right for rollout in group] for group in groups]
    metrics = {
        "accuracy": _mean([rollout.right for rollout in rollouts]),
        "reward": _mean(rewards),
        "reward_std": statistics.pstdev(rewards) if rewards else math.nan,
        "signal_share": _mean([has_signal(group) for group in groups if len(group) > 1]),
        "all_pass": _mean([all(group) for group in passed]),
        "all_fail": _mean([not any(group) for group in passed]),
        "length": _mean(lengths),
        "length_max": float(max(lengths, default=0)),
        "length_right": _mean([len(rollout.token_ids) for rollout in rollouts if rollout.right]),
        "length_wrong": _mean([len(rollout.token_ids) for rollout in rollouts if not rollout.right]),
        "self_correction": _mean([len(_SECOND_THOUGHT.findall(rollout.thinking)) for rollout in rollouts]),
        "truncated": _mean([rollout.truncated for rollout in rollouts]),
        "thinking_share": _mean([bool(rollout.thinking.strip()) for rollout in rollouts]),
        "no_answer": _mean([status in ("no_answer", "unparseable") for status in statuses]),
        "formed": _mean([rollout.final is not None for rollout in rollouts]),
        "unique_share": _mean([len({r.token_ids for r in group}) / len(group) for group in groups]),
        "repetition": _mean([repeated_share(rollout.token_ids, 4) for rollout in rollouts]),
        "other_script": _mean([bool(_OTHER_SCRIPT.search(rollout.thinking)) for rollout in rollouts]),
        "verifier_errors": _mean([status == "error" for status in statuses]),
        "verifier_timeouts": _mean([status in ("timeout", "limit") for status in statuses]),
    }
    names = {name for rollout in rollouts for name in rollout.parts}
    parts = {f"part/{name}": _mean([r.parts[name] for r in rollouts if name in r.parts]) for name in sorted(names)}
    return {**metrics, **parts, **_by_family(rollouts)}


def _by_family(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward by difficulty or family of tasks, where there are several and not too many to show."""
    rewards = [(rollout.difficulty, rollout.reward) for rollout in rollouts if rollout.reward is not None]
    return family_means("family", rewards)


def family_means(what: str, values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean of (family, value) by family, named `what/FAMILY`; nothing where there is one, or too many to show."""
    families: dict[str, list[float]] = {}
    for name, value in values:
        families.setdefault(name, []).append(value)
    few = 1 < len(families) <= _MAX_FAMILIES
    return {f"{what}/{name or 'none'}": _mean(own) for name, own in sorted(families.items())} if few else {}


def repeated_share(ids: Sequence[int], n: int) -> float:
    """Share of the n-grams of `ids` that are not the first of their kind; 0 when there is none."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
