"""Streamed text adds up to the final text, in whatever pieces it comes, and nothing is shown too early."""

from __future__ import annotations

import functools
import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from serve.running.deltas import Deltas, cut_at_stop
from ttc import nano
from ttc.core import Capabilities, Prompt
from ttc.engines.shared.text import Text
from ttc.session.thinking import Thinking, split

WORDS = st.sampled_from(["the ", "answer", " is 7", "é", "日本", "🙂", "\n\n", "<", "think", "</", "stop", "STOP", " "])
PARTS = st.lists(st.one_of(WORDS, st.just("<think>"), st.just("</think>")), max_size=12)


@functools.cache
def tokenizer() -> Text:
    return Text(nano.path("teacher"))


@functools.cache
def capabilities() -> Capabilities:
    text = tokenizer()
    return Capabilities("m", 4096, think_open=text.think_open, think_close=text.think_close, eos_ids=text.eos_ids)


def show(
    ids: list[int],
    cuts: list[int],
    *,
    inside: bool,
    stop: tuple[str, ...] = (),
    control: Thinking | None = None,
    strip: bool = True,
) -> tuple[Deltas, list[str], list[str]]:
    """Feed `ids` in pieces to a fresh display; nothing is certain until the end."""
    thinking: list[str] = []
    answer: list[str] = []
    deltas = Deltas(
        tokenizer().decode,
        capabilities(),
        thinking.append,
        answer.append,
        control=control or Thinking(),
        stop=stop,
        strip=strip,
    )
    deltas.sync(Prompt(text="", token_ids=(), think_state="open" if inside else "none"))
    for start, end in itertools.pairwise(sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})):
        deltas.add(tuple(ids[start:end]))
    return deltas, thinking, answer


@settings(deadline=None)
@given(PARTS, st.lists(st.integers(0, 1000), max_size=6), st.booleans(), st.lists(WORDS, max_size=2, unique=True))
@example(["answer", "<think>", "think", "</think>", " is 7"], [], False, [" is 7"])
@example(["</think>", "<think>", "<think>", "</think>", " is 7"], [], False, ["the ", " is 7"])
def test_the_pieces_add_up_to_the_whole(parts: list[str], cuts: list[int], inside: bool, stops: list[str]) -> None:
    text, stop = tokenizer(), tuple(stops)
    ids = [token for part in parts for token in text.encode(part)]
    deltas, thinking, answer = show(ids, cuts, inside=inside, stop=stop)
    done = split(ids, inside, capabilities())
    final_thinking = text.decode(done.thinking).lstrip()
    final_answer = cut_at_stop(text.decode(done.answer), stop, lead=True)[0].lstrip()
    assert deltas.finish(final_thinking, final_answer)
    assert ("".join(thinking), "".join(answer)) == (final_thinking, final_answer)


@settings(deadline=None)
@given(PARTS, st.lists(st.integers(0, 1000), max_size=6), st.lists(WORDS, max_size=2, unique=True))
@example(["</think>", "\n\n", "answer"], [], ["\n\n"])
def test_behind_a_thought_that_a_raw_completion_begins_with_no_stop_is_in_white_space(
    parts: list[str], cuts: list[int], stops: list[str]
) -> None:
    text, stop = tokenizer(), tuple(stops)
    ids = [token for part in ("<think>", *parts) for token in text.encode(part)]
    deltas, thinking, answer = show(ids, cuts, inside=False, stop=stop, strip=False)
    done = split(ids, False, capabilities())
    final_answer = cut_at_stop(text.decode(done.answer), stop, lead=True)[0]
    assert deltas.finish(text.decode(done.thinking), final_answer)
    assert ("".join(thinking), "".join(answer)) == (text.decode(done.thinking), final_answer)


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8), st.integers(1, 6))
def test_thought_past_its_cap_is_not_shown_before_a_prompt_holds_it(words: list[str], cap: int) -> None:
    ids = list(tokenizer().encode("".join(words)))
    _, thinking, _ = show(ids, [], inside=True, control=Thinking(mode="on", max_tokens=cap))
    assert tokenizer().decode(ids[:cap]).lstrip().startswith("".join(thinking))


def test_an_answer_behind_an_empty_thought_is_shown_as_it_comes() -> None:
    ids = list(tokenizer().encode("<think></think>\n\nanswer"))
    _, _, answer = show(ids, [], inside=False, stop=("\n\n",), strip=False)
    assert "".join(answer) == "\n\nanswer"


def test_an_end_of_sequence_and_half_a_character_are_never_shown() -> None:
    ids = [*tokenizer().encode("ok 🙂"), *tokenizer().eos_ids[:1]]
    _, _, answer = show(ids[:-2], [], inside=False)
    assert "\ufffd" not in "".join(answer)
    _, _, answer = show(ids, [], inside=False)
    assert "".join(answer) == "ok 🙂"


def test_text_that_contradicts_what_was_shown_is_noticed() -> None:
    deltas, _, _ = show(list(tokenizer().encode("seven")), [], inside=False)
    assert not deltas.finish("", "eight")
