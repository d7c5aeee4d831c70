"""LiteLLM's proxy in front of the server: OpenAI's library asks it for chats, tools and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import openai

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "x", "parameters": PARAMETERS}}]


@contextlib.contextmanager
def proxy() -> Iterator[str]:
    """The proxy's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parameters = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "front", "litellm_params": parameters}]}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "config.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        program = pathlib.Path(sys.executable).with_name("litellm")
        command = [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
        keyless = os.environ | {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=keyless)
        try:
            yield wait_for(f"http://127.0.0.1:{port}", child)
        finally:
            child.terminate()
            child.wait(20)


def wait_for(url: str, child: subprocess.Popen[bytes]) -> str:
    """`url`, once something answers there."""
    for _ in range(600):
        assert child.poll() is None, "the proxy died"
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=2)
            return url
        time.sleep(0.2)
    raise TimeoutError(url)


def main() -> None:
    with proxy() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "3+4"}]
        reply = client.chat.completions.create(model="front", messages=messages)
        assert "7" in (reply.choices[0].message.content or "")
        chunks = client.chat.completions.create(model="front", messages=messages, stream=True)
        assert "7" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        called = client.chat.completions.create(model="front", messages=messages, tools=TOOLS, tool_choice="required")
        (call,) = called.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        turns = [*messages, called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "12"}]
        assert client.chat.completions.create(model="front", messages=turns, tools=TOOLS).choices[0].message.content
        schema = {"type": "json_schema", "json_schema": {"name": "r", "schema": PARAMETERS, "strict": True}}
        typed = client.chat.completions.create(model="front", messages=messages, response_format=schema)
        assert json.loads(typed.choices[0].message.content or "") == {"city": "Paris"}


main()
