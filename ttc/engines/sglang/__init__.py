"""The parts of the SGLang engine, between `ttc.core.Engine` and SGLang.

Reading order: `wire` (requests, answers, one request in flight), `http` and `local` (the two servers: over HTTP, and in
this process, the only file that imports SGLang), `engine` (the protocols of `ttc.core`).
"""

from ttc.engines.sglang.factory import sglang

__all__ = ["sglang"]
