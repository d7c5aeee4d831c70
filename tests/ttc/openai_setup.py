"""What the tests of the openai engine share: servers, engines over them, one draw."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

from tests.loops import finished
from tests.ttc import conformance as suite
from tests.ttc import test_conformance as shared
from tests.ttc.openai_server import Behaviour, OpenAIServer
from tests.ttc.test_conformance import draw
from ttc import nano
from ttc.core import Completion, Engine, Message, Problem, Usage
from ttc.engines.openai.engine import RemoteEngine
from ttc.engines.openai.factory import openai
from ttc.engines.scripted import ScriptedEngine

TEACHER = str(nano.path("teacher"))
CHAT = Behaviour(ids=False, prefill=False, completions=False, strict=True)
"""The plainest endpoint: messages and OpenAI's own fields."""


ALIKE = (
    shared.test_text_is_what_the_ids_decode_to,
    shared.test_a_stop_string_ends_the_draw_and_stays_in_it,
    shared.test_a_stop_token_ends_the_draw_and_stays_in_it,
    shared.test_every_draw_reports_its_usage_once_and_the_sum_is_the_engines_own,
    shared.test_a_prompt_beyond_the_context_is_refused_with_both_numbers,
)
"""What the conformance suite asks of an engine over any server that takes ids."""


# Neither a key nor an address from outside the tests.
for _name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
    os.environ.pop(_name, None)


def teacher_server() -> OpenAIServer:
    """The packaged teacher, as vLLM would serve it."""
    return OpenAIServer(suite.embedded, Behaviour(max_model_len=2048))


def by_ids(server: OpenAIServer, **options) -> RemoteEngine:
    server.faults.clear()
    engine = openai(base_url=server.url, tokenizer=TEACHER, retry_s=5.0, **options)
    assert isinstance(engine, RemoteEngine) and engine.capabilities.token_ids
    return engine


def talker(thinking: bool = False, steps: int = 2) -> ScriptedEngine:
    """Says some steps and an answer that depend on the seed; goes on from wherever it is."""

    def script(prompt, path, key):
        lines = [f"step {i}\n\n" for i in range(steps)]
        whole = "".join(lines) + (f"</think>so \\boxed{{{key % 3}}}" if thinking else f"so \\boxed{{{key % 3}}}")
        said = prompt.generated_text
        return whole[len(said) :] if whole.startswith(said) else f"\\boxed{{{key % 3}}}"

    return ScriptedEngine(script, thinking=thinking)


def ask(text: str = "2+2") -> Problem:
    return Problem(id=text, messages=(Message("user", text),), kind="math")


def once(engine: Engine, draws: range = range(1), usages: list[Usage] | None = None, **kwargs) -> list[Completion]:
    """Draw from one problem and close the engine."""

    return finished(draw(engine, draws, usages, **kwargs), engine)


def essential(completions: list[Completion]) -> list[Completion]:
    return [replace(completion, usage=Usage()) for completion in completions]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
