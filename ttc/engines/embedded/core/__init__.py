"""The decode core in torch and numba: the whole engine on a CPU, and what a GPU shares with it.

Reading order: `weights` (safetensors, packed linears), `model` (the forward pass and the stable interface for scorers),
`native` (what it does between its products, compiled), `pool` and `cache` (keys and values in pages, shared by prefix),
`attention` (of new tokens), `paged` (one step for many branches), `sampler`; then `requests` (what goes in and comes
back), `prefill`, `tenants`, `batch` and `scheduler` (continuous batching). `invariant` is the batch-invariant decoder;
`fallback` serves other architectures through transformers; `guide` holds draws to grammars.
"""
