"""The embedded engine: a small transformer for the Llama, Qwen2, Qwen3, Mistral and SmolLM3 families, built for search.

Users create it with `engine.embedded`; `loading` starts it from a model folder, whose dimensions and tokenizer are read
by `ttc.engines.shared`. On a CPU it runs `core`; on a GPU `gpu`, with the captured step of `device` and the kernels of
`kernels`. `replicas`, `replica`, `routing` and `wire` run it in several processes.
"""

from ttc.engines.embedded.engine import embedded

__all__ = ["embedded"]
