"""Calls and JSON of SmolLM2-135M, which is too small to write either by itself: the grammar alone makes them whole.

On vLLM's CPU build and on the embedded engine, at temperatures 0 and 1, in three dialects, streamed and not, alone and
in votes, under budgets of thinking. SmolLM2's template knows no functions, so they are shown as text.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from serve.operator.config import ServeLimits
from serve.requests.thinking import ThinkingPolicy
from tests.serve.dialects import WIRES, Told, Wish
from tests.serve.running import Running, running, served
from ttc.core import Engine
from ttc.engines.embedded.engine import embedded
from ttc.engines.shared.wrapped import with_markers
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import VllmOptions

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("default")]

ONE: dict[str, dict[str, Any]] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
}
"""At most one call, in the words of each dialect."""
POLICY = ThinkingPolicy(open="<think>", close="</think>")
QUESTION = "What will the weather be in Paris and in Rome?"


class Day(BaseModel):
    """A day's weather."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: Literal["sun", "rain", "snow"]
    degrees: int = Field(ge=-40, le=60)


class Forecast(BaseModel):
    """A schema with references, a list with bounds, an optional part and text with a bound."""

    model_config = ConfigDict(extra="forbid", strict=True)
    city: str = Field(max_length=12)
    days: list[Day] = Field(min_length=1, max_length=2)
    wind: Literal["calm", "storm"] | None


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": "Tell it.", "parameters": Forecast.model_json_schema()}


TOOLS = (tool("forecast"), tool("history"))
NAMES = {"forecast", "history"}


def on_vllm(folder: str) -> Engine:
    return vllm(folder, VllmOptions(max_context=2048, kv_cache_bytes=1 << 29, dtype="float32"))


def in_process(folder: str) -> Engine:
    return embedded(folder, dtype="float32")


@pytest.fixture(scope="module", params=[on_vllm, in_process], ids=["vllm", "embedded"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    folder = os.environ.get("TTC_SMOLLM2")
    if folder is None:
        pytest.skip("set TTC_SMOLLM2 to the folder of SmolLM2-135M-Instruct (make test-vllm does)")
    if request.param is on_vllm:
        pytest.importorskip("vllm")
    engine = with_markers(request.param(folder), POLICY)
    with running(served(engine), thinking=POLICY, limits=ServeLimits(default_max_tokens=256)) as place:
        yield place
    asyncio.run(engine.close())


def ask(server: Running, wish: Wish, dialect: str = "chat", *, stream: bool = False, **more: Any) -> Told:
    """Ask in the words of a dialect."""
    wire = WIRES[dialect]
    raw = server.ask(wire.asked(wish, stream) | more, wire.path)
    assert raw.status_code == 200, raw.text
    return wire.stream(raw.text) if stream else wire.reply(raw.json())


def names_of(part: tuple[str, Any]) -> list[str]:
    """The functions that are called, each with arguments of its schema; beside calls there is no text."""
    text, calls = part
    assert bool(text) != bool(calls), part
    for _, arguments in calls:
        Forecast.model_validate(arguments)
    return [name for name, _ in calls]


@pytest.mark.parametrize(
    ("dialect", "budget", "temperature"),
    [("chat", 0, 0), ("chat", 12, 0), ("chat", 40, 1), ("responses", 5, 1), ("messages", 5, 1)],
)
def test_a_required_call_is_whole_after_any_thought_streamed_or_not(
    server: Running, dialect: str, budget: int, temperature: int
) -> None:
    wish = Wish(QUESTION, tools=TOOLS, call="required", budget=budget)
    told = ask(server, wish, dialect, temperature=temperature, **ONE[dialect])
    (name,) = names_of(told.parts[0])
    assert name in NAMES
    thinking = told.ttc["thinking"]
    assert thinking["used"] == told.reasoning <= budget
    assert told.reasoning == budget or not thinking["forced_end"]
    again = ask(server, wish, dialect, stream=True, temperature=temperature, **ONE[dialect])
    assert (again.parts, again.thoughts, again.completion) == (told.parts, told.thoughts, told.completion)


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_the_named_function_is_called_whichever_the_model_likes(server: Running, dialect: str) -> None:
    for name in sorted(NAMES):
        told = ask(server, Wish(QUESTION, tools=TOOLS, call=name, budget=3), dialect)
        assert set(names_of(told.parts[0])) == {name}


def test_calls_in_parallel_are_whole_each(server: Running) -> None:
    told = ask(server, Wish(QUESTION, tools=TOOLS, call="required", budget=0, choices=3))
    calls = [names_of(part) for part in told.parts if part[1]]
    assert calls, "every choice ran out of tokens"
    assert all(set(names) <= NAMES for names in calls)


def test_what_the_model_may_leave_is_text_or_whole_calls(server: Running) -> None:
    told = ask(server, Wish(QUESTION, tools=TOOLS, budget=0, choices=3, max_tokens=200))
    assert all(set(names_of(part)) <= NAMES for part in told.parts)


@pytest.mark.parametrize(("dialect", "budget"), [("chat", 0), ("responses", 12), ("messages", 5)])
def test_json_follows_a_schema_with_references_and_bounds(server: Running, dialect: str, budget: int) -> None:
    wish = Wish(QUESTION, schema=Forecast.model_json_schema(), budget=budget)
    for temperature in (0, 1):
        told = ask(server, wish, dialect, temperature=temperature)
        Forecast.model_validate_json(told.parts[0][0])
        assert ask(server, wish, dialect, stream=True, temperature=temperature).parts == told.parts


def test_each_draw_of_a_vote_is_held(server: Running) -> None:
    told = ask(server, Wish(QUESTION, tools=TOOLS, call="required", budget=3, votes=3), **ONE["chat"])
    assert len(names_of(told.parts[0])) == 1
    finals = [json.loads(candidate["final"]) for candidate in told.ttc["candidates"] if candidate["final"]]
    assert finals and all(one["name"] in NAMES for one in finals)
    assert all(Forecast.model_validate(one["arguments"]) for one in finals)
    assert told.reasoning <= 3 * 3
