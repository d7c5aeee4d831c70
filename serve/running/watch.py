"""A session that is watched: its events as they happen, and the completions along the chosen path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from serve.running.engines import RequestEngine
from ttc import seeds
from ttc.answers import kind_of
from ttc.core import Budget, Completion, Engine, Event, Message, Path, Problem, Prompt, Sampling
from ttc.session.session import Session
from ttc.session.thinking import Thinking

__all__ = ["Watched", "raw_prompt"]


class Watched(Session):
    """One choice of one request."""

    def __init__(
        self,
        problem: Problem,
        engine: RequestEngine,
        *,
        seed: int,
        index: int,
        sampling: Sampling,
        thinking: Thinking,
        budget: Budget,
        text: str | None,
        logprobs: bool,
        listen: Callable[[Event], None],
    ) -> None:
        """`index` tells the choices of a request apart; `text` is a raw prompt in place of the rendered problem.

        Log-probabilities of every token cost an engine a pass over the vocabulary, so they are asked for only with
        `logprobs`.

        The problem's id is the request's own, so that scorers keep concurrent requests apart; draws depend on the seed
        and the index alone, so the same request with the same seed gives the same answer.
        """
        answers = kind_of(problem.kind)
        super().__init__(
            problem, engine, answers=answers, seed=seed, sampling=sampling, thinking=thinking, budget=budget
        )
        asked = logprobs and self.sampling.logprobs
        self.sampling = replace(self.sampling, seed=seeds.derive(seed, "choice", index), logprobs=asked)
        self._listen, self._text, self._source = listen, text, engine
        self._drawn: dict[Path, Completion] = {}
        self.roots: list[Prompt] = []

    def render(self, thinking: Thinking | None = None) -> Prompt:
        """Render the problem, or take the raw prompt as it is."""
        prompt = super().render(thinking) if self._text is None else raw_prompt(self._source, self._text)
        prompt = replace(prompt, problem_id=self.problem.id)
        self.roots.append(prompt)
        return prompt

    def note(self, kind: str, path: tuple[int, ...], **data: object) -> None:
        """Add an event to the trace, and tell the listener."""
        super().note(kind, path, **data)
        self._listen(Event(kind, path, data))

    def record(self, prompt: Prompt, completions: Sequence[Completion]) -> None:
        """Remember all that was drawn."""
        super().record(prompt, completions)
        self._drawn.update({completion.path: completion for completion in completions})

    def along(self, path: Path) -> list[Completion]:
        """The completions from the root to `path`, in order."""
        prefixes = accumulate(((step,) for step in path), lambda before, step: before + step)
        return [self._drawn[prefix] for prefix in prefixes if prefix in self._drawn]


def raw_prompt(engine: Engine, text: str) -> Prompt:
    """A prompt without a chat template: nothing is added."""
    ids = engine.encode(text)
    said = (Message("user", text),)
    return Prompt(text=text, token_ids=ids, rendered_len=len(ids), rendered_chars=len(text), messages=said)
