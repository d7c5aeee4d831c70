"""Showing tokens while they are sampled: an engine in front of another that tells a display what arrives.

The strategy and the thinking control run unchanged on top of it, so a streamed answer is the same answer. Injected
text (a hand-over) is shown when it becomes part of the prompt; one token is held back, because the thinking control
may drop the last token of a segment. An engine that cannot stream shows each segment when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable

from ttc.core import Answer, Completion, Engine, Prompt, Sampling, UsageSink
from ttc.engines.shared.wrapped import Wrapped, draw_shown
from ttc.session.thinking import split

HELD_BACK = 1


class Display:
    """Writes thinking and answer text of one draw, each character once."""

    def __init__(self, engine: Engine, thinking: Callable[[str], None], answer: Callable[[str], None]) -> None:
        """`thinking` and `answer` are given the new text of each part."""
        self._engine = engine
        self._write_thinking, self._write_answer = thinking, answer
        self._ids: list[int] = []
        self._starts_inside = False
        self._thinking_shown = self._answer_shown = 0

    def sync(self, prompt: Prompt) -> None:
        """Take over what `prompt` holds after its rendered part: it is final, injected text included."""
        self._starts_inside = prompt.think_state == "open"
        self._ids = list(prompt.generated_ids)
        self._show(len(self._ids))

    def add(self, ids: tuple[int, ...]) -> None:
        """Take new sampled ids and show all but the last."""
        self._ids += ids
        self._show(len(self._ids) - HELD_BACK)

    def finish(self, answer: Answer) -> None:
        """Show what is left of the finished answer."""
        self._thinking_shown = self._flush(answer.thinking, self._thinking_shown, self._write_thinking)
        self._answer_shown = self._flush(answer.text.lstrip(), self._answer_shown, self._write_answer)
        self._write_answer("\n")

    def _show(self, length: int) -> None:
        parts = split(self._ids[: max(length, 0)], self._starts_inside, self._engine.capabilities)
        thinking = self._engine.decode(parts.thinking)
        answer = self._engine.decode(parts.answer).lstrip()
        self._thinking_shown = self._flush(_whole(thinking), self._thinking_shown, self._write_thinking)
        if answer and not self._answer_shown and self._thinking_shown:
            self._write_thinking("\n")
        self._answer_shown = self._flush(_whole(answer), self._answer_shown, self._write_answer)

    @staticmethod
    def _flush(text: str, num_shown: int, write: Callable[[str], None]) -> int:
        if len(text) > num_shown:
            write(text[num_shown:])
        return max(len(text), num_shown)


def _whole(text: str) -> str:
    """Leave out a character whose bytes are not all there yet."""
    return text.rstrip("\ufffd")


class Streamed(Wrapped):
    """`engine`, with every draw shown on `display`; for one draw at a time."""

    def __init__(self, engine: Engine, display: Display) -> None:
        """Wrap `engine`; closing it stays with its owner."""
        super().__init__(engine)
        self._display = display

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Generate draw by draw, showing tokens as they come."""
        return [await draw_shown(self._engine, prompt, sampling, draw, on_usage, self._display) for draw in draws]
