"""FLOPs of a problem as if it were alone: it pays for what others computed for it, and once for what it shares itself.

An engine's prefix cache outlives a problem. Whoever asks first then pays for a prompt, and the second strategy of an
evaluation, a problem that shares its examples with one before it, or a run that was interrupted gets it for nothing:
FLOPs, and what a budget of FLOPs buys, would hang on the order of work. Tokens, `cached` among them, stay those of the
engine. Cost: a hash for every 16 tokens of a prompt and of a draw. Left out: endpoints that take no token ids, whose
FLOPs are what the server says it computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttc.core import Completion, Engine, ModelShape, Prompt, Sampling, Usage, UsageSink

_BLOCK = 16


class OwnPrefixes:
    """What one problem has had computed, a tree of blocks of ids; private to its session, so it may change."""

    def __init__(self) -> None:
        self._blocks: dict[int, set[tuple[int, ...]]] = {}
        """What came next, whole blocks and ends, by the hash of all blocks before."""

    def length(self, ids: Sequence[int]) -> int:
        """How many ids at the start of `ids` are known."""
        state = start = 0
        while True:
            block, seen = tuple(ids[start : start + _BLOCK]), self._blocks.get(state, set())
            if len(block) < _BLOCK or block not in seen:
                return start + max((_common(block, other) for other in seen), default=0)
            state, start = hash((state, block)), start + _BLOCK

    def add(self, ids: Sequence[int]) -> None:
        """Remember `ids` and all their beginnings."""
        state = 0
        for start in range(0, len(ids), _BLOCK):
            block = tuple(ids[start : start + _BLOCK])
            self._blocks.setdefault(state, set()).add(block)
            state = hash((state, block))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Ids that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


class _Bill:
    """Passes reports of one request on, with the FLOPs of what it found computed by others."""

    def __init__(self, shape: ModelShape, own: int, num_new: int, on_usage: UsageSink) -> None:
        self._shape, self._own, self._num_new, self._on_usage = shape, own, num_new, on_usage
        self.extra = 0.0

    def __call__(self, usage: Usage) -> None:
        """Charge one draw; any of them may be the one that the engine lets pay for the prompt."""
        if usage.prompt:
            self._num_new -= usage.prompt - usage.cached
            extra = self._shape.flops(max(self._num_new, 0), self._own)
            usage, self.extra = replace(usage, flops=usage.flops + extra - self.extra), extra
        self._on_usage(usage)


async def generate_alone(
    engine: Engine, prefixes: OwnPrefixes, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink
) -> list[Completion]:
    """As `Engine.generate`, with the FLOPs of a problem that is alone; `prefixes` are the problem's."""
    ids, shape = prompt.token_ids, engine.capabilities.shape
    if ids is None or shape is None:
        return await engine.generate(prompt, sampling, draws, on_usage)
    own = prefixes.length(ids)
    prefixes.add(ids)  # before the first await: of two requests at once, one pays
    bill = _Bill(shape, own, len(ids) - own, on_usage)
    completions = await engine.generate(prompt, sampling, draws, bill)
    for completion in completions:
        prefixes.add((*ids, *completion.token_ids[:-1]))  # the last one was sampled, and has not been read
    if bill.extra and completions:
        first, *others = completions
        usage = replace(first.usage, flops=first.usage.flops + bill.extra)
        completions = [replace(first, usage=usage), *others]
    return completions
