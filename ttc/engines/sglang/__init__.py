"""The SGLang engine's parts: what is between `ttc.core.Engine` and SGLang.

Reading order: `wire` (the words of requests and answers), `call` (one request under way), `http` and `local` (the two
servers: over HTTP, and in this process, the one file that imports SGLang), `weights` (new weights as a folder),
`engine` (the protocols of `ttc.core`).
"""

from ttc.engines.sglang.factory import sglang

__all__ = ["sglang"]
