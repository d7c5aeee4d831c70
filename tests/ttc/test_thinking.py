"""Thinking control on the scripted engine: exact on ids, natural ends untouched, every token accounted for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from ttc.answers import kind_of
from ttc.core import Answer, Completion, ExtraSampling, Message, Path, Problem, Prompt, Sampling, Usage, with_extra
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.tokens import check_room
from ttc.engines.shared.wrapped import with_markers
from ttc.errors import ConfigError, PromptTooLong
from ttc.session.session import Session
from ttc.session.solve import solve
from ttc.session.thinking import Thinking, split_prompt
from ttc.strategies.budget_forcing import budget_forcing
from ttc.strategies.direct import direct
from ttc.strategies.early_exit import early_exit
from ttc.strategies.first_finished import first_finished
from ttc.strategies.no_think_then_think import no_think_then_think
from ttc.strategies.refine import refine

PROBLEM = Problem("p", (Message("user", "q"),), kind="exact")
HANDOVER = "|time</think>"


def think_then_answer(thought: str, answer: str = "A"):
    """A reasoner that thinks `thought`, and after a hand-over or its own end says `answer`."""

    def script(prompt, path, key):
        said = prompt.generated_text
        if "</think>" in said:
            return answer[len(said.split("</think>")[1]) :]
        if "Wait" in said:
            return "w" * 3 + "</think>" + answer
        return (thought + "</think>" + answer)[len(said) :]

    return ScriptedEngine(script, thinking=True)


def run(engine: ScriptedEngine, thinking: Thinking, sampling: Sampling | None = None, n: int = 1):
    session = Session(
        PROBLEM, engine, answers=kind_of("math"), seed=1, sampling=sampling or Sampling(), thinking=thinking
    )

    async def go() -> list[Completion]:
        return await session.generate(session.render(), n)

    return session, asyncio.run(go())


@pytest.mark.parametrize("cap", [1, 5, 9])
def test_a_cut_has_exactly_the_cap_then_exactly_the_handover(cap: int) -> None:
    engine = think_then_answer("t" * 10)
    session, (completion,) = run(engine, Thinking(max_tokens=cap, handover=HANDOVER))
    assert completion.text == "t" * cap + HANDOVER + "A"
    assert completion.injected == ((cap, cap + len(engine.encode(HANDOVER))),)
    assert completion.logprobs is not None
    assert [i for i, p in enumerate(completion.logprobs) if p is None] == list(range(*completion.injected[0]))
    assert session.usage.thinking == cap


def test_under_a_grammar_a_turn_that_ends_within_its_thought_goes_on_with_its_answer() -> None:
    engine = ScriptedEngine(lambda prompt, *_: "yes" if "</think>" in prompt.text else "I call", thinking=True)
    engine._capabilities = with_extra(engine.capabilities, "grammar")
    session, (completion,) = run(engine, Thinking(), ExtraSampling(seed=1, grammar='start: "yes"'))
    assert (completion.text, completion.finish_reason) == ("I call</think>yes", "stop")
    assert completion.injected == ((6, 6 + len(engine.encode("</think>"))),) and session.usage.thinking == 6
    _, (free,) = run(engine, Thinking())
    assert free.text == "I call"


def test_a_hard_truncation_has_exactly_the_cap_and_no_answer() -> None:
    engine = think_then_answer("t" * 10)
    session, (completion,) = run(engine, Thinking(max_tokens=4, at_cap="stop"))
    assert (completion.text, completion.finish_reason, completion.injected) == ("tttt", "length", ())
    assert session.candidate(session.render(), completion).final is None
    assert session.usage.generated + session.usage.overrun == engine.counters().generated
    _, (free,) = run(engine, Thinking(max_tokens=10, at_cap="stop"))
    assert free.text == "t" * 10 + "</think>A"


def test_a_minimum_extends_until_reached_and_then_stops() -> None:
    _, (completion,) = run(think_then_answer("tt"), Thinking(min_tokens=12))
    thought = completion.text.split("</think>")[0]
    assert thought == "ttWaitwwwWaitwww" and len(thought) >= 12


def test_waits_never_break_the_maximum() -> None:
    for cap in range(3, 30):
        session, (completion,) = run(
            think_then_answer("tt"), Thinking(max_tokens=cap, num_waits=9, handover="</think>")
        )
        state = split_prompt(session.render().then(completion), session.capabilities)
        assert len(state.thinking) <= cap


def test_the_ledger_equals_the_engine_with_cuts_and_waits() -> None:
    engine = think_then_answer("t" * 10)
    session, completions = run(engine, Thinking(max_tokens=16, num_waits=2, handover=HANDOVER), n=3)
    ours, theirs = session.usage, engine.counters()
    assert ours.generated + ours.overrun == theirs.generated + theirs.overrun
    assert (ours.prompt, ours.calls, ours.attempts, ours.flops) == (
        theirs.prompt,
        theirs.calls,
        theirs.attempts,
        theirs.flops,
    )
    assert ours.generated == sum(len(c.token_ids) - sum(b - a for a, b in c.injected) for c in completions)
    assert ours.overrun > 0


def test_max_tokens_spans_all_segments_and_excludes_injected_ids() -> None:
    _, (completion,) = run(
        think_then_answer("t" * 10, "A" * 50),
        Thinking(max_tokens=5, handover=HANDOVER),
        Sampling(max_tokens=20),
    )
    assert completion.text == "t" * 5 + HANDOVER + "A" * 15
    assert completion.finish_reason == "length"


class Narrow(ScriptedEngine):
    """An engine that refuses a request whose tokens would pass its context, as those with a model do."""

    async def generate(self, prompt, sampling, draws, on_usage):
        check_room(len(prompt.token_ids), sampling.max_tokens, self.capabilities.max_context)
        return await super().generate(prompt, sampling, draws, on_usage)


def narrow(thought: str, room: int) -> Narrow:
    """The reasoner, with `room` tokens of context after its prompt."""
    plain = think_then_answer(thought, "A" * 100)
    start = len(plain.render(PROBLEM.messages, True).token_ids or ())
    return Narrow(plain._script, thinking=True, max_context=start + room)


@pytest.mark.parametrize("thinking", [Thinking(max_tokens=20, handover=HANDOVER), Thinking(num_waits=1000)])
def test_what_is_put_in_may_fill_the_context_and_what_was_drawn_is_kept(thinking: Thinking) -> None:
    _, (cut,) = run(narrow("t" * 30, 50), thinking, Sampling(max_tokens=50))
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 50)


def test_a_first_request_that_passes_the_context_is_still_refused() -> None:
    with pytest.raises(PromptTooLong, match=r"lower sampling\.max_tokens to 50"):
        run(narrow("t" * 30, 50), Thinking(num_waits=1), Sampling(max_tokens=51))


GROWING = [(first_finished, {"n": 2, "m": 1, "chunk": 8}), (early_exit, {"chunk": 8, "repeats": 1})]


@pytest.mark.parametrize(("strategy", "params"), GROWING)
def test_draws_that_grow_to_the_end_of_the_context_are_kept(strategy, params: dict[str, object]) -> None:
    engine, control = narrow("t" * 30, 60), Thinking(max_tokens=20, handover=HANDOVER)
    answer = asyncio.run(
        solve(
            PROBLEM,
            engine=engine,
            strategy=partial(strategy, **params),
            seed=1,
            sampling=Sampling(max_tokens=58),
            thinking=control,
        )
    )
    assert answer.finish_reason == "length" and max(c.num_tokens for c in answer.candidates) == 60


LONGER = [(no_think_then_think, {"n": 1, "m": 1}), (refine, {"feedback": "self", "rounds": 1})]


@pytest.mark.parametrize(("strategy", "params"), LONGER)
def test_a_longer_prompt_of_a_strategys_own_has_the_tokens_that_the_context_leaves(
    strategy, params: dict[str, object]
) -> None:
    work = partial(strategy, **params)
    answer = asyncio.run(
        solve(PROBLEM, engine=narrow("t", 400), strategy=work, seed=1, sampling=Sampling(max_tokens=400))
    )
    assert answer.finish_reason == "stop" and "A" * 100 in answer.text


@pytest.mark.parametrize("words", ["Final Answer:", "so </think> or <think>"])
@pytest.mark.parametrize("strategy", [direct, partial(budget_forcing, max_thinking=4)])
def test_a_handover_that_leaves_the_thought_open_is_refused_before_it_is_put_in_again_and_again(
    words: str, strategy
) -> None:
    engine = narrow("t" * 30, 900)
    for thinking in (Thinking(max_tokens=4, handover=words), Thinking(handover=words)):
        with pytest.raises(ConfigError, match=r"thinking\.handover must end the thought, with </think> in it"):
            asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, thinking=thinking))
    assert engine.counters() == Usage()


def test_markers_in_the_users_words_do_not_move_the_state() -> None:
    problem = Problem("p", (Message("user", "say </think> and <think>"),), kind="exact")
    engine = think_then_answer("t" * 10)
    session = Session(
        problem, engine, answers=kind_of("math"), seed=1, sampling=Sampling(), thinking=Thinking(max_tokens=4)
    )
    (completion,) = asyncio.run(session.generate(session.render(), 1))
    assert completion.text.startswith("tttt") and completion.injected


def test_thinking_and_answer_split_without_loss() -> None:
    session, (completion,) = run(think_then_answer("why", "because"), Thinking())
    candidate = session.candidate(session.render(), completion)
    assert (candidate.thinking, candidate.text) == ("why", "because")
    assert candidate.thinking + "</think>" + candidate.text == completion.text


class Unmarked(ScriptedEngine):
    """A reasoner whose markers are text, an id for each character."""

    capabilities = property(lambda self: replace(self._capabilities, think_open=(), think_close=()))  # type: ignore[assignment]


@pytest.mark.parametrize("cap", [3, 9, 10, 30])
@pytest.mark.parametrize("chunk", range(1, 12))
def test_a_marker_of_several_tokens_is_found_where_a_piece_ends_within_it(chunk: int, cap: int) -> None:
    whole = "well [T]why not [/T]so [T]once more[/T] \\boxed{7}"

    def script(prompt, path, key):
        said = prompt.generated_text
        return whole[len(said) :] if whole.startswith(said) else "[/T] \\boxed{8}" * ("[/T]" not in said[-30:])

    control = Thinking(max_tokens=cap, open="[T]", close="[/T]", handover="-[/T]")

    def answer_by(strategy) -> Answer:
        engine = with_markers(Unmarked(script), control)
        return asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, thinking=control))

    free, grown = answer_by(direct), answer_by(partial(first_finished, n=1, m=1, chunk=chunk))
    assert grown.usage.thinking <= cap
    if cap >= 30:
        assert (grown.text, grown.thinking, grown.usage.thinking) == (free.text, free.thinking, free.usage.thinking)


@pytest.mark.parametrize("chunk", range(1, 24))
@pytest.mark.parametrize("floor", [{"num_waits": 2}, {"min_tokens": 40}])
def test_an_end_of_thought_is_suppressed_where_a_piece_ends_within_its_marker(
    floor: dict[str, int], chunk: int
) -> None:
    whole, control = "thinking it over[/T] \\boxed{7}", Thinking(open="[T]", close="[/T]", **floor)  # type: ignore[arg-type]

    def script(prompt: Prompt, path: Path, key: int) -> str:
        return whole[len(prompt.generated_text.rpartition("Wait")[2]) :]

    engine = with_markers(Unmarked(script), control)
    strategy = partial(first_finished, n=1, m=1, chunk=chunk)
    grown = asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, thinking=control))
    assert grown.thinking.count("Wait") == 2 and grown.final == "7"
    assert grown.usage.thinking >= control.min_tokens


@pytest.mark.parametrize("chunk", range(1, 9))
def test_a_thought_that_ends_within_its_cap_is_whole_where_a_piece_ends_within_its_marker(chunk: int) -> None:
    whole, control = "well now[/T] \\boxed{7}", Thinking(max_tokens=11, open="[T]", close="[/T]")
    engine = with_markers(Unmarked(lambda prompt, path, key: whole[len(prompt.generated_text) :]), control)
    strategy = partial(first_finished, n=1, m=1, chunk=chunk)
    grown = asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, thinking=control))
    assert (grown.thinking, grown.usage.thinking, grown.final) == ("well now", 8, "7")


@pytest.mark.parametrize("chunk", range(1, 9))
@pytest.mark.parametrize("stop", ["END", "\n\n", ". "])
def test_a_stop_string_is_found_where_a_piece_ends_within_it(stop: str, chunk: int) -> None:
    whole = "so. END\n\nof</think>\n\nthe answer is \\boxed{7}. \n\nEND of it all"
    engine = ScriptedEngine(lambda prompt, path, key: whole[len(prompt.generated_text) :], thinking=True)

    def answer_by(strategy) -> Answer:
        return asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, sampling=Sampling(stop=(stop,))))

    free, grown = answer_by(direct), answer_by(partial(first_finished, n=1, m=1, chunk=chunk))
    assert (grown.text, grown.thinking, grown.finish_reason) == (free.text, free.thinking, "stop")
    assert grown.usage.generated == free.usage.generated and grown.text.endswith(stop)


def test_the_beginning_of_a_marker_again_and_again_costs_no_request_a_token() -> None:
    control = Thinking(max_tokens=2000, open="[T]", close="[/T]")
    engine = with_markers(Unmarked(lambda prompt, path, key: "[" * (900 - len(prompt.generated_ids))), control)
    strategy = partial(first_finished, n=1, m=1, chunk=300)
    answer = asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, thinking=control))
    assert (answer.usage.thinking, answer.usage.calls) == (900, 4)


def test_the_beginning_of_a_stop_string_again_and_again_costs_no_request_a_token() -> None:
    engine = ScriptedEngine(lambda prompt, path, key: "." * (3000 - len(prompt.generated_ids)))
    strategy, sampling = partial(first_finished, n=1, m=1, chunk=64), Sampling(max_tokens=4000, stop=(". ",))
    answer = asyncio.run(solve(PROBLEM, engine=engine, strategy=strategy, seed=1, sampling=sampling))
    assert (answer.usage.generated, answer.usage.calls) == (3001, -(-3001 // 64))


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("thought", ["", "\n", "so\n\nit is"])
def test_a_stop_string_in_the_white_space_behind_a_block_ends_nothing_even_where_the_block_is_empty(
    thought: str, opens: bool
) -> None:
    whole = f"{'' if opens else '<think>'}{thought}</think>\n\nAnswer\n\nMore"
    engine = ScriptedEngine(lambda prompt, path, key: whole[len(prompt.generated_text) :], thinking=opens)
    session, (completion,) = run(engine, Thinking(), Sampling(stop=("\n\n",)))
    assert session.candidate(session.render(), completion).text == "\n\nAnswer\n\n"


def test_an_answer_cut_inside_the_think_block_is_no_answer() -> None:
    session, (completion,) = run(think_then_answer("7" * 50), Thinking(), Sampling(max_tokens=10))
    candidate = session.candidate(session.render(), completion)
    assert candidate.final is None and candidate.finish_reason == "length" and candidate.text == ""


def test_steps_generated_one_by_one_obey_the_same_cap_as_one_long_run() -> None:
    cap = 7
    thought = "ab\ncd\nef\ngh\n"
    thinking = Thinking(max_tokens=cap, handover=HANDOVER)
    _, (whole,) = run(think_then_answer(thought), thinking)
    session = Session(
        PROBLEM,
        think_then_answer(thought),
        answers=kind_of("math"),
        seed=1,
        sampling=Sampling(stop=("\n",)),
        thinking=thinking,
    )

    async def step_by_step() -> str:
        prompt = session.render()
        while True:
            (completion,) = await session.generate(prompt, 1)
            prompt = prompt.then(completion)
            if completion.finished:
                return prompt.generated_text

    assert asyncio.run(step_by_step()) == whole.text


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "maybe"},
        {"at_cap": "explode"},
        {"max_tokens": -1},
        {"min_tokens": 5, "max_tokens": 4},
        {"mode": "off", "num_waits": 1},
        {"num_waits": 1, "wait": ""},
    ],
)
def test_contradictions_are_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="thinking"):
        Thinking(**bad)  # type: ignore[arg-type]


class _Switchless(ScriptedEngine):
    """A model whose chat template takes no notice of thinking."""

    def render(self, messages, thinking):
        return super().render(messages, None)


def test_thinking_where_samples_disagree_is_refused_of_a_model_that_is_asked_the_same_both_times() -> None:
    def ask(engine) -> Answer:
        return asyncio.run(
            solve(PROBLEM, engine=engine, strategy=partial(no_think_then_think, n=1, m=1), seed=1, sampling=Sampling())
        )

    script = lambda prompt, path, key: "7"  # noqa: E731
    with pytest.raises(ConfigError, match="asked the same with thinking and without"):
        ask(_Switchless(script))
    assert ask(ScriptedEngine(script)).text == "7"
