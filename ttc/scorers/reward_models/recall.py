"""Scorers whose keys and values are elsewhere (a server, vLLM, transformers): only scores are stored here.

A path is laid out as ids and the positions of its scores (`layouts`); scores that an ancestor had are not requested
again, so a step of a search requests only its own score. The backend states how many tokens that costs, also in advance
for a token budget: an upper bound as long as its prefix cache evicts nothing that was read.

vLLM has a prefix cache of whole blocks (`Blocks`). It finds the longest run of whole blocks that it has seen, and
always computes at least the last token, so the cost of a request follows from the paths that were sent before it. Left
out: what other clients have put into the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeAlias

from ttc.choosing.selection import How, aggregate
from ttc.concurrent import gather
from ttc.core import Path, Price, Prompt, Score, UsageSink
from ttc.errors import PromptTooLong
from ttc.scorers.reward_models.layouts import Layout, ModelInput, common


class Blocks:
    """The whole blocks of all paths of a problem that were sent; without a `size` nothing is ever cached."""

    def __init__(self, size: int | None) -> None:
        """`size` is the number of tokens of a block."""
        self._size = size
        self._seen: dict[str, set[int]] = {}

    def cached(self, problem_id: str, ids: Sequence[int]) -> int:
        """Tokens of `ids` that need not be computed."""
        hashes, cached = self._seen.get(problem_id, ()), 0
        for end, key in self._keys(ids[:-1]):
            if key not in hashes:
                break
            cached = end
        return cached

    def send(self, problem_id: str, ids: Sequence[int]) -> int:
        """Record `ids` as sent; returns how many of them are computed."""
        new = len(ids) - self.cached(problem_id, ids)
        self._seen.setdefault(problem_id, set()).update(key for _, key in self._keys(ids))
        return new

    def one_by_one(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """Tokens that are computed if each of `reads` (ascending) is a request that ends there."""
        total, before = 0, 0
        for read in reads:
            cached = self.cached(problem_id, ids[: read + 1])
            if self._size is not None:
                cached = max(cached, min(before, read) // self._size * self._size)
            total, before = total + read + 1 - cached, read + 1
        return total

    def from_the_end(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """Tokens that are computed if a request returns all of `reads` after its cached part, the last one first."""
        total, missing = 0, list(reads)
        while missing:
            end = missing[-1] + 1
            cached = self.cached(problem_id, ids[:end])
            total, missing = total + end - cached, [read for read in missing if read < cached]
        return total

    def release(self, problem_id: str) -> None:
        """Drop a problem."""
        self._seen.pop(problem_id, None)

    def _keys(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """End and key of each whole block; a key identifies the block and everything before it."""
        if self._size is None:
            return
        key = 0
        for end in range(self._size, len(ids) + 1, self._size):
            key = hash((key, *ids[end - self._size : end]))
            yield end, key


Known: TypeAlias = dict[tuple[Hashable, Path], tuple[ModelInput, dict[int, float]]]
"""By rendering and path: the input, and the scores by position."""


class Backend(ABC):
    """Reads scores from a model elsewhere; reports every token it computed as `scored`.

    `max_context` is the most tokens of one path, None when only the server knows it; `blocks` models its prefix cache.
    """

    max_context: int | None = None
    blocks: Blocks

    def cost(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """Most tokens that `read` may compute; by default with one request after another."""
        return self.blocks.one_by_one(problem_id, ids, reads)

    @abstractmethod
    async def read(
        self, problem_id: str, model_input: ModelInput, reads: Sequence[int], on_usage: UsageSink
    ) -> list[float]:
        """Probabilities at the positions `reads` (ascending, some of `model_input.reads`) of `model_input.ids`."""


class RecallScorer:
    """See the module docstring."""

    def __init__(self, backend: Backend, layout: Layout, *, aggregation: How) -> None:
        """`aggregation` makes the value of a score from its steps."""
        self._backend, self._layout, self._aggregation = backend, layout, aggregation
        self.whole_answers = layout.whole_answers
        self._problems: dict[str, Known] = {}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt: `steps` all of them in order, `value` aggregated."""
        scores: dict[int, Score] = {}
        for depth in sorted({len(prompt.path) for prompt in prompts}):  # ancestors before the paths that continue them
            wave = [index for index, prompt in enumerate(prompts) if len(prompt.path) == depth]
            wave_scores = await gather(self._score(prompts[index], on_usage) for index in wave)
            scores.update(zip(wave, wave_scores, strict=True))
        return [scores[index] for index in range(len(prompts))]

    def price(self, prompt: Prompt) -> Price:
        """The price of the missing scores of `prompt`, and for each draw that of its part that is read again."""
        model_input, problem_id = self._layout.lay(prompt), prompt.problem_id
        ids = model_input.ids or self._layout.root(prompt)
        values = self._told(self._problems.get(problem_id, {}), self._layout.key(prompt), prompt.path, model_input)
        missing = [read for read in model_input.reads if read not in values]
        fixed = self._backend.cost(problem_id, ids, missing)
        return Price(fixed, self._layout.per_token, len(ids) - self._backend.blocks.cached(problem_id, ids))

    def release(self, problem_id: str) -> None:
        """Drop the scores of a problem."""
        self._problems.pop(problem_id, None)
        self._backend.blocks.release(problem_id)

    async def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        paths = self._problems.setdefault(prompt.problem_id, {})
        key = self._layout.key(prompt)
        if (key, ()) not in paths:
            paths[key, ()] = ModelInput(self._layout.root(prompt), ()), {}
        model_input = self._layout.lay(prompt)
        if not model_input.reads:
            return Score(None, note="no token generated yet")
        limit = self._backend.max_context
        if limit is not None and len(model_input.ids) > limit:
            raise PromptTooLong(
                f"a path of problem {prompt.problem_id!r} is {len(model_input.ids)} tokens for the reward model, whose "
                f"context is {limit}: lower --max-tokens"
            )
        values = self._told(paths, key, prompt.path, model_input)
        missing = [read for read in model_input.reads if read not in values]
        if missing:
            readings = await self._backend.read(prompt.problem_id, model_input, missing, on_usage)
            values |= zip(missing, readings, strict=True)
        paths[key, prompt.path] = model_input, values
        steps = tuple(values[read] for read in model_input.reads)
        return Score(aggregate(Score(steps[-1], steps), self._aggregation), steps)

    @staticmethod
    def _told(known: Known, key: Hashable, path: Path, model_input: ModelInput) -> dict[int, float]:
        """Scores of `model_input` that the path itself or its ancestors have, by position."""
        values: dict[int, float] = {}
        for end in range(len(path) + 1):
            if (entry := known.get((key, path[:end]))) is not None:
                shared = common(entry[0].ids, model_input.ids)
                values |= {at: value for at, value in entry[1].items() if at < shared}
        return values
