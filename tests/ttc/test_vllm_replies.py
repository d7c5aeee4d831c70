"""What a reply of vLLM's becomes: its stop reason, its text and its columns of the ledger; no vLLM is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ttc.core import ExtraCompletion, ModelShape, Sampling, Usage
from ttc.engines.vllm.requests import RequestResult, completion_of, draw_usage, scoring_usage

EOS = 1
SHAPE = ModelShape(num_params=1000, num_layers=2, attention_width=8)


def reply(ids: Sequence[int] = (5, 6), **changes: Any) -> RequestResult:
    told = {"logprobs": None, "finish": "stop", "stop": None, "num_cached": 0, "prompt_logprobs": None}
    return RequestResult(tuple(ids), **{**told, **changes})


def completed(given: RequestResult, **sampling: Any) -> Any:
    return completion_of((3,), Sampling(**sampling), given, Usage(), (EOS,), lambda ids: ".".join(map(str, ids)))


@pytest.mark.parametrize(
    ("ids", "finish", "stop", "reason", "text"),
    [
        ((5, EOS), "stop", None, "eos", "5"),
        ((5, EOS), "stop", "x", "eos", "5"),
        ((5, 7), "stop", "x", 7, "5.7"),
        ((5, 6), "stop", "x", "x", "5.6"),
        ((5, EOS), "length", None, None, "5.1"),
    ],
)
def test_the_strongest_reason_names_the_stop_and_only_an_end_of_sequence_leaves_the_text(
    ids: tuple[int, ...], finish: str, stop: str | None, reason: object, text: str
) -> None:
    found = completed(reply(ids, finish=finish, stop=stop), stop_token_ids=(7,))
    assert (found.stop_reason, found.text, found.token_ids, found.path) == (reason, text, ids, (3,))


def test_the_likeliest_tokens_come_with_the_completion_where_they_were_told() -> None:
    tops = (((5, -0.1),), ((6, -0.2),))
    assert not isinstance(completed(reply()), ExtraCompletion)
    assert completed(reply(tops=tops)).top_logprobs == tops


def test_a_draw_is_charged_whole_an_aborted_one_as_overrun_and_an_unborn_one_as_a_call() -> None:
    used = draw_usage(SHAPE, 10, reply(num_cached=4))
    assert (used.prompt, used.cached, used.generated, used.overrun) == (10, 4, 2, 0)
    assert used.flops == SHAPE.flops(6, 4) + SHAPE.flops(1, 10)
    cut = draw_usage(None, 10, reply(finish="abort"))
    assert (cut.generated, cut.overrun, cut.flops) == (0, 2, 0.0)
    assert draw_usage(SHAPE, 10, reply((), finish="abort")) == Usage(calls=1, attempts=1)


def test_scoring_computes_every_token_anew_and_its_one_sampled_token_is_overrun() -> None:
    used = scoring_usage(SHAPE, 10, reply((5,), num_cached=4))
    assert (used.prompt, used.cached, used.scored, used.overrun) == (10, 0, 10, 1)
    assert used.flops == SHAPE.flops(10, 0)
