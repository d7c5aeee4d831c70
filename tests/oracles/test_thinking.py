"""Oracles 24, 25: thinking budgets on token ids, to the token; the split of thinking and answer loses nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.tools import accuracy, near
from tests.ttc.conformance import talkative
from tests.ttc.questions import ask
from ttc.core import Answer, Budget
from ttc.engines import scripted as chartext
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.session.solve import solve
from ttc.session.thinking import QWEN3_HANDOVER, Thinking, split
from ttc.strategies.budget_forcing import budget_forcing
from ttc.strategies.confidence import confidence
from ttc.strategies.direct import direct
from ttc.strategies.early_exit import early_exit
from ttc.strategies.majority import majority


def think(question: str, strategy, **options) -> Answer:
    return asyncio.run(solve(ask(question), engine=talkative(), strategy=strategy, seed=4, **options))


@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(1, 80))
def test_a_cap_holds_to_the_token_and_leaves_a_natural_end_alone(question: int, cap: int) -> None:
    free = think(f"q{question}", budget_forcing)
    held = think(f"q{question}", partial(budget_forcing, max_thinking=cap))
    natural = len(free.thinking)
    assert len(held.thinking.replace(QWEN3_HANDOVER.split("</think>")[0], "")) == min(natural, cap)
    (event,) = [e for e in held.trace if e.kind == "generate"]
    assert held.usage.thinking == min(natural, cap)
    if natural <= cap:
        assert (held.thinking, held.text) == (free.thinking, free.text) and not event.data["injected"]
    else:
        ((begin, end),) = event.data["injected"]
        assert begin == cap and event.data["text"][begin : begin + len(QWEN3_HANDOVER)] == QWEN3_HANDOVER
        assert end - begin == len(chartext.encode(QWEN3_HANDOVER))
        assert held.usage.generated == len(chartext.encode(event.data["text"])) - (end - begin) + 1


@pytest.mark.parametrize("waits", [1, 2, 4])
def test_k_waits_suppress_k_ends_and_leave_none_of_them_behind(waits: int) -> None:
    held = think("q1", partial(budget_forcing, num_waits=waits, wait="Wait"))
    (event,) = [e for e in held.trace if e.kind == "generate"]
    assert len(event.data["injected"]) == held.thinking.count("Wait") == waits
    assert event.data["text"].count("</think>") == 1
    assert held.usage.overrun >= waits


def test_no_thinking_budget_is_the_template_without_thinking() -> None:
    one = think("q2", direct, thinking=Thinking(max_tokens=0))
    other = think("q2", direct, thinking=Thinking(mode="off"))
    assert one.text == other.text and one.usage == other.usage and not one.thinking


def test_n_draws_under_a_cap_are_the_single_draws_under_it() -> None:
    held = think("q3", partial(majority, n=4), thinking=Thinking(max_tokens=11))
    alone = think("q3", partial(majority, n=1), thinking=Thinking(max_tokens=11))
    assert held.candidates[0] == alone.candidates[0]
    assert held.usage.thinking <= 4 * 11


@given(st.text(alphabet="ab<>", max_size=30), st.lists(st.booleans(), max_size=6))
def test_the_split_of_thinking_and_answer_loses_nothing(text: str, marks: list[bool]) -> None:
    caps = talkative().capabilities
    ids: list[int] = []
    for i, mark in enumerate(marks):
        ids += [*map(ord, text[i::6]), chartext.THINK_OPEN if mark else chartext.THINK_CLOSE]
    for inside in (False, True):
        parts = split(ids, inside, caps)
        outside_markers = [t for t in parts.answer if t >= 0x110000]
        assert len(parts.thinking) + len(parts.answer) <= len(ids)
        kept = sorted(t for t in (*parts.thinking, *parts.answer) if t < 0x110000)
        assert kept == sorted(t for t in ids if t < 0x110000)
        assert all(t in (chartext.THINK_OPEN, chartext.THINK_CLOSE) for t in outside_markers)


@pytest.mark.parametrize("cap_steps", [1, 3, 6])
def test_a_cap_buys_what_the_hazard_says(cap_steps: int) -> None:
    """Each step of thinking finds the answer with chance h; a cut after s steps is right with 1 - (1 - h)^s."""
    hazard, runs, width = 0.3, 250, 3
    options = {"hazard": hazard, "steps": 12, "mean_step_tokens": width}  # a step is 1 letter, 1 filler, 2 newlines
    got = accuracy(partial(budget_forcing, max_thinking=4 * cap_steps), runs, **options)
    assert near(got, 1 - (1 - hazard) ** cap_steps, runs)


def test_early_exit_stops_soon_after_the_answer_is_stable_and_keeps_its_accuracy() -> None:
    options = {"hazard": 0.4, "steps": 20, "mean_step_tokens": 8}
    engine = simulated(**options)

    async def go(strategy) -> list[Answer]:
        return list(
            await asyncio.gather(*(solve(ask(f"e{i}"), engine=engine, strategy=strategy, seed=3) for i in range(80)))
        )

    from ttc.engines.simulated import truth

    full = asyncio.run(go(direct))
    early = asyncio.run(go(partial(early_exit, chunk=16, repeats=2, probe_tokens=16)))
    right = [sum(a.final == truth(f"e{i}") for i, a in enumerate(found)) for found in (full, early)]
    assert right[1] >= right[0] - 3
    assert sum(a.usage.generated for a in early) < 0.75 * sum(a.usage.generated for a in full)
    assert {a.stop_cause for a in early} == {"stable"}


def test_probes_are_charged_and_are_no_part_of_the_trace() -> None:
    answer = think("q5", partial(early_exit, chunk=9, repeats=9, probe_tokens=24))
    whole = think("q5", direct)
    grown = [e for e in answer.trace if e.kind == "generate"]
    assert answer.text == whole.text and answer.thinking == whole.thinking
    main = sum(e.data["num_tokens"] for e in grown if e.path == (0,))
    probes = sum(e.data["num_tokens"] for e in grown if e.path != (0,))
    assert main == whole.usage.generated and probes > 0
    assert answer.usage.generated == main + probes


def test_an_answer_that_begins_by_itself_is_neither_probed_nor_drawn_beyond_its_end() -> None:
    script = replies({"q": ["hm</think>" + "so it is " * 9 + r"\boxed{4}"]})
    answers = [
        asyncio.run(solve(ask("q"), engine=ScriptedEngine(script, thinking=True), strategy=strategy, seed=1))
        for strategy in (direct, partial(early_exit, chunk=16))
    ]
    assert answers[0].final == answers[1].final == "4" and answers[0].text == answers[1].text
    assert answers[0].usage.generated == answers[1].usage.generated and len(answers[1].candidates) == 1


def test_a_model_that_does_not_think_in_a_block_exits_into_its_answer() -> None:
    def script(prompt, path, key):
        return "4}" if prompt.generated_text.endswith("boxed{") else "so it goes on and on " * 9

    strategy = partial(early_exit, chunk=16, repeats=2)
    answer = asyncio.run(solve(ask("q"), engine=ScriptedEngine(script), strategy=strategy, seed=1))
    assert answer.final == "4" and answer.stop_cause == "stable"
    assert answer.text.endswith("\n\nThe answer is \\boxed{4}") and answer.text.count("boxed") == 1


@pytest.mark.parametrize("probes", [1, 2, 3])
@pytest.mark.parametrize("paid", ["trace", "probe"])
def test_when_the_budget_ends_the_trace_the_last_probe_answers(probes: int, paid: str) -> None:
    def script(prompt, path, key):
        return f"{path[0]}}}" if prompt.generated_text.endswith("boxed{") else "so it goes on and on " * 9

    solving = solve(
        ask("q"),
        engine=ScriptedEngine(script),
        strategy=partial(early_exit, chunk=8, repeats=99),
        seed=1,
        budget=Budget(calls=2 * probes + (paid == "trace")),  # the last of which is a piece of the trace, or a probe
    )
    answer = asyncio.run(solving)
    assert answer.final == str(probes) and answer.stop_cause == "budget"
    assert [candidate.final for candidate in answer.candidates] == [None, str(probes)]


@pytest.mark.parametrize(("threshold", "stop_cause"), [(0.6, "confidence"), (0.61, "done")])
def test_a_confident_probe_ends_the_trace_and_an_unsure_one_does_not(threshold: float, stop_cause: str) -> None:
    """Every token of the engine has the probability exp(-0.5), 0.607."""
    answer = think("q5", partial(early_exit, rule="confidence", threshold=threshold, chunk=9, probe_tokens=24))
    probes = {event.path for event in answer.trace if event.kind == "generate" and event.path != (0,)}
    assert answer.stop_cause == stop_cause and (len(probes) == 1) == (stop_cause == "confidence")


@pytest.mark.parametrize("strategy", [partial(early_exit, rule="confidence"), confidence])
def test_what_reads_probabilities_is_refused_by_an_engine_that_reports_none(strategy) -> None:
    class Silent(ScriptedEngine):
        @property
        def capabilities(self):
            return replace(super().capabilities, logprobs=False)

    with pytest.raises(ConfigError, match="log-probabilities"):
        asyncio.run(solve(ask("q"), engine=Silent(lambda *_: "x"), strategy=strategy, seed=1))
