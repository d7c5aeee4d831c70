"""LiteLLM as a client, by its `openai` and its `hosted_vllm` provider."""

from __future__ import annotations

from typing import Any

import pytest

litellm: Any = pytest.importorskip("litellm")
MESSAGES = [{"role": "user", "content": "12+30*2"}]


def ask(url: str, provider: str = "openai", **fields: Any) -> Any:
    litellm.suppress_debug_info = True
    return litellm.completion(
        model=f"{provider}/nano-teacher",
        api_base=f"{url}/v1",
        api_key="none",
        messages=MESSAGES,
        num_retries=0,
        **fields,
    )


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_chat_has_answer_thought_and_usage(url: str, provider: str) -> None:
    reply = ask(url, provider, seed=1, max_tokens=300)
    message = reply.choices[0].message
    assert message.content and message.reasoning_content
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_stream_adds_up_to_the_same_answer(url: str, provider: str) -> None:
    whole = ask(url, provider, seed=1, max_tokens=300)
    chunks = list(ask(url, provider, seed=1, max_tokens=300, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices)
    assert thought == whole.choices[0].message.reasoning_content


def test_budgets_and_searches_go_through_extra_body(url: str) -> None:
    reply = ask(url, extra_body={"thinking_budget": 5})
    assert reply.usage.completion_tokens_details.reasoning_tokens == 5
    reply = ask(url, extra_body={"ttc": {"strategy": "majority", "n": 4}})
    assert reply.choices[0].message.content


def test_progress_chunks_do_not_disturb_a_stream(url: str) -> None:
    body = {"ttc": {"strategy": "tree", "n": 8, "progress": "full"}}
    text = "".join(c.choices[0].delta.content or "" for c in ask(url, extra_body=body, stream=True) if c.choices)
    assert "boxed" in text


def test_a_refusal_is_a_bad_request(url: str) -> None:
    with pytest.raises(litellm.BadRequestError, match="thinking_budgit"):
        ask(url, extra_body={"thinking_budgit": 3})
