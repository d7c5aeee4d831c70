"""`vllm bench serve`, guidellm, Open WebUI: the shapes of their requests, and the streams as those read them.

Read off their sources: the two load generators ask for all tokens (`ignore_eos`), Open WebUI passes on what a user has
set in its page. The server lets go unheard what its operator allows, and its header says so.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
MESSAGES_ONLY = os.environ.get("TTC_SERVE_PLACE") == "messages"
TURNS = [{"role": "user", "content": [{"type": "text", "text": "3+4"}]}]
USAGE = {"include_usage": True}
WITH_EVERY_CHUNK = {**USAGE, "continuous_usage_stats": True}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm bench serve, completions": (
        "/v1/completions",
        {"prompt": "3+4", "repetition_penalty": 1.0, "max_tokens": 9, "logprobs": None, "ignore_eos": True},
    ),
    "vllm bench serve, chat": (
        "/v1/chat/completions",
        {"messages": TURNS, "max_completion_tokens": 9, "ignore_eos": True, "temperature": 0.0, "top_p": 1.0},
    ),
    "guidellm, completions": (
        "/v1/completions",
        {"prompt": "3+4", "max_tokens": 9, "stop": None, "ignore_eos": True, "stream_options": WITH_EVERY_CHUNK},
    ),
    "guidellm, chat": (
        "/v1/chat/completions",
        {
            "messages": TURNS,
            "max_completion_tokens": 9,
            "stop": None,
            "ignore_eos": True,
            "stream_options": WITH_EVERY_CHUNK,
        },
    ),
    "Open WebUI": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "3+4"}],
            "temperature": 0.8,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.0,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "repeat_penalty": 1.0,
            "max_tokens": 64,
            "seed": 7,
            "stop": ["STOP"],
            "logit_bias": {},
            "keep_alive": "5m",
        },
    ),
    "Open WebUI, its title": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Name this chat"}], "max_completion_tokens": 1000, "stream": False},
    ),
}


def ask(path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The reply's text, and what its header says went unheard."""
    whole = {"model": MODEL, "stream": True, "stream_options": USAGE, **body}
    if not whole["stream"]:
        del whole["stream_options"]
    request = urllib.request.Request(f"{URL}{path}", json.dumps(whole).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode(), reply.headers.get("x-ttc-ignored") or ""


def read(text: str, streamed: bool) -> tuple[str, dict[str, Any]]:
    """What was said, thought included, and the usage."""
    if not streamed:
        reply = json.loads(text)
        return reply["choices"][0]["message"]["content"], reply["usage"]
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    parts = [part for chunk in chunks for part in chunk["choices"]]
    words = [part.get("text") or part.get("delta", {}) for part in parts]
    said = [word if isinstance(word, str) else word.get("reasoning") or word.get("content") or "" for word in words]
    return "".join(said), chunks[-1]["usage"]


def main() -> None:
    for name, (path, body) in SHAPES.items():
        if MESSAGES_ONLY and path == "/v1/completions":  # refused by name: the upstream server takes no raw prompts
            continue
        raw, unheard = ask(path, body)
        said, usage = read(raw, body.get("stream", True))
        assert said and usage["completion_tokens"] > 0, (name, raw)
        assert ("ignore_eos" in unheard) == ("ignore_eos" in body), (name, unheard)


main()
