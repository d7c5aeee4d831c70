"""The ensemble: weighted means, members without a verdict, and how members are written on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ttc.core import Message, Prompt, Score, Usage, UsageSink
from ttc.errors import ConfigError, PluginError, UnknownName
from ttc.scorers.constant import constant
from ttc.scorers.ensemble import EnsembleScorer, ensemble


class Fixed:
    """Gives what it was told, for two scored tokens each."""

    def __init__(self, *scores: Score) -> None:
        self.scores, self.released = scores, list[str]()

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        on_usage(Usage(scored=2 * len(prompts)))
        return list(self.scores[: len(prompts)])

    def release(self, problem_id: str) -> None:
        self.released.append(problem_id)


PROMPT = Prompt("q", (1,), messages=(Message("user", "q"),), problem_id="p")


def run(scorer: EnsembleScorer, num: int = 1) -> tuple[list[Score], Usage]:
    usages: list[Usage] = []
    return asyncio.run(scorer.score([PROMPT] * num, usages.append)), sum(usages, Usage())


def test_values_and_steps_are_weighted_means_and_all_members_are_paid() -> None:
    one, other = Fixed(Score(0.2, (0.4, 0.2))), Fixed(Score(0.8, (0.6, 0.8)))
    (score,), usage = run(EnsembleScorer([one, other], [3, 1]))
    assert score.value == pytest.approx(0.35) and score.steps == pytest.approx((0.45, 0.35))
    assert usage.scored == 4


def test_members_that_see_other_steps_give_one_value_for_the_path() -> None:
    (score,), _ = run(EnsembleScorer([Fixed(Score(0.2, (0.4, 0.2))), Fixed(Score(0.8))]))
    assert score == Score(0.5)


def test_a_silent_member_silences_all_or_is_left_out_by_the_stated_rule() -> None:
    members = [Fixed(Score(None, note="cut off"), Score(None)), Fixed(Score(0.8), Score(None))]
    (score, _), _ = run(EnsembleScorer(members), 2)
    assert score.value is None and "member 0: cut off" in score.note
    (score, none), _ = run(EnsembleScorer(members, [9, 1], "renormalise"), 2)
    assert score.value == 0.8 and none.value is None


def test_a_member_is_read_as_a_scorer_alone_is() -> None:
    members = [Fixed(Score(float("nan"))), Fixed(Score(0.8))]
    (score,), _ = run(EnsembleScorer(members, missing="renormalise"))
    assert score.value == 0.8
    (score,), _ = run(EnsembleScorer(members))
    assert score.value is None and "member 0: nan is not a finite score" in score.note
    with pytest.raises(PluginError, match="gave 1 scores for 2 prompts"):
        run(EnsembleScorer([Fixed(Score(0.8)), constant()]), 2)


def test_releasing_reaches_every_member() -> None:
    members = [Fixed(), Fixed()]
    EnsembleScorer(members).release("p")
    assert [member.released for member in members] == [["p"], ["p"]]


def test_members_are_made_by_name_with_their_parameters() -> None:
    scorer = ensemble(members=("constant", "likelihood?measure=self_certainty"), weights=(1.0, 3.0))
    path = Prompt("qa", (1, 2), rendered_len=1, rendered_chars=1, logprobs=(-1.0,), certainty=(2.0,), problem_id="p")
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    assert score.value == pytest.approx((0.5 + 3 * 2.0) / 4)


def test_what_cannot_be_averaged_is_refused_before_any_scoring() -> None:
    with pytest.raises(ConfigError, match="2 weights for 1 members"):
        ensemble(members=("constant",), weights=(1.0, 2.0))
    with pytest.raises(ConfigError, match="0 members"):
        ensemble(members=())
    with pytest.raises(ConfigError, match="> 0"):
        ensemble(members=("constant",), weights=(0.0,))
    with pytest.raises(UnknownName, match="did you mean 'constant'"):
        ensemble(members=("constent",))
    with pytest.raises(ConfigError, match="no parameter 'mesure'"):
        ensemble(members=("likelihood?mesure=x",))
    with pytest.raises(ConfigError, match="likelihood takes no model"):
        ensemble(members=("likelihood:x",))
