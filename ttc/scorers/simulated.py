"""The process-reward model of the `simulated` engine: the latent state plus noise along the path.

`noise` 0 is a perfect scorer; otherwise the score of a step is sigmoid(signal * z + noise * eta), with z = +1 on track,
-1 off track and +2 where the path deceives, and eta an AR(1) chain (rho 0.8) along the steps, so that siblings share
part of their error. A step of a thinker counts as on track once the answer is found. Like a trained model it is
deterministic: the noise is a function of the problem and of the path's text, which depends on the seed of the run.
Costs one scored token per new token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

from ttc import seeds
from ttc.core import Path, Price, Prompt, Score, Usage, UsageSink
from ttc.engines.simulated import DECEPTIVE, DELIMITER, FOUND, GOOD, SEARCHING, WRONG
from ttc.errors import ConfigError

RHO = 0.8
_Z: Mapping[str, float] = MappingProxyType({GOOD: 1.0, FOUND: 1.0, WRONG: -1.0, SEARCHING: -1.0, DECEPTIVE: 2.0})
_PRESETS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"perfect": (1.5, 0.0), "good": (1.5, 1.0), "hackable": (1.5, 1.0), "weak": (0.5, 1.5)}
)
_NORMAL = NormalDist()


class SimulatedScorer:
    """See the module docstring."""

    def __init__(self, signal: float, noise: float) -> None:
        """`signal` and `noise` are in logits."""
        self._signal, self._noise = signal, noise
        self._seen: dict[str, dict[Path, tuple[int, ...]]] = {}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of every prompt."""
        return [self._score(prompt, on_usage) for prompt in prompts]

    def price(self, prompt: Prompt) -> Price:
        """The tokens of `prompt` that were not scored yet, and each new one."""
        ids = prompt.generated_ids
        return Price(len(ids) - self._known(prompt, ids), 1)

    def _known(self, prompt: Prompt, ids: tuple[int, ...]) -> int:
        """Tokens that were scored on the way to this place; equal text at other places would depend on the schedule."""
        seen, path = self._seen.setdefault(prompt.problem_id, {}), prompt.path
        above = (seen.get(path[:size], ()) for size in range(len(path), -1, -1))
        return next((len(before) for before in above if before and ids[: len(before)] == before), 0)

    def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        text = prompt.generated_text
        steps = [step for step in text.split(DELIMITER) if step]
        ids = prompt.generated_ids
        scored_before = self._known(prompt, ids)
        self._seen[prompt.problem_id][prompt.path] = ids
        on_usage(Usage(scored=len(ids) - scored_before))
        values, eta, state = [], 0.0, ""
        for index, step in enumerate(steps):
            state = step[0] if step[0] in _Z else state  # the boxed answer has the state in which the path ended
            z = _Z.get(state, 1.0)
            if self._noise == 0:
                values.append(1.0 if z == 1.0 else 0.0)
                continue
            prefix = DELIMITER.join(steps[: index + 1])
            u = seeds.uniform(seeds.derive(0, prompt.problem_id, prefix), 0)  # 0 as in the engine's own hashes
            fresh = _NORMAL.inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
            eta = fresh if index == 0 else RHO * eta + math.sqrt(1 - RHO**2) * fresh
            values.append(1 / (1 + math.exp(-(self._signal * z + self._noise * eta))))
        if not values:
            return Score(None, note="no step yet")
        return Score(values[-1], tuple(values))

    def release(self, problem_id: str) -> None:
        """Drop the scores of a problem."""
        self._seen.pop(problem_id, None)


def simulated(
    *,
    preset: Literal["perfect", "good", "hackable", "weak"] = "perfect",
    signal: float | None = None,
    noise: float | None = None,
) -> SimulatedScorer:
    """Score paths of the `simulated` engine.

    Args:
        preset: perfect has no noise; good and hackable have signal 1.5 and noise 1, weak 0.5 and 1.5.
        signal: overrides the preset: logits between on track and off track, halved.
        noise: overrides the preset: standard deviation of the noise in logits; 0 is perfect.
    """
    usual_signal, usual_noise = _PRESETS[preset]
    noise_level = usual_noise if noise is None else noise
    if noise_level < 0:
        raise ConfigError(f"noise must be >= 0, got {noise}")
    return SimulatedScorer(usual_signal if signal is None else signal, noise_level)
