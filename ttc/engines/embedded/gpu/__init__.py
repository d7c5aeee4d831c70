"""The engine on a GPU: replaces parts of `core` with the captured step of `device` and the kernels of `kernels`.

Reading order: `pool` (pages of fixed number), `body` (prefill), `attention` (the forest's plan), `decoder` (rows that
stay on the device), `batch` (what the scheduler runs); `families`, `budget` and `loading` start it.
"""
