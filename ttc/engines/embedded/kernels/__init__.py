"""Attention over the pages of a forest, for GPUs: each unique key is read once per step for all rows below it.

Reading order: `plan` and `ragged` (which keys are read for which rows: numpy on the host, int32 on the device),
`forest` (decoding) and `prefill` (new tokens after a prefix), both in Triton with the loop of `online` and the launch
parameters of `launches`. Keys and values of a layer are two tensors (pages, kv heads, PAGE, head size). The algorithm
in plain torch, the tests' oracle, is `tests/ttc/kernel_reference.py`.

Only `forest` and `prefill` need Triton; the CPU engine imports nothing from here. Left out: head sizes above 256,
quantised keys, logit caps, attention sinks.
"""
