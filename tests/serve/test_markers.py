"""Markers that the operator names: for models without their own, in what is generated only, checked at the start."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from serve.requests.thinking import ThinkingPolicy
from serve.requests.tools import AnswerForm, read_tools
from serve.running.deltas import Markers
from serve.running.prompts import shown_tools
from tests.serve.actor import ScriptedActor
from tests.serve.thinker import WithoutMarkers, think
from ttc.core import Capabilities, LogprobEngine, Message, Prompt, StreamingEngine, TopLogprobEngine
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.wrapped import with_markers
from ttc.errors import ConfigError
from ttc.session.thinking import Thinking, find_marker, split

POLICY = ThinkingPolicy(open="[t]", close="[/t]")
ASKED = [Message("user", "what is [t] and [/t]?")]


class Merging(WithoutMarkers):
    """Writes a full stop and the bracket after it as one id, as byte-pair encodings do."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text.replace(".[", "\ue000")))

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids).replace("\ue000", ".[")


def test_a_model_with_markers_of_its_own_keeps_them() -> None:
    engine = ScriptedEngine(lambda prompt, path, key: "yes")
    assert with_markers(engine, POLICY) is engine
    plain = WithoutMarkers(think)
    assert with_markers(plain, ThinkingPolicy()) is plain


class UnmarkedActor(ScriptedActor):
    """An agents' model without markers of its own."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, think_open=(), think_close=())

    def render_tools(self, messages: Any, thinking: bool | None, tools: Any) -> Prompt:
        return dataclasses.replace(super().render_tools(messages, thinking, tools), think_state="none")


@pytest.mark.parametrize(("control", "opened"), [(Thinking(), False), (Thinking(max_tokens=8), True)])
def test_functions_alone_open_no_thought_between_markers_that_the_operator_named(
    control: Thinking, opened: bool
) -> None:
    engine = with_markers(UnmarkedActor(), Thinking(open="[t]", close="[/t]"))
    tools = read_tools([{"type": "function", "function": {"name": "look"}}])
    prompt = shown_tools(engine, ASKED, control, AnswerForm(tools))
    assert prompt.text.rstrip().endswith("[t]") == opened and "look" in prompt.text


def test_an_engine_streams_through_the_wrapper_only_if_it_streams() -> None:
    class Streaming(WithoutMarkers):
        async def stream(self, *arguments: Any) -> Any:
            return arguments

    assert not isinstance(with_markers(WithoutMarkers(think), POLICY), StreamingEngine)
    assert isinstance(with_markers(Streaming(think), POLICY), StreamingEngine)


@pytest.mark.parametrize("streams", [False, True])
def test_an_engine_tells_the_log_probabilities_of_a_prompt_through_the_wrapper_only_if_it_does(streams: bool) -> None:
    class Reading(WithoutMarkers):
        async def logprobs(self, token_ids: Any, start: int, on_usage: Any) -> tuple[float, ...]:
            return tuple(-float(token) for token in token_ids[start:])

        async def top_logprobs(self, token_ids: Any, start: int, k: int, on_usage: Any) -> tuple[Any, ...]:
            return tuple({token: -float(k)} for token in token_ids[start:])

    class Both(Reading):
        async def stream(self, *arguments: Any) -> Any:
            return arguments

    bare = with_markers(WithoutMarkers(think), POLICY)
    assert not isinstance(bare, LogprobEngine) and not isinstance(bare, TopLogprobEngine)
    marked = with_markers((Both if streams else Reading)(think), POLICY)
    assert isinstance(marked, LogprobEngine) and isinstance(marked, StreamingEngine) == streams
    assert asyncio.run(marked.logprobs((1, 2, 3), 1, lambda usage: None)) == (-2.0, -3.0)
    assert isinstance(marked, TopLogprobEngine)
    assert asyncio.run(marked.top_logprobs((1, 2, 3), 2, 5, lambda usage: None)) == ({3: -5.0},)


def test_the_wrapper_is_part_of_what_was_rendered_and_the_users_markers_move_nothing() -> None:
    engine = with_markers(WithoutMarkers(think), POLICY)

    def rendered(thinking: bool | None) -> Prompt:
        prompt = engine.render(ASKED, thinking)
        assert prompt.token_ids is not None
        assert (prompt.rendered_len, prompt.rendered_chars) == (len(prompt.token_ids), len(prompt.text))
        assert prompt.generated_text == "" == engine.decode(prompt.generated_ids)
        return prompt

    plain, on, off = rendered(None), rendered(True), rendered(False)
    assert (plain.think_state, on.think_state, off.think_state) == ("none", "open", "closed")
    assert on.text == plain.text + "[t]\n"
    assert off.text == plain.text + "[t]\n\n[/t]\n\n"


@pytest.mark.parametrize(
    "given", [{"open": "a"}, {"close": "a"}, {"open": "", "close": "b"}, {"open": "a", "close": "a"}]
)
def test_half_a_pair_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"thinking\.open"):
        ThinkingPolicy(**given)


def test_a_handover_that_would_not_close_the_thought_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"\[/t\]"):
        ThinkingPolicy(open="[t]", close="[/t]", handover="Enough.</think>")
    with pytest.raises(ConfigError, match=r"\[/t\]"):
        with_markers(WithoutMarkers(think), Thinking(open="[t]", close="[/t]", handover="Enough.</think>"))


def test_a_marker_that_merges_with_what_stands_before_it_is_found() -> None:
    engine = with_markers(Merging(think), dataclasses.replace(POLICY, handover="Enough.[/t]"))
    ids = engine.encode("ten chars.[/t]\n\n7")
    parts = split(ids, True, engine.capabilities)
    assert (engine.decode(parts.thinking), engine.decode(parts.answer), parts.inside) == ("ten chars", "\n\n7", False)
    assert find_marker(ids, engine.capabilities, inside=True) == (9, 13)


def test_a_turns_end_ends_the_thought_of_a_streamed_draw_that_goes_on_behind_it() -> None:
    markers = Markers(True, Capabilities("m", 99, think_open=(1,), think_close=(2,), eos_ids=(3,)))
    assert list(markers.add([7, 3])) == [(0, 7, True)], "a sampled end may be the draw's"
    assert list(markers.settle([7, 3, 8, 1, 9])) == [(2, 8, False), (4, 9, True)]


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_streamed_text_holds_back_what_may_become_a_marker_however_it_is_spelled(size: int) -> None:
    engine = with_markers(Merging(think), POLICY)
    ids = engine.encode("so [/ no.[/t]\n\n7 [/t]")
    markers = Markers(True, engine.capabilities)
    shown = [row for at in range(0, len(ids), size) for row in markers.add(ids[at : at + size])]
    thought, answer = ([token for _, token, inside in shown if inside is side] for side in (True, False))
    assert (engine.decode(thought), engine.decode(answer)) == ("so [/ no", "\n\n7 [/t]")
