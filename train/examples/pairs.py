"""Pairs of a better and a worse completion of one prompt, and the inputs of a preference loss.

    {"prompt": "2+3", "chosen": "5", "rejected": "6"}            also "messages", "mode", "weight",
    {"prompt": .., "chosen": .., "chosen_thinking": .., "rejected": .., "rejected_thinking": ..}

From rollouts: all completions of one prompt are ranked by reward, and the ranking's K (K - 1) / 2 pairs share one unit
of weight, as in InstructGPT, where counting each pair fully makes prompts with large K overfit; right against wrong is
the case of two ranks. Rollouts without a verdict are ignored, and a cut one is never chosen. `per_problem` keeps the
largest differences first, so that a problem with many completions does not fill the data set.

A loss sees log-probabilities of whole completions, by the policy and by a reference: sums over a completion's tokens in
nats, with their numbers of tokens. Shapes: P pairs, R labelled completions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from train.base.rollout import Rollout, mixed, read_rollouts
from train.base.stage import Setting, one_of, read_with, rollouts_path
from train.examples.examples import Example, completion_ids
from train.examples.rows import read_prompt, read_weight, rows_of
from ttc.config.plugins import checked_return, checked_shape
from ttc.config.values import at_least
from ttc.core import Prompt
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a loss compares, and so ranks completions by; by default summed log-ratios to a reference.

    Without `over_reference`: log-probabilities themselves. `per_token` divides by the number of tokens.
    """

    over_reference: bool = True
    per_token: bool = False


@dataclass(frozen=True, slots=True)
class Pairs:
    """Chosen against rejected, all tensors (P,); references may be None where a loss needs none."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_length: torch.Tensor
    rejected_length: torch.Tensor
    reference_chosen: torch.Tensor | None = None
    reference_rejected: torch.Tensor | None = None
    weight: torch.Tensor | None = None

    def ranked(self, name: str, ranking: Ranking) -> tuple[torch.Tensor, torch.Tensor]:
        """The compared values of chosen and rejected, nats; raises ConfigError if a reference is missing."""
        chosen, rejected = self.chosen, self.rejected
        if ranking.over_reference:
            if self.reference_chosen is None or self.reference_rejected is None:
                raise ConfigError(f"{name} needs reference log-probabilities: set the stage's reference model")
            chosen, rejected = chosen - self.reference_chosen, rejected - self.reference_rejected
        if ranking.per_token:
            return chosen / self.chosen_length, rejected / self.rejected_length
        return chosen, rejected

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply by the pairs' weights, where there are any: (P,)."""
        return loss if self.weight is None else loss * self.weight


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Completions that are each good or bad, (R,); `kl` is an estimate of the divergence over mismatched prompts."""

    logprob: torch.Tensor
    reference: torch.Tensor
    good: torch.Tensor
    kl: torch.Tensor


PairLoss: TypeAlias = Callable[[Pairs], torch.Tensor]
"""Pairs -> loss of each pair (P,)."""
LabelledLoss: TypeAlias = Callable[[LabelledBatch], torch.Tensor]
"""Labelled -> loss of each completion (R,)."""
_RANKING = "__ttc_ranking__"


def ranks_by(ranking: Ranking) -> Callable[[PairLoss], PairLoss]:
    """Mark a loss that ranks by something else than summed log-ratios, for its margin and accuracy."""

    def mark(loss: PairLoss) -> PairLoss:
        setattr(loss, _RANKING, ranking)
        return loss

    return mark


def ranking_of(loss: Callable[[Any], object]) -> Ranking:
    """What a loss ranks by: set by `ranks_by`, else summed log-ratios."""
    ranking: Ranking = getattr(loss, _RANKING, Ranking())
    return ranking


def each_loss(loss: Callable[[Any], object], batch: Any, like: torch.Tensor) -> torch.Tensor:
    """The loss of every pair, or of every labelled completion, of a batch, in the shape of `like`.

    Raises:
        PluginError: the loss gave something else, such as a mean.
    """
    values = checked_return("preference loss", loss, loss(batch), torch.Tensor)
    checked_shape("preference loss", loss, values, like.shape)
    return values


def ranked_pairs(scores: Sequence[float]) -> list[tuple[int, int, float]]:
    """All (better, worse, weight) of one prompt's completions; ties give none, and the weights add up to 1."""
    pairs = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if scores[i] > scores[j]]
    return [(better, worse, 1 / len(pairs)) for better, worse in pairs]


@dataclass(frozen=True, slots=True)
class Preferred:
    """Two completions of one prompt, the better one first, and the weight of the pair."""

    key: str
    chosen: Example
    rejected: Example
    weight: float = 1.0


PER_PROBLEM = 4
"""Most pairs of one problem's rollouts, where a stage is not told."""


