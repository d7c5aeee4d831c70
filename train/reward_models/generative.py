"""A generative verifier as the reward: it writes a critique of every answer, and the reward is how many approve.

Zhang et al. 2024, "Generative Verifiers" (arXiv:2408.15240), the form that reasons before its verdict (GenRM-CoT): a
language model writes several critiques, each ends in a verdict, and the score is the share of verdicts that approve;
critiques as rewards also in Bai et al. 2022 (arXiv:2212.08073). The judge may be any model: a stage of this run, the
base itself, a folder. It sees problem and answer, neither thinking nor key. A critique that was cut has no vote, and a
rollout without a vote no reward. What was written about it stays in the rollout. Cost: `critiques` generations an
answer, of equal answers to one problem once; the judge stays in memory. Left out: training the judge (the stages `sft`
and `verifier_lm` do), averaging its probability of the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from evals.task import Item
from train.base.rollout import Collector, Rollout
from train.base.stage import Setting, check_form
from train.measure.measure import open_engine
from train.reward_models.reward_models import model_folder
from ttc.config.values import above, at_least
from ttc.core import Message, Problem
from ttc.errors import ConfigError
from ttc.seeds import derive

ASK = """Request:
{prompt}

Answer:
{answer}

Criticise the answer step by step. End with one line: "Verdict: right" or "Verdict: wrong"."""
APPROVES = r"Verdict: right\W*$"


@dataclass(frozen=True, slots=True)
class CritiqueSource:
    """Which model criticises, how it is asked, what approves, how many critiques of how many tokens, their weight."""

    name: str
    ask: str
    approves: str
    critiques: int
    max_tokens: int
    weight: float

    def __post_init__(self) -> None:
        """Refuse a question without its parts, a pattern that is none, and a weight that adds nothing or turns it."""
        at_least("verifier_lm", 1, critiques=self.critiques, critique_tokens=self.max_tokens)
        check_form("verifier_lm: critique_ask", self.ask, ("prompt", "answer"))
        try:
            re.compile(self.approves)
        except re.error as exc:
            raise ConfigError(f"verifier_lm: critique_approves is not a valid pattern: {exc}") from exc
        above("verifier_lm", 0, critique_weight=self.weight)

    def load(self, setting: Setting, prompts: Mapping[str, str]) -> GenerativeReward:
        """Open the model; `prompts` are what problems say, by id. Raises ConfigError where there is no model."""
        engine = open_engine(model_folder("verifier_lm", self.name, setting), setting)
        seed = derive(setting.seed, "critique")
        return GenerativeReward(Collector.plain(engine, self.critiques, self.max_tokens, seed), self, prompts)


class GenerativeReward:
    """Criticises rollouts; see `train.rollouts.rewards.Reviewer`."""

    def __init__(self, collector: Collector, source: CritiqueSource, prompts: Mapping[str, str]) -> None:
        self._collector, self._source, self._prompts = collector, source, prompts

    async def add(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """The rollouts with a critique each, its share of approval among the parts, and that in the reward."""
        questions = [self._question(rollout) for rollout in rollouts]
        distinct = list(dict.fromkeys(questions))
        items = [Item(Problem(text, (Message("user", text),), "exact"), None) for text in distinct]
        critiques: dict[str, list[Rollout]] = {text: [] for text in distinct}
        for critique in await self._collector.collect(items, step):
            critiques[critique.problem_id].append(critique)
        pairs = zip(rollouts, questions, strict=True)
        return [self._with(rollout, critiques[question]) for rollout, question in pairs]

    async def close(self) -> None:
        """Close the judge's engine."""
        await self._collector.engine.close()

    def _question(self, rollout: Rollout) -> str:
        return self._source.ask.format(prompt=self._prompts[rollout.problem_id], answer=rollout.text)

    def _with(self, rollout: Rollout, critiques: Sequence[Rollout]) -> Rollout:
        votes = [bool(re.search(self._source.approves, one.text)) for one in critiques if not one.truncated]
        row = replace(rollout, critique="\n---\n".join(one.text for one in critiques))
        if rollout.reward is None or not votes:
            return replace(row, reward=None)
        share = fmean(votes)
        reward = rollout.reward + self._source.weight * share
        return replace(row, reward=reward, parts={**rollout.parts, "verifier_lm": share})
