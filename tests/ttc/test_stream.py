from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.commands.chat import Display, Streamed
from ttc.core import Answer, Completion, Message, Problem, Prompt, Sampling, StreamingEngine, UsageSink
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.direct import direct

WORDS = "<think>23+48=71\n\nso 71</think>\n\nIt is \\boxed{71}."


class Talking(ScriptedEngine):
    """A scripted engine that hands over its tokens in pieces."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        draw: int,
        on_usage: UsageSink,
        on_tokens: Callable[[tuple[int, ...]], None],
    ) -> Completion:
        (completion,) = await self.generate(prompt, sampling, range(draw, draw + 1), on_usage)
        for start in range(0, len(completion.token_ids), 3):
            await asyncio.sleep(0)
            on_tokens(completion.token_ids[start : start + 3])
        return completion


def shown(engine: ScriptedEngine, thinking: Thinking) -> tuple[list[str], list[str], Answer]:
    thoughts: list[str] = []
    words: list[str] = []
    display = Display(engine, thoughts.append, words.append)
    answer = asyncio.run(
        solve(
            Problem("p", (Message("user", "q"),), "exact"),
            engine=Streamed(engine, display),
            strategy=direct,
            seed=1,
            thinking=thinking,
        )
    )
    display.finish(answer)
    return thoughts, words, answer


@pytest.mark.parametrize("kind", [Talking, ScriptedEngine])
@given(cap=st.none() | st.integers(1, 30), waits=st.integers(0, 2))
def test_what_is_shown_is_what_the_answer_holds(kind: type[ScriptedEngine], cap: int | None, waits: int) -> None:
    engine = kind(replies({"q": [WORDS]}))
    thoughts, words, answer = shown(engine, Thinking(max_tokens=cap, num_waits=waits))
    assert "".join(thoughts).rstrip("\n") == answer.thinking.rstrip("\n")
    assert "".join(words) == answer.text.lstrip() + "\n"


def test_a_streaming_engine_is_shown_in_pieces_and_another_at_once() -> None:
    assert isinstance(Talking(replies({"q": [WORDS]})), StreamingEngine)
    assert not isinstance(ScriptedEngine(replies({"q": [WORDS]})), StreamingEngine)
    pieces, _, _ = shown(Talking(replies({"q": [WORDS]})), Thinking())
    whole, _, _ = shown(ScriptedEngine(replies({"q": [WORDS]})), Thinking())
    assert len(pieces) > len(whole)


def test_the_stream_is_the_answer_that_would_have_been_given_without_it() -> None:
    engine = Talking(replies({"q": [WORDS]}))
    problem = Problem("p", (Message("user", "q"),), "exact")
    plain = asyncio.run(solve(problem, engine=engine, strategy=direct, seed=1, thinking=Thinking(max_tokens=5)))
    _, _, streamed = shown(engine, Thinking(max_tokens=5))
    assert (streamed.text, streamed.thinking, streamed.usage) == (plain.text, plain.thinking, plain.usage)