@dataclass(frozen=True, slots=True)
class PairSource:
    """Where the pairs of a stage come from: a file or a run's rollouts."""

    data: Path | None
    rollouts: str | None
    per_problem: int | None

    @classmethod
    def of(cls, stage: str, data: str | None, rollouts: str | None, per_problem: int | None) -> PairSource:
        """The source that a stage's fields name; raises ConfigError for both or none, or an impossible number."""
        one_of(stage, data=data, rollouts=rollouts)
        read_with(stage, "rollouts", rollouts, per_problem=per_problem != PER_PROBLEM)
        at_least(stage, 1, per_problem=per_problem)
        return cls(None if data is None else Path(data).expanduser(), rollouts, per_problem)

    def load(self, setting: Setting, source: Path, end: int) -> list[Preferred]:
        """The pairs, rendered for the model in `source`; raises ConfigError for a pair of two prompts."""
        text = Text(source)
        if self.data is not None:
            return read_pairs(self.data, text, end)
        path = rollouts_path(self.rollouts or "", setting)
        pairs = pairs_of_rollouts(path, per_problem=self.per_problem)
        for pair in pairs:
            sides = [side.prompt_ids for side in (pair.chosen, pair.rejected)]
            if sides[0] != sides[1]:
                fix = "give each prompt a problem_id of its own, or leave the rollouts of one of them out"
                raise mixed(f"{path}: problem {pair.key}", [(pair.key, text.decode(ids)) for ids in sides], fix)
        return pairs


PAIR_FIELDS = {"chosen", "chosen_thinking", "rejected", "rejected_thinking", "weight"}
"""What a row of pairs may have beside its prompt."""


def read_pairs(path: Path, text: Text, end: int) -> list[Preferred]:
    """Read a file of pairs; `end` is the id that ends a turn.

    Raises:
        ConfigError: no such file, or nothing in it.
        RecordError: a broken line; names file, line and field.
    """
    pairs = [_pair(row, text, end, where) for where, row in rows_of(path, PAIR_FIELDS)]
    if not pairs:
        raise ConfigError(f"{path} holds no pair")
    return pairs


def pairs_of_rollouts(path: Path, *, per_problem: int | None = None) -> list[Preferred]:
    """All pairs of rollouts of one problem whose rewards differ, best against worst first.

    Raises:
        ConfigError: the file is missing, or no problem has rollouts of different reward.
    """
    by_problem: dict[str, dict[tuple[int, ...], tuple[float, Rollout]]] = {}
    for rollout in read_rollouts(path):
        if rollout.reward is not None:
            # a cut completion is worse than any finished one, whatever its shaped reward
            value = -float("inf") if rollout.truncated else rollout.reward
            by_problem.setdefault(rollout.problem_id, {}).setdefault(rollout.token_ids, (value, rollout))
    pairs: list[Preferred] = []
    for rollouts in by_problem.values():
        pairs += _ranked(list(rollouts.values()), per_problem)
    if not pairs:
        raise ConfigError(f"{path} holds no problem with rollouts of different reward; nothing to prefer")
    return pairs


def _ranked(rollouts: list[tuple[float, Rollout]], most: int | None) -> list[Preferred]:
    scores = [value for value, _ in rollouts]
    pairs = sorted(ranked_pairs(scores), key=lambda pair: scores[pair[1]] - scores[pair[0]])[:most]
    total = sum(weight for _, _, weight in pairs)
    return [
        Preferred(
            rollouts[better][1].key, _as_example(rollouts[better][1]), _as_example(rollouts[worse][1]), weight / total
        )
        for better, worse, weight in pairs
    ]


def _as_example(rollout: Rollout) -> Example:
    return Example(rollout.key, rollout.prompt_ids, rollout.token_ids)


def _pair(row: Mapping[str, Any], text: Text, end: int, where: str) -> Preferred:
    key, prompt = read_prompt(row, text, where)
    weight = read_weight(row, where)
    chosen, rejected = (_side(row, side, key, prompt, text, end, where) for side in ("chosen", "rejected"))
    if chosen.token_ids == rejected.token_ids:
        raise RecordError(f"{where}: chosen and rejected are the same")
    return Preferred(key, chosen, rejected, weight)


def _side(row: Mapping[str, Any], side: str, key: str, prompt: Prompt, text: Text, end: int, where: str) -> Example:
    answer, thinking = row.get(side), row.get(f"{side}_thinking")
    if not isinstance(answer, str) or not (thinking is None or isinstance(thinking, str)):
        raise RecordError(f"{where}: {side} must be a text, and {side}_thinking a text or absent")
    ids = completion_ids(text, prompt, thinking, answer, end, where)
    return Example(key, prompt.token_ids or (), ids, where=f"{where}, {side}")
