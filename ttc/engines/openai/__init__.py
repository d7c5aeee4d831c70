"""What engines over HTTP share.

Reading order: `retry` (which failures may pass, and how long to try), `balance` (several servers, each problem stays
where its prefix is); then, for OpenAI-compatible endpoints, `client` (the only file that talks to the official SDK),
`request` and `reply` (one draw out, one draw back), the dialects `ids`, `plain` and `chat`, `probe` (which of them an
endpoint speaks), `ledger` (our counts against the server's), `engine` and `scoring`.
"""

from ttc.engines.openai.factory import openai

__all__ = ["openai"]
