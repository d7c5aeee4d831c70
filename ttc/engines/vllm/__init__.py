"""The parts of the vLLM engine, between `ttc.core.Engine` and vLLM.

In the order of reading:

    options       keyword parameters, checked, and what they become in vLLM
    requests      what vLLM is asked for a draw, and what comes back
    drivers       its step loop in a thread of this process, or `AsyncLLM` with its own processes
    weights       what runs inside vLLM's workers when weights are replaced
    start         the one file that imports vLLM
    engine        the protocols of `ttc.core`
    thinking_cap  whether vLLM's own thinking budget is exact for this model
"""

from ttc.engines.vllm.factory import vllm

__all__ = ["vllm"]
