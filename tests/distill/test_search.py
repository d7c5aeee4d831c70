"""Which draws of a search are learnt."""

from dataclasses import replace

import pytest

from distill.methods.search import search
from tests.distill.pieces import sample
from ttc.errors import ConfigError


def learnt(**fields):
    one = sample("the long way to 7", others=["7", "8", None, "7"])
    drawn = [replace(candidate, num_tokens=len(candidate.text)) for candidate in one.answer.candidates]
    one = replace(one, answer=replace(one.answer, candidates=tuple(drawn)))
    return [row.completion for row in search(**fields).rows([one], None)]  # no job: it says nothing of draws


def test_the_chosen_draw_or_all_that_agree_or_the_shortest_of_these_are_learnt():
    assert learnt() == ["the long way to 7"]
    assert learnt(agreeing=True) == ["it is 7", "the long way to 7"], "each text once, the shortest first"
    assert learnt(agreeing=True, most=1) == ["it is 7"]


@pytest.mark.parametrize("fields", [{"agreeing": True, "most": 0}, {"most": 2}])
def test_a_number_of_draws_that_means_nothing_is_refused(fields):
    with pytest.raises(ConfigError, match=r"search.most must be at least 1 and needs agreeing = true"):
        search(**fields)
