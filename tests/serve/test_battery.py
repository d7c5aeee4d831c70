"""Budgets in company: functions, schemas, stops, begun answers, choices and votes; three dialects, streamed or not.

On the scripted actor every count has a closed form: a thought of `THOUGHT` is as long as the budget allows, then come
the hand-over or the marker, and an answer whose text is known. A hidden thought is looked for in the raw bytes. By
default one case in thirty runs; `pytest -m slow tests/serve/test_battery.py` runs the whole.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.serve.actor import THOUGHT, ScriptedActor, actor
from tests.serve.dialects import WIRES, Told, Wish
from tests.serve.running import Running, running, served
from ttc.core import Message

BUDGETS = (None, -1, 0, 1, 2, 5, 17, "one less", "all", "one more", 300)
"""In tokens, or said of the length of the whole thought."""
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = tuple({"name": name, "description": "x", "parameters": PARAMETERS} for name in ("weather", "tides"))
VALUE = {"city": "Paris", "days": 7}
WORDS = "The answer is 7."
STOPPED = "The answer is"


def call_of(name: str) -> str:
    """What the actor writes for a call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': VALUE})}\n</tool_call>"


WISHES = {
    "words": (Wish("hi"), WORDS),
    "a call by choice": (Wish("hi", tools=TOOLS), call_of("weather")),
    "a call that must be": (Wish("hi", tools=TOOLS, call="required"), call_of("weather")),
    "a call of one function": (Wish("hi", tools=TOOLS, call="tides"), call_of("tides")),
    "JSON": (Wish("hi", schema=PARAMETERS), json.dumps(VALUE)),
    "a stop": (Wish("hi", stop=("is", "nothing")), STOPPED),
    "a stop that the thought holds": (Wish("hi", stop=("look", "\n")), WORDS),
    "a call and a stop": (Wish("hi", tools=TOOLS, call="required", stop=("look",)), call_of("weather")),
    "a call and stops within it": (Wish("hi", tools=TOOLS, call="required", stop=("\n", "}")), call_of("weather")),
    "a choice and stops within a call": (Wish("hi", tools=TOOLS, stop=("\n", "Paris")), call_of("weather")),
    "a begun answer": (Wish("hi", begun="The answer"), " is 7."),
    "choices": (Wish("hi", choices=3), WORDS),
    "choices of calls": (Wish("hi", choices=2, tools=TOOLS, call="required"), call_of("weather")),
    "a vote": (Wish("hi", votes=4), WORDS),
    "a vote of calls": (Wish("hi", votes=3, tools=TOOLS, call="required"), call_of("weather")),
    "a vote of JSON": (Wish("hi", votes=3, schema=PARAMETERS), json.dumps(VALUE)),
}
Case = tuple[str, str, int | str | None, bool, bool]


def possible(case: Case) -> bool:
    """Whether a dialect can ask for it."""
    wire, company, budget, _, _ = case
    wish = WISHES[company][0]
    return (wire == "chat" or wish.choices == 1) and (not wish.begun or budget in (None, 0))


CASES = [case for case in itertools.product(WIRES, WISHES, BUDGETS, (False, True), (False, True)) if possible(case)]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(served(actor())) as place:
        yield place


def test_the_battery_has_at_least_five_hundred_cases() -> None:
    assert len(CASES) >= 500


@pytest.mark.parametrize("case", CASES[::31], ids=str)
def test_every_count_is_exact(server: Running, case: Case) -> None:
    check(server, case)


@pytest.mark.slow
def test_every_count_of_the_whole_battery_is_exact(server: Running) -> None:
    for case in CASES:
        check(server, case)


def check(server: Running, case: Case) -> None:
    """Ask, and compare every count and every text with what they must be."""
    name, company, budget, streamed, hidden = case
    wire, (wish, written) = WIRES[name], WISHES[company]
    engine = server.engine
    assert isinstance(engine, ScriptedActor)
    length = len(engine.encode(f"{THOUGHT}\n"))
    number = {"one less": length - 1, "all": length, "one more": length + 1}.get(str(budget), budget)
    wish = replace(wish, budget=number, hidden=hidden)
    raw = server.ask(wire.asked(wish, streamed), wire.path)
    assert raw.status_code == 200, (case, raw.text)
    told = wire.stream(raw.text) if streamed else wire.reply(raw.json())
    used, after = spent(engine, wish, length, written)
    draws = wish.votes or wish.choices
    assert (told.reasoning, told.completion) == (draws * used, draws * (used + after)), case
    assert told.prompt == prompt_of(engine, wish), case
    assert told.ttc["thinking"]["used"] == used, case
    assert told.ttc["returned"]["completion_tokens"] == wish.choices * (used + after), case
    shown(told, wish, written, used, case)
    if hidden:
        words = (THOUGHT[:used] if used < 12 else THOUGHT[:12], "Time is up", "</think>")
        assert not any(word in raw.text for word in words if len(word) > 3), (case, raw.text)


def spent(engine: ScriptedActor, wish: Wish, length: int, written: str) -> tuple[int, int]:
    """Tokens of a draw's thought, and of what comes after it: how it was ended, the answer, the end of the text."""
    lead, ended = "", 0
    if wish.budget == 0 or wish.begun:
        used = 0
    elif wish.budget in (None, -1) or (wish.budget or 0) >= length:
        whole = wish.budget == -1 and not (wish.tools or wish.schema or wish.stop)
        used, ended = length, 1
        lead = "\n\n" if whole else ""  # else the answer is a request of its own, and begins at once
    else:
        used, ended = wish.budget or 0, len(engine.encode(engine.capabilities.handover or ""))
    ids = engine.encode(lead + (WORDS if written == STOPPED else written))
    if written == STOPPED:  # the token that completes the stop string is the last
        return used, ended + next(n for n in range(1, len(ids) + 1) if STOPPED in engine.decode(ids[:n]))
    return used, ended + len(ids) + 1


def prompt_of(engine: ScriptedActor, wish: Wish) -> int:
    """The length of the rendered prompt."""
    offer = [{"type": "function", "function": tool} for tool in wish.tools]
    thinking = not (wish.budget == 0 or wish.begun)
    prompt = engine.render_tools((Message("user", wish.text),), thinking, offer)
    return len(prompt.token_ids or ()) + len(engine.encode(wish.begun))


def shown(told: Told, wish: Wish, written: str, used: int, case: Any) -> None:
    """The texts of the reply are those that were written."""
    for thought in told.thoughts:
        assert thought.strip().startswith("" if wish.hidden else THOUGHT[:used].strip()), case
        assert bool(thought) == (used > 0 and not wish.hidden), case
    for text, calls in told.parts:
        if wish.tools:
            assert (text, calls) == ("", ((json.loads(written[12:-13])["name"], VALUE),)), case
        else:
            assert (text, calls) == (written.partition(wish.stop[0] if wish.stop else "\0")[0], ()), case
