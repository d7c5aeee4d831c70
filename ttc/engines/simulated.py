"""A reasoning process with known success probabilities, for checking strategies against closed forms.

Each step succeeds with probability `p` and failure is absorbing; after `steps` steps an answer is given: the right one
if no step failed, else one of `num_wrong` wrong ones with Zipf weights. Text looks like a model's: steps of 'g' (good)
or 'b' (bad) and filler, ended by a blank line, then a boxed number. Randomness is keyed by path and position like
every other engine's, so the closed forms of search hold exactly in law. See `ttc.scorers.simulated` for its scorer.

Left out: thinking markers, deceptive states, caches.
"""

from __future__ import annotations

from ttc import seeds
from ttc.core import Path, Prompt
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError

DELIMITER = "\n\n"


def truth(question: str) -> str:
    """The right answer to `question`; tasks use it as the target, the engine to simulate success."""
    return str(100 + seeds.derive(0, "truth", question) % 900)


def simulated(
    model: str | None = None,
    *,
    p: float = 0.8,
    steps: int = 8,
    num_wrong: int = 20,
    mean_step_tokens: int = 12,
    jitter: int | None = None,
) -> ScriptedEngine:
    """Simulate a reasoner.

    Args:
        model: ignored name, kept for the common signature of engines; must be absent.
        p: probability that a step is right.
        steps: number of steps before the answer.
        num_wrong: number of distinct wrong answers (Zipf weights).
        mean_step_tokens: mean length of a step in tokens.
        jitter: seed of a random schedule, which must not change any result.
    """
    if model is not None:
        raise ConfigError("engine simulated takes no model; set p and steps instead")
    if not 0 <= p <= 1 or steps < 1 or num_wrong < 1 or mean_step_tokens < 3:
        raise ConfigError("simulated needs 0 <= p <= 1, steps >= 1, num_wrong >= 1 and mean_step_tokens >= 3")
    weights = [1.0 / rank for rank in range(1, num_wrong + 1)]

    def script(prompt: Prompt, path: Path, key: int) -> str:
        question, said = prompt.messages[-1].content, prompt.generated_text
        text = said
        while text.count(DELIMITER) < steps:
            begin = text.rfind(DELIMITER) + len(DELIMITER) if DELIMITER in text else 0
            position = prompt.rendered_len + begin
            good = seeds.uniform(key, position) < p
            length = 1 + int(seeds.uniform(key, position + 1) * 2 * (mean_step_tokens - 3))
            text = text[:begin] + _complete(text[begin:], "g" if good else "b", length)
        body = text[: text.rfind(DELIMITER)]
        answer = truth(question) if "b" not in body else _wrong(question, body, weights)
        return f"{body}{DELIMITER}\\boxed{{{answer}}}"[len(said) :]

    return ScriptedEngine(script, jitter=jitter)


def _complete(partial: str, marker: str, length: int) -> str:
    """A whole step that begins with `partial` (a step cut by length keeps its marker and what it has)."""
    if partial.endswith("\n"):
        return partial + "\n"
    return (partial[:1] or marker) + "." * max(length, len(partial) - 1) + DELIMITER


def _wrong(question: str, body: str, weights: list[float]) -> str:
    """A wrong answer with Zipf weights, chosen by the text of the path, so that any continuation agrees on it."""
    threshold = seeds.uniform(seeds.derive(0, "wrong", question, body), 0) * sum(weights)
    for rank, weight in enumerate(weights):
        threshold -= weight
        if threshold < 0:
            return str(int(truth(question)) + 1 + rank)
    return str(int(truth(question)) + len(weights))
