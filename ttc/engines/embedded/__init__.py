"""The embedded engine: a small transformer for the Llama, Qwen2, Qwen3 and Mistral families, made for search.

`engine` is what users name; `loading` starts it from a model folder, whose dimensions and tokenizer are read by
`ttc.engines.shared`. It runs `core` on a CPU, and on a GPU `gpu`, over the captured step of `device` and the kernels of
`kernels`. `replicas`, `replica`, `routing` and `wire` run it in several processes.
"""

from ttc.engines.embedded.engine import embedded

__all__ = ["embedded"]
