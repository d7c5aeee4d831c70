"""The parts of the vLLM engine, between `ttc.core.Engine` and vLLM.

Reading order: `options` (keyword parameters, their checks and vLLM's names for them), `requests` (the request and reply
of a draw), `drivers` (the step loop in a thread of this process, or `AsyncLLM` with its own processes), `weights` (runs
inside vLLM's workers to replace weights), `start` (the only file that imports vLLM), `engine` (the protocols of
`ttc.core`), `thinking_cap` (whether vLLM's own thinking budget is exact for this model).
"""

from ttc.engines.vllm.factory import vllm

__all__ = ["vllm"]
