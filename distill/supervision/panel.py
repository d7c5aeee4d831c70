"""All teachers of a run as one supervisor of the update: every rollout goes to the teacher of its domain.

A rollout without a teacher, or a teacher without a domain, is refused before anything is drawn. What each teacher cost,
and how far the student is from it, are numbers of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from distill.supervision.divergence import Divergence
from distill.supervision.reader import Opinion, Passage, TeacherReader
from train.base.rollout import Rollout
from train.update.logprobs import Compare
from ttc.core import Message
from ttc.engines.shared.tokens import Text
from ttc.errors import ConfigError, TrainingError

__all__ = ["TeacherPanel", "Verdicts"]


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
    """What the panel says of the rollouts of one step: a supervisor, and afterwards its numbers."""

    def __init__(
        self,
        opinions: Mapping[str, Opinion],
        owner: Sequence[tuple[str, int]],
        wanted: Sequence[int],
        shared: _Shared,
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
        counts = dict.fromkeys(groups, 0)
        places = []
        for name in owners:
            places.append(counts[name])
            counts[name] += 1
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
                self._note(name, numbers[0], part.start, distances)
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

    def _note(self, name: str, row: int, start: int, distances: torch.Tensor) -> None:
        # a chunk is computed again for its gradient: the same key, so it counts once
        self._told[name, row, start] = (float(distances.detach().sum()), distances.numel())


@dataclass(slots=True)
class _Layout:
    """Rollouts as their teachers read them: readings by teacher, and each rollout's (teacher, number of reading)."""

    readings: dict[str, list[Passage]] = field(default_factory=dict)
    owner: list[tuple[str, int]] = field(default_factory=list)


class TeacherPanel:
    """The teachers of a run by domain."""

    def __init__(
        self,
        readers: Mapping[str, TeacherReader],
        messages: Mapping[str, Sequence[Message]],
        thinking: bool | None,
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
        layout = self._lay(rollouts)
        logprobs: dict[tuple[str, int], torch.Tensor] = {}
        for name, readings in layout.readings.items():
            for number, values in enumerate(await self.readers[name].score(readings)):
                logprobs[name, number] = values
        return [logprobs[key] for key in layout.owner]

    async def verdicts(self, rollouts: Sequence[Rollout], divergence: Divergence) -> Verdicts:
        """What the teachers would have said in the student's place."""
        layout, shared = self._lay(rollouts), _Shared()

        def watched(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
            shared.add(student.detach(), teacher)
            return divergence(student, teacher)

        opinions = {name: await self.readers[name].compare(own, watched) for name, own in layout.readings.items()}
        return Verdicts(opinions, layout.owner, [sum(rollout.sampled) for rollout in rollouts], shared)

    async def close(self) -> None:
        """Free all teachers."""
        for reader in self.readers.values():
            await reader.close()

    def _lay(self, rollouts: Sequence[Rollout]) -> _Layout:
        layout = _Layout()
        for rollout in rollouts:
            own = layout.readings.setdefault(self.reader_of(rollout.problem_id).name, [])
            layout.owner.append((self.reader_of(rollout.problem_id).name, len(own)))
            own.append(Passage(self._prompts[rollout.problem_id], rollout.token_ids, rollout.sampled))
        return layout
