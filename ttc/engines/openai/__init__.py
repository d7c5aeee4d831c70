"""The parts of the openai engine, between `ttc.core.Engine` and an OpenAI-compatible endpoint.

Reading order: `client` (the requests of a run), `refusals` (error replies), `sync_client` (the first requests, through
the official SDK), `wire` (the request and reply of one draw), the dialects `ids` (token ids) and `chat` (text and
messages), `probe` (which of them an endpoint supports), `engine` (the protocols of `ttc.core`). Retries and several
servers are in `ttc.engines.shared.balance`.
"""

from ttc.engines.openai.factory import openai

__all__ = ["openai"]
