"""Readers of streams: whatever JSON a server sends is read, or refused as unreadable, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.core import Sampling, Usage
from ttc.engines.openai.engine import Ledger
from ttc.engines.openai.ids import IdsReader
from ttc.engines.openai.wire import ServerUsage, TextReader
from ttc.engines.shared.balance import Transient
from ttc.engines.shared.tokens import StopRule
from ttc.session.thinking import split_text

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["stop", "abort"])
)
PARTS = ["choices", "delta", "message", "text", "content", "reasoning", "finish_reason", "stop_reason"]
LISTS = ["token_ids", "logprobs", "tokens", "token_logprobs"]
COUNTS = ["usage", "prompt_tokens", "completion_tokens", "completion_tokens_details"]
NAMES = st.sampled_from([*PARTS, *LISTS, *COUNTS])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))
FIELDS = st.dictionaries(NAMES, VALUES, max_size=4)
CHUNKS = st.lists(FIELDS | st.builds(lambda choice, usage: {"choices": [choice], "usage": usage}, FIELDS, VALUES))


def readers() -> list[Any]:
    rule = StopRule(("x",), (5,), (2,), (), lambda ids: "".join(chr(97 + i % 26) for i in ids))
    by_ids = IdsReader(rule, Sampling(max_tokens=4), (2,), lambda ids: "a" * len(ids), True)
    return [by_ids, TextReader(("x",), ("</s>",), False, len), TextReader((), (), True, None)]


@given(CHUNKS)
def test_any_json_is_read_or_refused_as_unreadable(chunks: list[dict[str, Any]]) -> None:
    for reader in readers():
        try:
            for chunk in chunks:
                reader.add(chunk)
            outcome = reader.result()
        except (ValueError, Transient):
            continue
        assert outcome.finish_reason in ("stop", "length", "abort")
        assert reader.num_streamed >= 0 and outcome.num_generated >= 0


def by_text(*chunks: dict[str, Any], stops: tuple[str, ...] = (), inside: bool = False) -> Any:
    reader = TextReader(stops, ("</s>",), inside, None)
    for choice in chunks:
        reader.add({"choices": [choice]})
    return reader.result()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"delta": fields, "finish_reason": finish}


@pytest.mark.parametrize(
    ("inside", "chunks", "thinking", "answer", "open_end"),
    [
        (False, [delta(reasoning="a"), delta("stop", content="b")], "a", "b", False),
        (True, [delta(reasoning_content="a"), delta("stop", content="b")], "a", "b", False),
        (False, [delta("stop", content="<think>a</think>b")], "a", "b", False),
        (True, [delta("stop", content="<think>a</think>b")], "a", "b", False),
        (False, [delta("stop", content="a</think>b")], "a", "b", False),
        (True, [delta("stop", content="b")], "", "b", False),
        (False, [delta("stop", content="b")], "", "b", False),
        (True, [delta(reasoning="a"), delta("length")], "a", "", True),
        (False, [delta(reasoning="a"), delta("length", content=None)], "a", "", True),
    ],
)
def test_thinking_is_told_from_the_answer_in_every_shape_that_servers_use(
    inside: bool, chunks: list[dict[str, Any]], thinking: str, answer: str, open_end: bool
) -> None:
    parts = split_text(by_text(*chunks, inside=inside).text, inside)
    assert (parts.thinking, parts.answer, parts.inside) == (thinking, answer, open_end)


def test_a_stop_string_is_put_back_where_the_server_took_it_off() -> None:
    told = {"text": "step", "finish_reason": "stop", "stop_reason": "\n\n"}
    assert by_text(told, stops=("\n\n",)).text == "step\n\n"
    left = {"text": "step\n\n", "finish_reason": "stop"}
    assert by_text(left, stops=("\n\n",)).stop_reason == "\n\n"
    end = {"text": "done</s>", "finish_reason": "stop"}
    outcome = by_text(end, stops=("\n\n",))
    assert (outcome.text, outcome.stop_reason) == ("done", "eos")


def test_ids_come_as_a_list_or_spelled_as_tokens_and_anything_else_is_refused() -> None:
    for choice in ({"token_ids": [7, 8]}, {"logprobs": {"tokens": ["token_id:7", "token_id:8"]}}):
        reader = readers()[0]
        assert reader.add({"choices": [choice]}) == (False, (7, 8))
    for bad in ({"token_ids": ["7"]}, {"token_ids": [-1]}, {"token_ids": 7}, {"token_ids": [1 << 40]}):
        with pytest.raises(ValueError, match="token"):
            readers()[0].add({"choices": [bad]})


def test_an_end_of_sequence_that_only_the_server_knows_closes_the_ids() -> None:
    named, silent = readers()[0], readers()[0]
    named.add({"choices": [{"token_ids": [7, 9], "finish_reason": "stop", "stop_reason": 9}]})
    assert named.result().token_ids == (7, 9) and named.result().stop_reason == "eos"
    silent.add({"choices": [{"token_ids": [7, 8], "finish_reason": "stop"}]})
    assert silent.result().token_ids == (7, 8, 2) and silent.result().text == "aa"


def usage(prompt: int, completion: int, total: int, reasoning: int | None = None) -> dict[str, Any]:
    details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **details}


@pytest.mark.parametrize(
    ("told", "generated", "thought"),
    [
        (usage(10, 20, 30, 15), 20, 15),
        (usage(12, 1, 399, 386), 387, 386),
        (usage(20, 198, 623), 603, 405),
        (usage(10, 20, 0), 20, 0),
    ],
    ids=["OpenAI", "xAI", "Gemini", "no total"],
)
def test_thought_that_a_server_leaves_out_of_the_completion_is_generated_too(
    told: dict[str, Any], generated: int, thought: int
) -> None:
    reader = TextReader((), (), False, None)
    reader.add({"choices": [delta("stop", content="4")], "usage": told})
    outcome = reader.result()
    assert (outcome.num_generated, outcome.num_thinking) == (generated, thought)
    assert outcome.server.prompt == told["prompt_tokens"]


def test_counts_of_zero_are_placeholders_and_those_of_a_cut_stream_are_believed() -> None:
    zeros, cut = usage(0, 0, 0), TextReader((), (), False, None)
    reader = TextReader((), (), False, None)
    for row, told in ((delta(content="a"), zeros), (delta("stop", content="b"), usage(3, 9, 12)), (delta(), zeros)):
        reader.add({"choices": [row], "usage": told})
    assert reader.result().server == ServerUsage(3, 9)
    cut.add({"choices": [delta(content="many words")], "usage": usage(3, 40, 43)})
    assert cut.num_streamed == 40
    nothing = TextReader((), (), False, len)
    nothing.add({"choices": [delta("stop", content="abc")], "usage": zeros})
    assert nothing.result().server == ServerUsage() and nothing.result().num_generated == 3
    reader.add({"usage": {"prompt_tokens": 4.0, "completion_tokens": 8.0}})
    assert reader.result().server == ServerUsage(4, 8)


def test_an_empty_finish_reason_is_none() -> None:
    assert by_text(delta("", content="a"), delta("stop", content="b"), delta("")).finish_reason == "stop"
    with pytest.raises(Transient, match="before the completion had ended"):
        by_text(delta("", content="a"))


def test_the_two_ledgers_are_compared_only_where_both_are_known() -> None:
    ledger, seen = Ledger("m"), list[Usage]()
    ledger.report(Usage(generated=3), seen.append)
    ledger.compare(5, 3, ServerUsage(5, 3))
    ledger.compare(5, 3, ServerUsage())
    ledger.compare(None, None, ServerUsage(5, 3))
    with pytest.warns(RuntimeWarning, match="server counts 5 prompt and 4 generated tokens, we count 5 and 3"):
        ledger.compare(5, 3, ServerUsage(5, 4))
    ledger.compare(5, 3, ServerUsage(5, 9))
    found = ledger.compared
    assert (found.agreed, found.unreported, found.taken, found.differed) == (1, 1, 1, 2)
    assert seen == [ledger.totals] == [Usage(generated=3)]
