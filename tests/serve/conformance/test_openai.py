"""The official `openai` SDK, 2.x and 3.x."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "12+30*2"}]
MODEL = "nano-teacher"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_chat_has_an_answer_its_thought_and_its_usage(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=300, seed=1)
    message = reply.choices[0].message
    assert message.content and reply.choices[0].finish_reason == "stop"
    assert message.reasoning == message.reasoning_content != ""  # type: ignore[attr-defined]
    usage = reply.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert reply._request_id


def test_a_stream_is_read_by_a_plain_loop(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=1, max_tokens=300)
    content, reasoning, usages, finishes = "", "", [], []
    for chunk in client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=1, max_tokens=300, stream=True, stream_options={"include_usage": True}
    ):
        if chunk.usage is not None:
            usages.append(chunk.usage)
            continue
        delta: Any = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
        finishes.append(chunk.choices[0].finish_reason)
    assert content == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert [usage.completion_tokens for usage in usages] == [whole.usage.completion_tokens]  # type: ignore[union-attr]
    assert finishes[-1] == "stop" and set(finishes[:-1]) == {None}


def test_the_stream_helper_puts_the_message_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, seed=1, max_tokens=300) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content


def test_progress_and_the_result_of_a_search_are_readable_in_chunks(client: openai.OpenAI) -> None:
    search = {"ttc": {"strategy": "tree", "n": 8, "progress": "full", "seed": 1}}
    seen: list[Any] = []
    content = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=search, stream=True):
        content += chunk.choices[0].delta.content or ""
        seen.append(getattr(chunk, "ttc", None))
    told = [item for item in seen if item]
    assert {item["type"] for item in told} == {"progress", "result"}
    assert told[-1]["type"] == "result" and told[-1]["final"] in content


def test_a_budget_in_extra_body_holds(client: openai.OpenAI) -> None:
    reply: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"thinking_budget": 5})
    assert reply.ttc["thinking"]["used"] == 5 == reply.usage.completion_tokens_details.reasoning_tokens


@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_reasoning_effort_is_a_parameter(client: openai.OpenAI, effort: Any) -> None:
    reply: Any = client.chat.completions.create(model=MODEL, messages=MESSAGES, reasoning_effort=effort)
    assert (reply.ttc["thinking"]["used"] == 0) == (effort == "none")


def test_completions_continue_a_raw_prompt(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="1+1=", max_tokens=5, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    text = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model=MODEL, prompt="1+1=", max_tokens=5, seed=3, stream=True)
    )
    assert text == client.completions.create(model=MODEL, prompt="1+1=", max_tokens=5, seed=3).choices[0].text


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_become_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"thinking_budgit": 4})
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", "thinking_budgit")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)


def test_the_asynchronous_client_runs_many_at_once(url: str) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            calls = [client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=i) for i in range(8)]
            return list(await asyncio.gather(*calls))

    assert all(reply.choices[0].message.content for reply in asyncio.run(ask()))
