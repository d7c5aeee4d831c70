"""A server like vLLM's on loopback, over the scripted actor: takes and gives ids, holds grammars; says where."""

from __future__ import annotations

import signal
import sys

from tests.serve.actor import CONTEXT, actor
from tests.ttc.openai_server import Behaviour, OpenAIServer

if __name__ == "__main__":
    with OpenAIServer(actor, Behaviour(model="actor", max_model_len=CONTEXT)) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        signal.pause()
