"""The embedded decode core: a small transformer for the Llama, Qwen2, Qwen3 and Mistral families in plain torch.

Reading order: `weights` (safetensors, packed linears), `model` (the forward pass and the stable interface for scorers),
`cache` (keys and values shared by prefix), `decode` (one step for many branches), `sampler`; then `requests` (what goes
in and comes back), `prefill`, `batch` and `scheduler` (continuous batching). `invariant` is the batch-invariant
decoder; `fallback` serves other architectures through transformers. On a GPU `gpu_batch`, `gpu_decoder`, `gpu_body`,
`gpu_attention` and `gpu_pool` take the places of `batch`, `forest`, `model`, `attention` and `pool`, over the captured
step of `device` and the kernels of `kernels`. `loading` and `gpu_loading` start it all from a model folder, whose
dimensions and tokenizer are read by `ttc.engines.shared`.
"""

from ttc.engines.embedded.engine import embedded

__all__ = ["embedded"]
