"""Effect 8: best-of-n levels off at the precision of its verifier."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.effects.common import SEED, Effect, at_k, pool, problems
from ttc import seeds
from ttc.core import Prompt, Score, Usage, UsageSink
from ttc.engines.simulated import GOOD, last_state


class Binary:
    """A verifier of finished answers with known rates of error; keyed by the text."""

    def __init__(self, true_positive: float, false_positive: float) -> None:
        self._rates = {True: true_positive, False: false_positive}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Accept or reject each finished answer."""
        for prompt in prompts:
            on_usage(Usage(scored=len(prompt.generated_ids)))
        return [Score(float(self._accepts(prompt))) for prompt in prompts]

    def _accepts(self, prompt: Prompt) -> bool:
        good = last_state(prompt.generated_text) == GOOD
        return seeds.uniform(seeds.derive(SEED, "binary", prompt.problem_id, prompt.path), 0) < self._rates[good]

    def release(self, problem_id: str) -> None:
        """Do nothing."""


def verifier_ceiling(num: int) -> Effect:
    """Measure it on so many problems a run."""
    effect = Effect("an imperfect verifier is a ceiling: best-of-n levels off at its precision")
    p, tpr, fpr = 0.2, 0.8, 0.1
    votes = pool(problems(4 * num, None), Binary(tpr, fpr), 64, p=p, steps=1)
    accept = p * tpr + (1 - p) * fpr
    for n in (1, 4, 16, 64):
        missed = (1 - accept) ** n
        law = (1 - missed) * p * tpr / accept + missed * p * (1 - tpr) / (1 - accept)
        cell = at_k("best-of-n", votes, "best", n, law)
        effect.cells.append(cell)
        effect.agree(cell)
    return effect
