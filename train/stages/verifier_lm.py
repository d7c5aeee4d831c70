"""Generative verifiers: a language model that says whether an answer is right, scored by the probability that it does.

Zhang et al. 2024, "Generative Verifiers" (arXiv:2408.15240), the direct form: behind problem and answer stands a
question token, and the model is fine-tuned to say the good word or the bad one. Unlike a classification head it stays a
language model, so right answers can be imitated at the same time (`imitation`), which that paper found to help judging.
Rows are judged rollouts of a run; verdicts that are none are left out. Written to `verifier`, whose config.json tells
the scorer `prm` how to read it: `--scorer prm:FOLDER` gives P(good). The policy passes through. Measured on held-out
problems: the share judged rightly at one half, and the chance that a right answer scores above a wrong one, before and
after. Cost: a forward and backward pass per answer. Left out: reasoning before the verdict, which a scorer would have
to generate: fine-tune on the questions of the scorer `judge` for that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from evals.numbers.step_metrics import Judged, ranking
from train.advantages.batch import batch as batch_advantage
from train.base.models import save_model, turn_tokenizer
from train.base.optimiser import Optimiser
from train.base.rollout import read_rollouts
from train.base.stage import Setting, Stage, StageResult, check_model, model_of, pass_through, rollouts_path
from train.examples.examples import Example, parted
from train.examples.imitation import imitation_batch
from train.losses.ppo import ppo
from train.measure.measure import gains
from train.offline.epochs import FitFields, fit
from train.reward_models.step_model import StepRow, new_step_model
from train.stages.prm import judgements
from train.update.update import Objective, Updater
from ttc import seeds
from ttc.config.values import above, at_least, finite
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.layouts import RewardTokenizer

_NEVER = "\x00"
"""A step delimiter that no answer holds: the whole answer is one step."""


def verifier_lm(
    *, rollouts: str, ask: str, good: str, bad: str, imitation: float = 0.0, balanced: bool = True, course: FitFields
) -> Stage:
    """Learn to say whether an answer is right.

    Args:
        rollouts: a stage of this run that recorded judged rollouts, such as 2-sample, or a rollouts.jsonl.
        ask: the token after an answer that asks for the verdict.
        good: the token that says right.
        bad: the token that says wrong.
        imitation: weight of imitating right answers, beside saying verdicts.
        balanced: learn from as many right as wrong answers, the rarer kind repeated.
        course: see `FitFields`.
    """
    at_least("verifier_lm", 0, imitation=imitation)
    finite("verifier_lm", imitation=imitation)
    if len({ask, good, bad}) < 3:
        raise ConfigError(f"verifier_lm: ask, good and bad must be three different tokens, got {ask}, {good}, {bad}")
    above("verifier_lm", 0, held_out_share=course.held_out_share)  # whether it learnt to judge shows there alone
    return _VerifierLm(rollouts, (ask, good, bad), imitation, balanced, course)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A judged answer: the ids of prompt and answer without the end of the turn, and whether it is right."""

    key: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    right: bool


@dataclass(frozen=True, slots=True)
class _VerifierLm:
    rollouts: str
    words: tuple[str, str, str]
    imitation: float
    balanced: bool
    course: FitFields

    def check(self, has_model: bool) -> None:
        check_model("verifier_lm", has_model)

    def run(self, setting: Setting) -> StageResult:
        source = model_of("verifier_lm", setting)
        tokenizer = turn_tokenizer(source)
        pad_id, end = int(tokenizer.pad_token_id), int(tokenizer.eos_token_id)
        ask, good, bad = (RewardTokenizer(source).single("verifier_lm", word) for word in self.words)
        answers = _answers(rollouts_path(self.rollouts, setting), Text(source).eos_ids)
        train, held_out = parted("verifier_lm", answers, self.course.held_out_share, setting)
        train = _evened(train, setting.seed) if self.balanced else train
        model = new_step_model(source, "token", _NEVER, self.words[1:], 0, setting.device)
        questions = [
            StepRow(a.key, ids := (*a.prompt_ids, *a.token_ids, ask), (len(ids) - 1,), (float(a.right),))
            for a in held_out
        ]
        before = judgements(model, questions, pad_id)
        optimiser = Optimiser(model.network, self.course.schedule)
        updater = Updater(model.network, optimiser, Objective(ppo(), batch_advantage()))
        longest = max(len(answer.token_ids) for answer in train) + 1

        def update(rows: Sequence[int]) -> dict[str, float]:
            part = [train[row] for row in rows]
            examples = [Example(a.key, (*a.prompt_ids, *a.token_ids, ask), (good if a.right else bad,)) for a in part]
            if self.imitation:
                examples += [Example(a.key, a.prompt_ids, (*a.token_ids, end), self.imitation) for a in part if a.right]
            metrics = updater.step(imitation_batch(examples, pad_id, "sequence", longest))
            # without the entropy, whose rise is an alarm in a policy: one that never said a verdict was sure of others
            return {name: metrics[name] for name in ("loss", "grad_norm")}

        def evaluate() -> dict[str, float]:
            return {"held_out_accuracy": fmean(_right(judgements(model, questions, pad_id)))}

        last, stopped = fit(model.network, optimiser, len(train), update, evaluate, self.course, setting)
        after = judgements(model, questions, pad_id)
        model.network.config.ttc_prm = {**model.reading, "step_tag": self.words[0]}
        save_model(model.network, tokenizer, setting.folder / "verifier")
        keys = [answer.key for answer in held_out]
        ranks = {"ranking_before": ranking(before), "ranking": ranking(after)}
        ranks = {name: value for name, value in ranks.items() if value == value}  # both kinds are needed to rank them
        numbers = {**last, **ranks, **gains("judged_right", _right(before), _right(after), setting.seed, keys)}
        return StageResult(pass_through(setting), numbers, stopped)


def _answers(path: Path, ends: Sequence[int]) -> list[_Answer]:
    """The judged and finished rollouts, each text once per problem, without what it stopped at, one of `ends`."""
    answers: dict[tuple[str, tuple[int, ...]], _Answer] = {}
    for rollout in read_rollouts(path):
        if rollout.verdict is None or rollout.reward is None or rollout.truncated:
            continue
        ids = rollout.token_ids[:-1] if rollout.token_ids[-1] in ends else rollout.token_ids
        answer = _Answer(rollout.key, rollout.prompt_ids, ids, rollout.verdict.correct)
        answers.setdefault((rollout.problem_id, ids), answer)
    if len({answer.right for answer in answers.values()}) < 2:
        raise ConfigError(f"{path} must hold both right and wrong answers; sample at another difficulty")
    return list(answers.values())


def _evened(answers: Sequence[_Answer], seed: int) -> list[_Answer]:
    """The rarer kind repeated until both are equally many, in mixed order."""
    kinds = [[answer for answer in answers if answer.right is right] for right in (True, False)]
    if not all(kinds):
        return list(answers)
    most = max(map(len, kinds))
    rows = [kind[place % len(kind)] for kind in kinds for place in range(most)]
    random.Random(seeds.derive(seed, "evened")).shuffle(rows)
    return rows


def _right(rows: Sequence[Judged]) -> list[float]:
    """1 per answer on the right side of one half."""
    return [float(((row.scores or (0.0,))[0] >= 0.5) == (row.labels[0] == 1.0)) for row in rows]
