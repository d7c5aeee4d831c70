"""The decode core in torch and numba: the whole engine on a CPU, and the parts that a GPU shares with it.

Reading order: `weights` (safetensors, packed linears), `model` (the forward pass and the stable interface for scorers),
`native` (compiled kernels for everything in a layer but the matrix products), `pool` and `cache` (keys and values in
pages, shared by prefix), `attention` (over new tokens), `paged` (one decoding step for many branches), `sampler`; then
`requests` (requests, draws and replies), `prefill`, `tenants`, `batch` and `scheduler` (continuous batching).
`invariant` is the batch-invariant decoder. Other architectures are loaded through transformers (`transformers_module`):
`transformers_body` computes their attention here, and `fallback` runs the rest, whose cache `row_cache` takes apart and
builds again. `guide` constrains draws to grammars.
"""
