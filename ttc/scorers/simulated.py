"""The process-reward model of the `simulated` engine: the latent state plus seeded noise along the path.

A path is on track while no step failed. `noise` 0 is a perfect scorer; otherwise the score is
sigmoid(signal * z + noise * eta) with z = +1 / -1 and eta an AR(1) chain (rho 0.8) along the steps, so that siblings
share part of their error. Randomness is keyed by the path's text, never by time. Costs one scored token per new token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from ttc import seeds
from ttc.core import Price, Prompt, Score, Usage, UsageSink
from ttc.engines.simulated import DELIMITER
from ttc.errors import ConfigError

RHO = 0.8


class SimulatedScorer:
    """See the module docstring."""

    def __init__(self, signal: float, noise: float, seed: int) -> None:
        """`signal` and `noise` are in logits; `seed` keys the noise."""
        self._signal, self._noise, self._seed = signal, noise, seed
        self._seen: dict[str, set[tuple[int, ...]]] = {}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of every prompt."""
        return [self._score(prompt, on_usage) for prompt in prompts]

    def price(self, prompt: Prompt) -> Price:
        """The tokens of `prompt` that were not scored yet, and each new one."""
        ids = prompt.generated_ids
        return Price(len(ids) - self._known(prompt.problem_id, ids), 1)

    def _known(self, problem_id: str, ids: tuple[int, ...]) -> int:
        seen = self._seen.setdefault(problem_id, set())
        return next((n for n in range(len(ids), 0, -1) if ids[:n] in seen), 0)

    def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        text = prompt.generated_text
        steps = [step for step in text.split(DELIMITER) if step]
        ids = prompt.generated_ids
        known = self._known(prompt.problem_id, ids)
        self._seen[prompt.problem_id].add(ids)
        on_usage(Usage(scored=len(ids) - known))
        values, eta, good = [], 0.0, True
        for index, step in enumerate(steps):
            prefix = DELIMITER.join(steps[: index + 1])
            good = good and not step.startswith("b")
            if self._noise == 0:
                values.append(1.0 if good else 0.0)
                continue
            u = seeds.uniform(seeds.derive(self._seed, prompt.problem_id, prefix), 0)
            fresh = NormalDist().inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
            eta = fresh if index == 0 else RHO * eta + math.sqrt(1 - RHO**2) * fresh
            logit = (self._signal if good else -self._signal) + self._noise * eta
            values.append(1 / (1 + math.exp(-logit)))
        if not values:
            return Score(None, note="no step yet")
        return Score(values[-1], tuple(values))

    def release(self, problem_id: str) -> None:
        """Forget what was scored for a problem."""
        self._seen.pop(problem_id, None)


def simulated(model: str | None = None, *, signal: float = 1.5, noise: float = 0.0, seed: int = 0) -> SimulatedScorer:
    """Score paths of the `simulated` engine.

    Args:
        model: must be absent.
        signal: logits between on track and off track, halved.
        noise: standard deviation of the noise in logits; 0 is perfect.
        seed: keys the noise.
    """
    if model is not None:
        raise ConfigError("scorer simulated takes no model; set signal and noise instead")
    if noise < 0:
        raise ConfigError(f"noise must be >= 0, got {noise}")
    return SimulatedScorer(signal, noise, seed)
