"""VLLM's own token counts, from the statistics of its output processor: what the ledger is checked against.

It is a stat logger by shape, not by inheritance, so that this file needs no vLLM. Prompt tokens are counted at a
request's first output, cached ones likewise, generated ones at every output; what the core decodes for a request that
was already aborted is not counted by vLLM, nor by us.
"""

from __future__ import annotations

from typing import Any

from ttc.core import Usage

__all__ = ["Counts"]


class Counts:
    """Sums over all requests and all data-parallel ranks; one object serves every rank."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = 0

    def __call__(self, config: Any, engine_index: int = 0) -> Counts:
        """Serve as vLLM's factory of stat loggers."""
        return self

    @property
    def usage(self) -> Usage:
        """The sums; `generated` includes what the ledger calls overrun."""
        return Usage(prompt=self.prompt, cached=self.cached, generated=self.generated)

    def record(self, scheduler_stats: Any, iteration_stats: Any, **rest: Any) -> None:
        """Add one step of the engine."""
        if iteration_stats is not None:
            self.prompt += iteration_stats.prompt_token_stats.total
            self.cached += iteration_stats.prompt_token_stats.cached_tokens
            self.generated += iteration_stats.num_generation_tokens

    def log(self) -> None:
        """Write nothing: vLLM asks its loggers to print from time to time."""

    def log_engine_initialized(self) -> None:
        """Write nothing."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Ignore sleep: it has no tokens."""
