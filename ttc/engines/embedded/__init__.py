"""The embedded decode core: a small transformer for the Llama, Qwen2 and Qwen3 families in plain torch.

Reading order: `weights` (safetensors, packed linears), `model` (the forward pass and the stable interface for scorers),
`cache` (keys and values shared by prefix), `decode` (one step for many branches), `sampler`; then `requests` (what goes
in and comes back), `prefill`, `batch` and `scheduler` (continuous batching). `rows` is the base of two other decoders,
`invariant` and `cuda`; `fallback` serves other architectures through transformers. `loading` starts it all from a model
folder, whose dimensions and tokenizer are read by `ttc.engines.shared`.
"""

from ttc.engines.embedded.engine import embedded

__all__ = ["embedded"]
