"""One update of on-policy distillation: from rollouts and what teachers say of them to weights of the update rule.

    divergence over the vocabulary     kl weights, with the panel as the update's supervisor
    sampled                            advantage = log q - log p at the sampled token, policy-gradient weights
    reward                             its group-relative advantage is added, weighed

At the very first update a teacher that has the student's own weights must be 0 nats away: a self-test of templates,
ids, positions, masks and dropout at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from distill.supervision.divergence import Kind, advantage, make_divergence
from distill.supervision.panel import TeacherPanel
from distill.supervision.reader import LocalReader
from train.base.rollout import Rollout
from train.rl.loop import outcome_of
from train.update.batch import TokenBatch, rollout_batch, token_weights
from train.update.update import Updater
from ttc.errors import TrainingError

SELF_TEST = 1e-4
"""Most nats per token between a teacher and a student of the same weights: beyond it the two are not read alike."""


@dataclass(frozen=True, slots=True)
class Learner:
    """What turns rollouts into an update; `learn` is a `train.rl.loop.Learn`."""

    panel: TeacherPanel
    updater: Updater
    pad_id: int
    kind: Kind
    beta: float
    reward_weight: float
    mask_truncated: bool

    async def learn(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Update the student; returns metrics: nats per token, shares, tokens that teachers read.

        Raises:
            TrainingError: the self-test failed.
        """
        usable = [rollout for rollout in rollouts if any(rollout.sampled)]
        usable = [rollout for rollout in usable if not (self.mask_truncated and rollout.truncated)]
        if not usable:
            return {"updated": 0.0, "kept": 0.0}
        equal = self._equal()
        before = self._read()
        # a teacher needs no verdict: a rollout without one is learnt from too
        batch = rollout_batch([replace(rollout, reward=rollout.reward or 0.0) for rollout in usable], self.pad_id)
        step = self._by_score if self.kind == "sampled" else self._by_vocabulary
        metrics, distances = await step(usable, batch)
        _check(equal, distances)
        return {
            **metrics,
            "updated": 1.0,
            "kept": len(usable) / len(rollouts),
            "not_finite": float(not math.isfinite(metrics["grad_norm"])),
            **{f"divergence/{name}": value for name, value in distances.items()},
            **{f"teacher_tokens/{name}": float(read - before[name]) for name, read in self._read().items()},
        }

    async def _by_vocabulary(
        self, rollouts: Sequence[Rollout], batch: TokenBatch
    ) -> tuple[dict[str, float], Mapping[str, float]]:
        weights = self._weights(batch)
        ready = replace(batch, kl=weights)
        if self.reward_weight:
            ready = replace(ready, advantages=self._reward(rollouts, batch), pg=weights)
        verdicts = await self.panel.verdicts(rollouts, make_divergence(self.kind, self.beta))
        metrics = self.updater.step(ready, verdicts.supervise)
        return {**metrics, "overlap": verdicts.overlap()}, verdicts.distances()

    async def _by_score(
        self, rollouts: Sequence[Rollout], batch: TokenBatch
    ) -> tuple[dict[str, float], Mapping[str, float]]:
        scores = await self.panel.scores(rollouts)  # a tensor (sampled tokens,) each
        # (R, T); the masked places are the sampled tokens in row order, as `scores` has them
        teacher = torch.zeros_like(batch.engine).masked_scatter(batch.mask, torch.cat(scores))
        gain = torch.where(batch.mask, advantage(batch.engine, teacher), 0.0)
        total = gain + self._reward(rollouts, batch)  # (R, T)
        metrics = self.updater.step(replace(batch, advantages=total, pg=self._weights(batch)))
        gaps: dict[str, list[torch.Tensor]] = {}
        for row, rollout in enumerate(rollouts):
            name = self.panel.reader_of(rollout.problem_id).name
            gaps.setdefault(name, []).append(-gain[row][batch.mask[row]])
        distances = {name: float(torch.cat(own).mean()) for name, own in gaps.items()}
        return {**metrics, "divergence": float(-gain.sum() / batch.mask.sum())}, distances

    def _weights(self, batch: TokenBatch) -> torch.Tensor:
        objective = self.updater.objective
        return token_weights(batch.mask, objective.normaliser, objective.max_tokens)

    def _reward(self, rollouts: Sequence[Rollout], batch: TokenBatch) -> torch.Tensor:
        """Weighted advantages (R, T) of the verifier's rewards; 0 without them."""
        if not self.reward_weight:
            return torch.zeros(batch.mask.shape)
        return self.reward_weight * self.updater.objective.advantage(outcome_of(rollouts, batch.mask)) * batch.mask

    def _equal(self) -> list[str]:
        """Names of teachers that have the student's weights, before the first update."""
        if self.updater.optimiser.taken:
            return []
        readers = self.panel.readers.items()
        return [name for name, own in readers if isinstance(own, LocalReader) and own.same_as(self.updater.model)]

    def _read(self) -> dict[str, int]:
        """Tokens that each teacher has read so far."""
        return {name: reader.usage.prompt + reader.usage.scored for name, reader in self.panel.readers.items()}


def _check(equal: Sequence[str], distances: Mapping[str, float]) -> None:
    for name in equal:
        if name in distances and not abs(distances[name]) <= SELF_TEST:
            raise TrainingError(
                f"self-test: teacher {name} has the student's own weights, yet is {distances[name]:.3g} nats per token "
                f"away (limit {SELF_TEST:g}): the two render prompts differently, or the student has dropout"
            )
