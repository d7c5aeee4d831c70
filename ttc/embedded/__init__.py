"""The embedded decode core: a small transformer for the Llama, Qwen2 and Qwen3 families in plain torch.

Reading order: `shape` (config.json -> dimensions), `weights` (safetensors, packed linears), `model` (the forward pass
and the stable interface for scorers), `cache` (keys and values shared by prefix), `decode` (one step for many
branches), `sampler`, `stops`, `scheduler` (continuous batching). `invariant` and `cuda` are other decoders with the
same interface; `fallback` serves other architectures through transformers.
"""
