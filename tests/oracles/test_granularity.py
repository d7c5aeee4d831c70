"""Oracle 17 too: how many steps a child of the tree has under `verify_every`, exactly and however it is grown."""

from __future__ import annotations

from functools import partial

import pytest

from tests.oracles.tools import Budget, say
from ttc.core import Prompt, Score, Scorer
from ttc.strategies.tree import tree

STEPS = 7
TEXT = "a\n\n" * (STEPS - 1) + r"\boxed{1}"


class Looks(Scorer):
    """Writes down how many steps it was shown each time."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def score(self, prompts, on_usage):
        self.seen += [steps_of(prompt) for prompt in prompts]
        return [Score(0.5) for _ in prompts]


def steps_of(prompt: Prompt) -> int:
    return len([step for step in prompt.generated_text.split("\n\n") if step])


@pytest.mark.parametrize("budget", [None, Budget(calls=10_000), Budget(tokens=10_000)])
@pytest.mark.parametrize("policy", ["beam", "particle", "puct", "gibbs:rounds=1"])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 7, 9])
def test_a_path_is_looked_at_after_every_g_steps_and_at_its_end(every: int, policy: str, budget: Budget | None) -> None:
    looks = Looks()
    strategy = partial(tree, scorer=looks, n=1, beam_width=1, policy=policy, verify_every=every)
    answer = say([TEXT], strategy, budget=budget)
    assert looks.seen == [*range(every, STEPS, every), STEPS]
    assert answer.final == "1" and answer.usage.generated == len(TEXT) + 1  # the end of the text is a token


@pytest.mark.parametrize("every", [2, 3])
def test_the_depth_counts_looks_and_not_steps(every: int) -> None:
    looks = Looks()
    cut = say([TEXT], partial(tree, scorer=looks, n=2, beam_width=2, verify_every=every, max_depth=2))
    assert sorted(looks.seen) == [every, every, 2 * every, 2 * every] and cut.final is None
