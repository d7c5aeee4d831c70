"""A reasoning process with known success probabilities, for checking strategies against closed forms and at scale.

A path is on track while no step failed. Each step succeeds with probability `p` and failure is absorbing; after `steps`
steps an answer is given: the right one where the path ended on track, else a wrong one with Zipf weights. Options make
it worse, as models are: paths that look better than right ones to the scorer (`deceive`), one wrong answer that
attracts (`attractor`), difficulties that vary by question (a level in its words, or `spread`), steps and lengths that
vary, confidence that knows a little (`confidence`), and a thinker that finds the answer at a hazard (`hazard`).
Text looks like a model's: steps of a state letter and filler, ended by a blank line, then a boxed number.

Randomness is keyed by path and position like every other engine's, so the closed forms of search hold exactly in law.
Its scorer is `ttc.scorers.simulated`; both know the presets good, hackable and weak. Left out: caches.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc import seeds
from ttc.config.ranges import above, at_least, within
from ttc.core import Completion, Path, Prompt, Sampling, UsageSink
from ttc.engines._simulation import DELIMITER, Process, token_confidence, truth, zipf
from ttc.engines.scripted import Script, ScriptedEngine
from ttc.errors import ConfigError

__all__ = ["DELIMITER", "Preset", "simulated", "truth"]

Preset: TypeAlias = Literal["good", "hackable", "weak"]
_DECEIVE = MappingProxyType({"good": 0.0, "hackable": 0.03, "weak": 0.01})


class SimulatedEngine(ScriptedEngine):
    """A scripted engine whose log-probabilities tell, with noise, whether a path is on track."""

    def __init__(self, script: Script, *, thinking: bool, jitter: int | None, confidence: float) -> None:
        """`confidence` is how much lower, in nats, the log-probability of a step off track is."""
        super().__init__(script, thinking=thinking, jitter=jitter)
        self._confidence = confidence

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Continue by the process; see `ttc.core.Engine.generate`."""
        drawn = await super().generate(prompt, sampling, draws, on_usage)
        return drawn if not self._confidence else [self._told(prompt, sampling, completion) for completion in drawn]

    def _told(self, prompt: Prompt, sampling: Sampling, completion: Completion) -> Completion:
        key = seeds.derive(sampling.seed or 0, "confidence", completion.path[: len(prompt.path) + 1])
        noise = [0.2 * (seeds.uniform(key, i) + seeds.uniform(key, i + 1000) - 1) for i in range(64)]
        values = token_confidence(completion.text, self._confidence, prompt.generated_text, noise)
        ids = len(completion.token_ids)
        return replace(completion, logprobs=tuple((values + [-0.5] * ids)[:ids]))


def simulated(
    model: str | None = None,
    *,
    p: float | None = None,
    steps: int = 8,
    preset: Preset = "good",
    spread: tuple[float, float] | None = None,
    dispersion: float | None = None,
    deceive: float | None = None,
    repair: float = 0.0,
    attractor: float = 0.0,
    num_wrong: int = 20,
    mean_step_tokens: int = 12,
    cv: float | None = None,
    wrong_longer: float = 1.0,
    confidence: float = 0.0,
    hazard: float | None = None,
    forget: float = 0.0,
    jitter: int | None = None,
) -> ScriptedEngine:
    """Simulate a reasoner.

    Args:
        model: ignored name, kept for the common signature of engines; must be absent.
        p: probability that a step is right; absent: by the level that the question names, else 0.8.
        steps: number of steps before the answer, or their mean.
        preset: good, hackable or weak: how likely paths off track are to deceive the scorer (0, 0.03, 0.01 a step).
        spread: a, b: each question's chance to be solved is drawn once from Beta(a, b).
        dispersion: the number of steps varies by question, negative binomial with this dispersion.
        deceive: overrides the preset.
        repair: probability that a step brings a path back on track.
        attractor: share of wrong answers that are the one most frequent.
        num_wrong: number of distinct wrong answers (Zipf weights).
        mean_step_tokens: mean length of a step in tokens.
        cv: lengths are log-normal with this coefficient of variation; absent: uniform.
        wrong_longer: factor on the length of steps off track.
        confidence: nats by which log-probabilities are lower off track; 0 tells nothing.
        hazard: makes it think, and is the probability that a step of thinking finds the answer.
        forget: probability that a step of thinking loses what was found.
        jitter: seed of a random schedule, which must not change any result.
    """
    if model is not None:
        raise ConfigError("engine simulated takes no model; set p and steps instead")
    h = _DECEIVE[preset] if deceive is None else deceive
    within("simulated", 0, 1, p=p, deceive=h, repair=repair, attractor=attractor, hazard=hazard, forget=forget)
    within("simulated", 0, 1, **{"repair + deceive": repair + h})
    at_least("simulated", 1, steps=steps, num_wrong=num_wrong)
    at_least("simulated", 3, mean_step_tokens=mean_step_tokens)
    above("simulated", 0, cv=cv, wrong_longer=wrong_longer, dispersion=dispersion)
    above("simulated", 0, spread=None if spread is None else min(spread))
    process = Process(
        p=p,
        steps=steps,
        spread=spread,
        dispersion=dispersion,
        deceive=h,
        repair=repair,
        attractor=attractor,
        weights=zipf(num_wrong),
        mean_step_tokens=mean_step_tokens,
        cv=cv,
        wrong_longer=wrong_longer,
        hazard=hazard,
        forget=forget,
    )
    follow = process.reason if hazard is None else process.think

    def script(prompt: Prompt, path: Path, key: int) -> str:
        return follow(prompt.messages[-1].content, prompt.generated_text, key, prompt.rendered_len)

    return SimulatedEngine(script, thinking=hazard is not None, jitter=jitter, confidence=confidence)
