"""The parts of the openai engine, between `ttc.core.Engine` and an OpenAI-compatible endpoint.

Reading order: `client` (the requests of a run), `refusals` (what else a server may answer), `sync_client` (the first
questions, through the official SDK), `wire` (one draw out, one draw back), the dialects `ids` (token ids) and `chat`
(text and messages), `probe` (which of them an endpoint speaks), `engine` (the protocols of `ttc.core`). Retries and
several servers are `ttc.engines.shared.balance`.
"""

from ttc.engines.openai.factory import openai

__all__ = ["openai"]
