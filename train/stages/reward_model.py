"""Reward models from comparisons: Bradley-Terry on pairs, one model or an ensemble.

Christiano et al. 2017; InstructGPT (Ouyang et al. 2022, arXiv:2203.02155): -log sigmoid(r(chosen) - r(rejected)), the
pairs of one ranking sharing one unit of weight. Members of an ensemble start from different heads and see the rows in
different orders. `centre` keeps rewards around 0, as only their differences are learnt (Eisenstein et al. 2023,
arXiv:2312.09244). Models are written to `reward_model-1`, `-2`, ..; the policy passes through. Measured on held-out
prompts: the share of pairs ranked right by the mean of the members and by their worst case; before training it is one
half by chance. Cost: a forward and backward pass over both completions per member. Left out: labels of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F

from train.base.models import checkpoint_layers, turn_tokenizer
from train.base.stage import Setting, Stage, StageResult, check_file, check_model, model_of, pass_through
from train.examples.examples import check_rows, parted, within_context
from train.examples.pairs import PAIR_FIELDS, PER_PROBLEM, PairSource, Preferred
from train.measure.measure import gains
from train.offline.epochs import FitFields, fit
from train.reward_models.reward_models import (
    CLASSIFIER,
    How,
    RewardEnsemble,
    check_kind_of_head,
    joined,
    new_reward_model,
    rewards_of,
    save_scorer,
    whole_turns,
)
from train.update.update import Build
from ttc import seeds
from ttc.config.values import above, at_least, finite
from ttc.errors import ConfigError


def reward_model(
    *,
    data: str | None = None,
    rollouts: str | None = None,
    members: int = 1,
    centre: float = 0.0,
    per_problem: int | None = PER_PROBLEM,
    course: FitFields,
    build: Build,
) -> Stage:
    """Learn a reward from comparisons.

    Args:
        data: a JSON-lines file of pairs.
        rollouts: a stage of this run that recorded rollouts, such as 2-sample, or a rollouts.jsonl.
        members: reward models in the ensemble.
        centre: weight of the squared sum of both rewards, which keeps them around 0.
        per_problem: most pairs of one problem's rollouts; None is all.
        course: see `FitFields`.
        build: see `Build`; not split over processes, and the head is trained whole.
    """
    pairs = PairSource.of("reward_model", data, rollouts, per_problem)
    at_least("reward_model", 1, members=members)
    at_least("reward_model", 0, centre=centre)
    finite("reward_model", centre=centre)
    if build.shard:
        raise ConfigError("reward_model: one process trains it; leave shard out")
    above("reward_model", 0, held_out_share=course.held_out_share)  # whether it learnt to judge shows there alone
    return _RewardModel(pairs, members, centre, course, build)


@dataclass(frozen=True, slots=True)
class _RewardModel:
    source: PairSource
    members: int
    centre: float
    course: FitFields
    build: Build

    def check(self, has_model: bool) -> None:
        check_model("reward_model", has_model)
        check_file("reward_model", self.source.data)
        check_rows("reward_model", self.source.data, PAIR_FIELDS)

    def check_family(self, model: Path) -> None:
        """Raise ConfigError for a model without a head that rewards."""
        check_kind_of_head(CLASSIFIER, model)

    def run(self, setting: Setting) -> StageResult:
        source = model_of("reward_model", setting)
        tokenizer = turn_tokenizer(source)
        pairs = whole_pairs(self.source.load(setting, source, int(tokenizer.eos_token_id)), source)
        within_context("reward_model", (side for pair in pairs for side in (pair.chosen, pair.rejected)), source)
        train, held_out = parted("reward_model", pairs, self.course.held_out_share, setting)
        pad_id, stopped, sides = int(tokenizer.pad_token_id), "", list[torch.Tensor]()
        for number in range(1, self.members + 1):
            folder = setting.folder / f"reward_model-{number}"
            model, reason = self._member(number, train, held_out, pad_id, setting, source)
            stopped = reason or stopped
            save_scorer(model, tokenizer, folder, "SEQ_CLS")
            sides.append(rewards_of_sides(RewardEnsemble([model], pad_id), held_out))
            del model  # before the next one is there
        keys, chance = [pair.key for pair in held_out], [0.5] * len(held_out)
        numbers: dict[str, float] = {}
        ways: tuple[How, ...] = ("mean", "worst") if self.members > 1 else ("mean",)
        for how in ways:
            chosen, rejected = joined(torch.stack(sides), how)
            numbers |= gains(f"ranked_{how}", chance, (chosen > rejected).float().tolist(), setting.seed, keys)
        return StageResult(pass_through(setting), numbers, stopped)

    def _member(
        self, number: int, train: Sequence[Preferred], measured: Sequence[Preferred], pad_id: int, setting: Setting,
        source: Path,
    ) -> tuple[Any, str]:  # fmt: skip
        """Train one member; returns it, and why it stopped early, if it did."""
        seed = seeds.derive(setting.seed, "reward model", number) % (1 << 31)
        model = new_reward_model(source, seed, setting.device, self.build.frozen_type(source, setting.device))
        if self.build.checkpointing:
            checkpoint_layers(model)
        if self.build.lora:
            self.build.adapt(model, seed, model.score)
        optimiser = self.build.optimiser(model, self.course.schedule)
        longest = max(len(s.prompt_ids) + len(s.token_ids) for pair in train for s in (pair.chosen, pair.rejected))
        most = self.build.rows(2 * longest, setting.device)

        def update(rows: Sequence[int]) -> dict[str, float]:
            model.train()
            pairs = [train[row] for row in rows]
            total = torch.tensor([pair.weight for pair in pairs]).sum()
            gaps, loss_sum = list[float](), 0.0
            for start in range(0, len(pairs), most):
                part = pairs[start : start + most]
                loss, gap = self._loss(model, part, total, len(pairs), pad_id)
                loss.backward()
                gaps += gap.tolist()
                loss_sum += float(loss.detach())
            metrics = {"loss": loss_sum, "pair_accuracy": fmean(gap > 0 for gap in gaps)}
            return {**metrics, "margin": fmean(gaps), "grad_norm": optimiser.step()}

        def evaluate() -> dict[str, float]:
            return {"held_out_accuracy": fmean(ranked_right(RewardEnsemble([model], pad_id), measured))}

        place = setting.folder / f"member-{number}"
        place.mkdir(exist_ok=True)
        own = replace(setting, folder=place, seed=seed)
        setting.log(f"reward model {number} of {self.members}")
        _, stopped = fit(model, optimiser, len(train), update, evaluate, self.course, own)
        return model, stopped

    def _loss(
        self, model: Any, part: Sequence[Preferred], total: torch.Tensor, num: int, pad_id: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What some of an update's `num` pairs, of weight `total`, add to its loss; and their margins (P,)."""
        with self.build.computing(next(model.parameters()).device):
            scores = rewards_of(model, [*(pair.chosen for pair in part), *(pair.rejected for pair in part)], pad_id)
        chosen, rejected = scores[: len(part)], scores[len(part) :]
        weight = torch.tensor([pair.weight for pair in part], device=scores.device)
        loss = (-F.logsigmoid(chosen - rejected) * weight).sum() / total.to(scores.device)
        return loss + self.centre * (chosen + rejected).square().sum() / num, (chosen - rejected).detach()


def ranked_right(rewards: RewardEnsemble, pairs: Sequence[Preferred]) -> list[float]:
    """1 per pair whose chosen completion has the higher reward, else 0."""
    chosen, rejected = rewards_of_sides(rewards, pairs)
    return [float(value) for value in (chosen > rejected).tolist()]


def rewards_of_sides(rewards: RewardEnsemble, pairs: Sequence[Preferred]) -> torch.Tensor:
    """The rewards of the chosen and of the rejected completions: (2, P)."""
    return torch.stack([rewards.score([pair.chosen for pair in pairs]), rewards.score([p.rejected for p in pairs])])


def whole_pairs(pairs: Sequence[Preferred], folder: Path) -> list[Preferred]:
    """Both sides of every pair as `whole_turns` has them."""
    whole = whole_turns(folder)
    return [replace(pair, chosen=whole(pair.chosen), rejected=whole(pair.rejected)) for pair in pairs]
