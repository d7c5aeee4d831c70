"""All teachers of a run as one supervisor of the update, and the update: every rollout goes to its domain's teacher.

A rollout without a teacher, or a teacher without a domain, is refused before anything is drawn. What each teacher cost,
and how far the student is from it, are numbers of their own. What teachers say becomes weights of the update rule:

    divergence over the vocabulary     kl weights, with the panel as the update's supervisor
    sampled                            advantage = log q - log p at the sampled token, policy-gradient weights
    reward                             its group-relative advantage is added, weighed; cut rollouts count in the mean

At the very first update a teacher that has the student's own weights must be 0 nats away: a self-test of templates,
ids, positions, masks and dropout at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from distill.supervision.divergence import Divergence, Kind, advantage, make_divergence
from distill.supervision.reader import LocalReader, Opinion, Passage, TeacherReader
from train.base.rollout import Rollout
from train.rl.loop import outcome_of
from train.update.batch import TokenBatch, rollout_batch, token_weights
from train.update.logprobs import Compare
from train.update.update import Updater
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, TrainingError


@dataclass(slots=True)
class _Shared:
    """Probability that two distributions share, summed over tokens; a chunk that is computed twice counts twice."""

    total: float = 0.0
    num: int = 0

    def add(self, student: torch.Tensor, teacher: torch.Tensor) -> None:
        """Add the rows of two log-probabilities (n, V)."""
        self.total += float(torch.minimum(student, teacher).exp().sum())
        self.num += student.shape[0]


class Verdicts:
    """The panel's supervision of one step's rollouts: a supervisor, and afterwards its numbers."""

    def __init__(
        self, opinions: Mapping[str, Opinion], owner: Sequence[tuple[str, int]], wanted: Sequence[int], shared: _Shared
    ) -> None:
        """`owner` names each rollout's teacher and its number among that teacher's readings."""
        self._opinions, self._owner, self._wanted, self._shared = opinions, owner, wanted, shared
        self._told: dict[tuple[str, int, int], tuple[float, int]] = {}

    def supervise(self, rows: torch.Tensor, mask: torch.Tensor) -> Compare:
        """See `train.update.update.Supervisor`."""
        numbers = rows.tolist()
        groups: dict[str, list[int]] = {}
        for number in numbers:
            groups.setdefault(self._owner[number][0], []).append(number)
        judges = {name: self._opinions[name]([self._owner[n][1] for n in own]) for name, own in groups.items()}
        # positions of all rows, row by row: whose they are, and which they are among their teacher's
        owners = [name for number in numbers for name in [self._owner[number][0]] * self._wanted[number]]
        counters = {name: itertools.count() for name in groups}
        places = [next(counters[name]) for name in owners]
        if len(owners) != int(mask.sum()):
            raise TrainingError("the batch and the teachers' readings do not count the same tokens")

        def compare(student: torch.Tensor, part: slice) -> torch.Tensor:
            total = student.new_zeros(student.shape[0])
            for name, judge in judges.items():
                mine = [i for i, owner in enumerate(owners[part]) if owner == name]
                if not mine:
                    continue
                index = torch.tensor(mine, device=student.device)
                own = torch.tensor([places[part.start + i] for i in mine], device=student.device)
                distances = judge(student[index], own)
                total = total.index_copy(0, index, distances)
                # a chunk is computed again for its gradient: the same key, so it counts once
                self._told[name, numbers[0], part.start] = (float(distances.detach().sum()), distances.numel())
            return total

        return compare

    def overlap(self) -> float:
        """Mean over tokens of the probability that student and teachers share: 1 where they are equal."""
        return self._shared.total / max(self._shared.num, 1)

    def distances(self) -> dict[str, float]:
        """Mean divergence from each teacher, nats per token."""
        sums: dict[str, list[tuple[float, int]]] = {}
        for (name, _, _), pair in self._told.items():
            sums.setdefault(name, []).append(pair)
        return {name: sum(a for a, _ in pairs) / sum(n for _, n in pairs) for name, pairs in sums.items()}


class TeacherPanel:
    """The teachers of a run by domain."""

    def __init__(
        self, readers: Mapping[str, TeacherReader], messages: Mapping[str, Sequence[Message]], thinking: bool | None
    ) -> None:
        """`readers` by domain, "" for every other one; `messages` by problem id (DOMAIN/ID where there are domains)."""
        self.readers = {reader.name: reader for reader in readers.values()}
        self._by_domain, self._messages, self._thinking = readers, messages, thinking
        self._prompts: dict[str, tuple[int, ...]] = {}

    def reader_of(self, problem_id: str) -> TeacherReader:
        """The teacher of a problem's domain; raises ConfigError when it has none."""
        domain = problem_id.partition("/")[0]
        reader = self._by_domain.get(domain, self._by_domain.get(""))
        if reader is None:
            raise ConfigError(f"no teacher for the domain {domain!r} of {problem_id}: name one, DOMAIN=TEACHER")
        return reader

    def check(self, student: Text) -> None:
        """Refuse, before anything is drawn, problems without a teacher and teachers that would read them wrongly."""
        for name, messages in self._messages.items():
            reader = self.reader_of(name)
            ours, theirs = student.render(messages, self._thinking), reader.render(messages, self._thinking)
            if ours.think_state != theirs.think_state:
                raise ConfigError(
                    f"teacher {reader.name}: its template leaves the thinking of {name} {theirs.think_state}, the "
                    f"student's {ours.think_state}: give both the same template, or set thinking to on or off"
                )
            if theirs.token_ids is None:
                raise ConfigError(f"teacher {reader.name} has no token ids: give its engine a tokenizer folder")
            self._prompts[name] = theirs.token_ids

    async def scores(self, rollouts: Sequence[Rollout]) -> list[torch.Tensor]:
        """The teachers' log-probabilities of each rollout's sampled tokens."""
        readings, owner = self._lay(rollouts)
        logprobs = {name: await self.readers[name].score(own) for name, own in readings.items()}
        return [logprobs[name][number] for name, number in owner]

    async def verdicts(self, rollouts: Sequence[Rollout], divergence: Divergence) -> Verdicts:
        """The teachers' log-probabilities in the student's place."""
        (readings, owner), shared = self._lay(rollouts), _Shared()

        def watched(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
            shared.add(student.detach(), teacher)
            return divergence(student, teacher)

        opinions = {name: await self.readers[name].compare(own, watched) for name, own in readings.items()}
        return Verdicts(opinions, owner, [sum(rollout.sampled) for rollout in rollouts], shared)

    async def close(self) -> None:
        """Free all teachers."""
        for reader in self.readers.values():
            await reader.close()

    def _lay(self, rollouts: Sequence[Rollout]) -> tuple[dict[str, list[Passage]], list[tuple[str, int]]]:
        """The readings of each teacher; for each rollout its teacher and its number among that teacher's readings."""
        readings: dict[str, list[Passage]] = {}
        owner = []
        for rollout in rollouts:
            name = self.reader_of(rollout.problem_id).name
            own = readings.setdefault(name, [])
            owner.append((name, len(own)))
            own.append(Passage(self._prompts[rollout.problem_id], rollout.token_ids, rollout.sampled))
        return readings, owner


SELF_TEST = 1e-4
"""Most nats per token between a teacher and a student of the same weights: beyond it they are read differently."""

ROUNDED = 0.02
"""The same where one of them, or the student's engine, computes in bf16 (`benchmarks.bf16_rounding`: 0.017 at most)."""


@dataclass(frozen=True, slots=True)
class Learner:
    """Turns rollouts into an update; `learn` is a `train.rl.loop.Learn`. `rounded`: some part computes in bf16."""

    panel: TeacherPanel
    updater: Updater
    pad_id: int
    kind: Kind
    beta: float
    reward_weight: float
    mask_truncated: bool
    rounded: bool = False

    async def learn(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Update the student; returns nats a token, shares, tokens read. Raises TrainingError by the self-test."""
        places = [
            place
            for place, rollout in enumerate(rollouts)
            if any(rollout.sampled) and not (self.mask_truncated and rollout.truncated)
        ]
        if not places:
            return {"updated": 0.0, "kept": 0.0}
        equal = self._equal()
        before = self._read()
        # a teacher needs no verdict: rollouts without one are learnt from too
        whole = rollout_batch([replace(rollout, reward=rollout.reward or 0.0) for rollout in rollouts], self.pad_id)
        # a rollout that is not learnt from still counts in its group's mean
        batch = replace(whole, advantages=self._reward(rollouts, whole)).rows(torch.tensor(places))
        usable = [rollouts[place] for place in places]
        step = self._by_score if self.kind == "sampled" else self._by_vocabulary
        metrics, distances = await step(usable, batch)
        _check(equal, distances, ROUNDED if self.rounded else SELF_TEST)
        return {
            **metrics,
            "updated": 1.0,
            "kept": len(usable) / len(rollouts),
            **{f"divergence/{name}": value for name, value in distances.items()},
            **{f"teacher_tokens/{name}": float(read - before[name]) for name, read in self._read().items()},
        }

    async def _by_vocabulary(
        self, rollouts: Sequence[Rollout], batch: TokenBatch
    ) -> tuple[dict[str, float], Mapping[str, float]]:
        weights = self._weights(batch)
        ready = replace(batch, kl=weights, pg=weights if self.reward_weight else batch.pg)
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
        ready = replace(batch, advantages=gain + batch.advantages, pg=self._weights(batch))
        metrics = self.updater.step(ready)
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
        outcome = outcome_of(rollouts, batch.mask, batch.ids[:, 1:])
        return self.reward_weight * self.updater.objective.advantage(outcome) * batch.mask

    def _equal(self) -> list[str]:
        """Names of teachers that have the student's weights, before the first update."""
        if self.updater.optimiser.taken:
            return []
        readers = self.panel.readers.items()
        return [name for name, own in readers if isinstance(own, LocalReader) and own.same_as(self.updater.model)]

    def _read(self) -> dict[str, int]:
        """Tokens that each teacher has read so far."""
        return {name: reader.usage.prompt + reader.usage.scored for name, reader in self.panel.readers.items()}


def _check(equal: Sequence[str], distances: Mapping[str, float], limit: float) -> None:
    for name in equal:
        if name in distances and not abs(distances[name]) <= limit:
            raise TrainingError(
                f"self-test: teacher {name} has the student's own weights, yet is {distances[name]:.3g} nats per token "
                f"away (limit {limit:g}): the two render prompts differently, or the student has dropout"
            )
