"""Preferences from a model instead of people: it judges pairs of sampled answers, in both orders.

Constitutional AI's second half (Bai et al. 2022, arXiv:2212.08073; RLAIF, Lee et al. 2023, arXiv:2309.00267): the judge
is asked which of two answers follows the principle better, and its probabilities of the two labels, averaged over both
orders, are the preference. An answer's reward is the mean over the pairs it took part in, so the stages `preference`
and `reward_model` can use `rollouts.jsonl` like any other ranking. The policy passes through. It measures how often the
judge agrees with the verifier where that sees a difference (one half by chance), which is not used for the rewards.
Cost: four short forward passes per pair. Left out: reasoning before the judgement.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.data.decontamination import prompt_text
from evals.task import Task
from train.base.models import load_model, load_tokenizer
from train.base.rollout import Rollout, read_rollouts, write_rollouts
from train.base.stage import Setting, Stage, StageResult, check_form, check_model, model_of, pass_through, rollouts_path
from train.examples.examples import Example
from train.examples.imitation import completion_sums
from train.measure.measure import gains
from train.registries import make_task
from train.reward_models.reward_models import model_folder
from ttc import seeds
from ttc.config.values import counted
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError

_ASK = """Request:
{prompt}

Answer A:
{first}

Answer B:
{second}

Which answer is more helpful, honest and harmless?"""


def feedback(
    *,
    task: str,
    rollouts: str,
    judge: str | None = None,
    ask: str = _ASK,
    labels: tuple[str, ...] = ("A", "B"),
    pairs: int = 6,
) -> Stage:
    """Let a model compare a run's rollouts.

    Args:
        task: the problems that were answered, NAME or NAME:KEY=VALUE,...
        rollouts: the stage of this run that recorded the answers, such as 2-sample, or a rollouts.jsonl.
        judge: a stage of this run, such as 1-sft, or a model folder; None is the model that the stage starts from.
        ask: what the judge is asked, with {prompt}, {first} and {second}: the principle belongs here.
        labels: the judge's words for the first and the second answer.
        pairs: most pairs of one problem.
    """
    if pairs < 1 or len(labels) != 2 or len(set(labels)) != 2:
        raise ConfigError(f"feedback: needs pairs >= 1 and two different labels, got {pairs} and {labels}")
    check_form("feedback: ask", ask, ("prompt", "first", "second"))
    return _Feedback(make_task(task), rollouts, judge, ask, labels, pairs)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two answers to one problem, by their numbers."""

    problem: str
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class _Feedback:
    task: Task
    rollouts: str
    judge: str | None
    ask: str
    labels: tuple[str, ...]
    pairs: int

    def check(self, has_model: bool) -> None:
        check_model("feedback", has_model)

    def models(self) -> Mapping[str, tuple[str, ...]]:
        return {"judge": () if self.judge is None else (self.judge,)}

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return {"task": (self.task, None)}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`; an interrupted one begins again."""
        own = model_of("feedback", setting)
        rollouts = [r for r in read_rollouts(rollouts_path(self.rollouts, setting)) if not r.truncated]
        pairs = self._pairs(rollouts, setting.seed)
        if not pairs:
            raise ConfigError(f"feedback: {self.rollouts} has no problem with two different answers to compare")
        source = own if self.judge is None else model_folder("judge", self.judge, setting)
        wins = self._judged(rollouts, pairs, source, setting.device)
        _write(setting.folder / "rollouts.jsonl", rollouts, pairs, wins)
        agreement = [(_agrees(rollouts, pair, win), pair.problem) for pair, win in zip(pairs, wins, strict=True)]
        agreed = [(value, problem) for value, problem in agreement if value is not None]
        numbers: dict[str, float] = {"pairs": float(len(pairs))}
        if agreed:
            right, keys = zip(*agreed, strict=True)
            numbers |= gains("agreement", [0.5] * len(right), right, setting.seed, keys)
            share = 100 * sum(right) / len(right)
            setting.log(f"{counted(len(pairs), 'pair')} judged, {share:.1f} % as the verifier sees them")
        return StageResult(pass_through(setting), numbers)

    def _pairs(self, rollouts: Sequence[Rollout], seed: int) -> list[_Pair]:
        """Pairs of different answers, at most `pairs` per problem, drawn at random."""
        by_problem: dict[str, dict[tuple[int, ...], int]] = {}
        for number, rollout in enumerate(rollouts):
            by_problem.setdefault(rollout.problem_id, {}).setdefault(rollout.token_ids, number)
        pairs: list[_Pair] = []
        for problem, answers in by_problem.items():
            every = list(itertools.combinations(answers.values(), 2))
            random.Random(seeds.derive(seed, "feedback", problem)).shuffle(every)
            pairs += [_Pair(problem, *pair) for pair in every[: self.pairs]]
        return pairs

    def _judged(self, rollouts: Sequence[Rollout], pairs: Sequence[_Pair], source: Path, device: str) -> list[float]:
        """Probability that the first answer of each pair is the better one."""
        prompts = {item.problem.id: prompt_text(item) for item in self.task.items(None, 0)}
        missing = next((pair.problem for pair in pairs if pair.problem not in prompts), None)
        if missing is not None:
            raise ConfigError(f"feedback: {self.rollouts} answers {missing!r}, which is not in task {self.task.name}")
        model, pad_id = load_model(source, device), int(load_tokenizer(source).pad_token_id)
        text = Text(source)

        def asked(pair: _Pair, first: int, second: int) -> list[Example]:
            slots = {"prompt": prompts[pair.problem], "first": rollouts[first].text, "second": rollouts[second].text}
            prompt = text.render((Message("user", self.ask.format(**slots)),), None).token_ids or ()
            return [Example(pair.problem, prompt, text.encode(label)) for label in self.labels]

        forward = [row for pair in pairs for row in asked(pair, pair.first, pair.second)]
        backward = [row for pair in pairs for row in asked(pair, pair.second, pair.first)]
        ahead, behind = (_shares(completion_sums(model, rows, pad_id)) for rows in (forward, backward))
        return [(one + 1 - other) / 2 for one, other in zip(ahead, behind, strict=True)]


def _shares(sums: Sequence[tuple[float, int]]) -> list[float]:
    """Probability of the first of two labels, from the log-probabilities of both in turn."""
    values = [total for total, _ in sums]
    both = zip(values[::2], values[1::2], strict=True)
    return [1 / (1 + math.exp(min(second - first, 700.0))) for first, second in both]


def _agrees(rollouts: Sequence[Rollout], pair: _Pair, win: float) -> float | None:
    """1 or 0: whether the judge prefers the answer that the verifier scores higher; None if it scores them equally."""
    first, second = (rollouts[number].verdict for number in (pair.first, pair.second))
    if first is None or second is None or first.score is None or second.score is None or first.score == second.score:
        return None
    return float((win > 0.5) == (first.score > second.score))


def _write(path: Path, rollouts: Sequence[Rollout], pairs: Sequence[_Pair], wins: Sequence[float]) -> None:
    """The answers that were compared, each with the mean of its preferences as its reward."""
    shares: dict[int, list[float]] = {}
    for pair, win in zip(pairs, wins, strict=True):
        shares.setdefault(pair.first, []).append(win)
        shares.setdefault(pair.second, []).append(1 - win)
    means = {number: sum(values) / len(values) for number, values in sorted(shares.items())}
    write_rollouts(path, (replace(rollouts[n], reward=mean, parts={"feedback": mean}) for n, mean in means.items()))
