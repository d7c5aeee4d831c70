"""The vLLM engine's parts: what is between `ttc.core.Engine` and vLLM.

Reading order: `options` (keyword parameters, checked, and what they become in vLLM), `requests` (what a driver is
handed and what comes back), `params` (a draw's sampling in vLLM's words), `in_process` and `background` (the two
drivers: vLLM's step loop in a thread of this process, or `AsyncLLM` with its own processes), `counts` (vLLM's own token
counts), `weights` (what runs inside vLLM's workers when weights are replaced), `start` (the one file that imports
vLLM), `engine` (the protocols of `ttc.core`), `thinking_cap` (is vLLM's own thinking budget exact for this model?).
"""

from ttc.engines.vllm.factory import vllm

__all__ = ["vllm"]
