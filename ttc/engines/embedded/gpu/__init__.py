"""The engine on a GPU: what takes the place of `core`, over the captured step of `device` and the kernels of `kernels`.

Reading order: `pool` (pages that never grow), `body` (prefill), `attention` (the forest's plan), `decoder` (rows that
stay on the device), `batch` (what the scheduler runs); `families`, `budget` and `loading` start it.
"""
