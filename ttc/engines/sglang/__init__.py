"""The parts of the SGLang engine, between `ttc.core.Engine` and SGLang.

Reading order: `wire` (requests, answers, one request under way), `http` and `local` (the two servers: over HTTP, and in
this process, the one file that imports SGLang), `engine` (the protocols of `ttc.core`).
"""

from ttc.engines.sglang.factory import sglang

__all__ = ["sglang"]
