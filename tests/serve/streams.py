"""Reading streams as a client does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.serve.running import Running


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The data objects of a stream, which must end as OpenAI's do."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def streamed(server: Running, body: Mapping[str, Any]) -> dict[str, Any]:
    """A streamed chat reply put together: per choice its content, reasoning and finish, and the `ttc` object."""
    response = server.ask({**body, "stream": True, "stream_options": {"include_usage": True}})
    assert response.status_code == 200, response.text
    choices: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"progress": []}
    for chunk in chunks_of(response.text):
        assert chunk["object"] == "chat.completion.chunk"
        if chunk.get("ttc", {}).get("type") == "progress":
            whole["progress"].append(chunk["ttc"])
            assert chunk["choices"][0]["delta"] == {}
            continue
        if "ttc" in chunk:
            whole["ttc"] = chunk["ttc"]
        if chunk["usage"] is not None:
            whole["usage"] = chunk["usage"]
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"content": "", "reasoning": "", "finish_reason": None, "token_ids": None}
            )
            assert choice["finish_reason"] is None, "a delta after the end of a choice"
            choice["content"] += part["delta"].get("content") or ""
            choice["reasoning"] += part["delta"].get("reasoning") or ""
            choice["finish_reason"] = part["finish_reason"]
            choice["token_ids"] = part.get("token_ids", choice["token_ids"])
            if part["logprobs"] is not None:
                rows = choice.setdefault("logprobs", {"content": [], "refusal": None})
                rows["content"] += part["logprobs"]["content"]
    whole["choices"] = [{"logprobs": None, **choices[index]} for index in sorted(choices)]
    return whole


def whole(server: Running, body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat reply that is not streamed, in the shape of `streamed`."""
    response = server.ask(body)
    assert response.status_code == 200, response.text
    reply = response.json()
    choices = [
        {
            "content": choice["message"]["content"],
            "reasoning": choice["message"].get("reasoning", ""),
            "finish_reason": choice["finish_reason"],
            "token_ids": choice.get("token_ids"),
            "logprobs": choice["logprobs"],
        }
        for choice in reply["choices"]
    ]
    return {"choices": choices, "ttc": reply["ttc"], "usage": reply["usage"], "progress": []}


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Two replies say the same."""
    drop = ("flops", "prompt", "cached")  # what the cache held depends on what ran before
    for key in ("choices", "usage"):
        a, b = left[key], right[key]
        if key == "usage":
            a, b = dict(a, prompt_tokens_details=None), dict(b, prompt_tokens_details=None)
        assert a == b
    ledgers = [{k: v for k, v in side["ttc"]["usage"].items() if k not in drop} for side in (left, right)]
    assert ledgers[0] == ledgers[1]
    assert left["ttc"]["thinking"] == right["ttc"]["thinking"]
