"""Scoring paths incrementally: only the tokens that no earlier call has seen are computed.

What every reward model run in process shares: the keys and values of a path are kept per problem, forked with it
without a copy, and freed by `release`; concurrent calls are batched; each new token is computed once, what all paths of
a problem share once per problem. What the model reads is a `Layout` (`_layouts.py`), how a score is read from hidden
states a `ScoreReader` (`_readers.py`). A path continues the ancestor with which it shares the longest prefix of ids.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ttc.choosing.selection import How, aggregate
from ttc.core import ModelShape, Path, Price, Prompt, Score, Usage, UsageSink
from ttc.errors import PromptTooLong, TTCError
from ttc.scorers.reward_models.batching import Batcher, WorkItem, finish_all
from ttc.scorers.reward_models.layouts import Layout, ModelInput, common

if TYPE_CHECKING:
    import torch

    from ttc.engines.embedded.cache import Segment
    from ttc.engines.embedded.model import Body

__all__ = ["IncrementalScorer", "KnownPath", "PathUpdate", "ScoreReader", "inference"]


@dataclass(slots=True)
class KnownPath:
    """What is known of a path: ids, keys and values, scores by position, and the reader's memo at its end."""

    ids: tuple[int, ...]
    handle: Segment | None
    values: dict[int, float]
    memo: Any
    score: Score | None = None


Paths: TypeAlias = dict[Path, KnownPath]


@dataclass(slots=True)
class PathUpdate:
    """New tokens of one path: `start` ids of `base` are kept, `new` are computed, `reads` are read among them."""

    job: WorkItem[Prompt, Score]
    model_input: ModelInput
    paths: Paths
    base: KnownPath
    start: int
    new: list[int]
    reads: list[int]

    @property
    def prompt(self) -> Prompt:
        """The path."""
        return self.job.item


class ScoreReader(Protocol):
    """Turns hidden states into scores. A memo is what a path must remember for its continuations."""

    remembers: bool
    """Whether a path can only be continued from its very end, since its memo belongs there."""

    def root(self, hidden: torch.Tensor) -> Any:
        """Memo of the root, from its hidden states (T, D)."""
        ...

    def read(self, works: Sequence[PathUpdate], hidden: Sequence[torch.Tensor]) -> list[tuple[tuple[float, ...], Any]]:
        """Per work: the scores at `work.reads`, and the memo of the path that ends with its new tokens.

        `hidden` holds one tensor (T, D) per work, of its new tokens.
        """
        ...


class IncrementalScorer:
    """See the module docstring. All model state is touched by one worker thread only."""

    def __init__(
        self,
        body: Body,
        reader: ScoreReader,
        layout: Layout,
        *,
        shape: ModelShape,
        threads: int,
        aggregation: How = "last",
    ) -> None:
        """`aggregation` makes the value of a score from its steps."""
        self._body, self._reader, self._layout = body, reader, layout
        self._shape, self._threads, self._aggregation = shape, threads, aggregation
        self._problems: dict[str, dict[Hashable, Paths]] = {}
        self._batcher: Batcher[Prompt, Score] = Batcher("prm", self._compute)

    @property
    def whole_answers(self) -> bool:
        """See `ttc.core.WholeAnswerScorer`."""
        return self._layout.whole_answers

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt: `steps` all of them in order, `value` aggregated."""
        return await self._batcher.submit(prompts, on_usage)

    def price(self, prompt: Prompt) -> Price:
        """Exactly what is not yet known of `prompt`, and each new token with its tag."""
        model_input = self._layout.lay(prompt)
        if not model_input.ids:
            model_input = ModelInput(self._layout.root(prompt), ())
        paths = self._problems.get(prompt.problem_id, {}).get(self._layout.key(prompt), {})
        ancestors = [path for end in range(len(prompt.path) + 1) if (path := paths.get(prompt.path[:end])) is not None]
        shared = max((self._shared(path, model_input) for path in ancestors), default=0)
        start = max(shared, 0)
        return Price(len(model_input.ids) - start, self._layout.per_token, context=start, shape=self._shape)

    def release(self, problem_id: str) -> None:
        """Free the keys and values of a problem, after the batch in progress."""
        self._batcher.later(self._problems.pop, problem_id, None)

    # -- worker thread ---------------------------------------------------------------------------------------------

    def _compute(self, batch: list[WorkItem[Prompt, Score]]) -> None:
        with inference(self._threads):
            ready = self._lay_out(batch)
            for depth in sorted({len(job.item.path) for job, _ in ready}):  # ancestors before what continues them
                wave = [(job, model_input) for job, model_input in ready if len(job.item.path) == depth]
                self._extend([work for job, model_input in wave if (work := self._plan(job, model_input)) is not None])

    def _lay_out(self, batch: list[WorkItem[Prompt, Score]]) -> list[tuple[WorkItem[Prompt, Score], ModelInput]]:
        """Lay out every path and compute missing roots, once each; a path that cannot be served fails alone."""
        ready: list[tuple[WorkItem[Prompt, Score], ModelInput]] = []
        missing: dict[tuple[str, Hashable], tuple[WorkItem[Prompt, Score], tuple[int, ...]]] = {}
        for job in batch:
            prompt = job.item
            where = prompt.problem_id, self._layout.key(prompt)
            try:
                if where[1] not in self._problems.get(where[0], {}) and where not in missing:
                    root = self._layout.root(prompt)
                    self._check_length(len(root), prompt)
                    missing[where] = job, root
                model_input = self._layout.lay(prompt)
                self._check_length(len(model_input.ids), prompt)
            except TTCError as error:
                job.fail(error)
                continue
            ready.append((job, model_input))
        self._add_roots(missing)
        return ready

    def _check_length(self, num: int, prompt: Prompt) -> None:
        if num > self._body.max_context:
            raise PromptTooLong(
                f"a path of problem {prompt.problem_id!r} is {num} tokens for the reward model, whose context is "
                f"{self._body.max_context}: lower --max-tokens or raise scorer.max_context"
            )

    def _add_roots(
        self, missing: Mapping[tuple[str, Hashable], tuple[WorkItem[Prompt, Score], tuple[int, ...]]]
    ) -> None:
        full = {where: (job, ids) for where, (job, ids) in missing.items() if ids}
        outputs = self._body.extend([(None, ids) for _, ids in full.values()])
        roots = {where: KnownPath((), None, {}, None) for where in missing}
        for (where, (job, ids)), (hidden, handle) in zip(full.items(), outputs, strict=True):
            roots[where] = KnownPath(ids, handle, {}, self._reader.root(hidden))
            job.report(Usage(scored=len(ids), flops=self._shape.flops(len(ids), 0)))
        for (problem_id, key), root in roots.items():
            self._problems.setdefault(problem_id, {})[key] = {(): root}

    def _plan(self, job: WorkItem[Prompt, Score], model_input: ModelInput) -> PathUpdate | None:
        """Find the known path that goes furthest along this one, and what must be computed after it."""
        prompt = job.item
        paths = self._problems[prompt.problem_id][self._layout.key(prompt)]
        own = paths.get(prompt.path)
        if own is not None and own.ids == model_input.ids and own.score is not None:
            job.finish(own.score)
            return None
        if not model_input.reads:
            job.finish(Score(None, note="no token generated yet"))
            return None
        ancestors = [path for end in range(len(prompt.path), -1, -1) if (path := paths.get(prompt.path[:end]))]
        base, start = max(((path, self._shared(path, model_input)) for path in ancestors), key=lambda pair: pair[1])
        if start == len(model_input.ids):
            score = self._score(model_input, base.values)
            handle = _prefix(base.handle, start)
            paths[prompt.path] = KnownPath(model_input.ids, handle, base.values, base.memo, score)
            job.finish(score)
            return None
        reads = [read - start for read in model_input.reads if read >= start]
        return PathUpdate(job, model_input, paths, base, start, list(model_input.ids[start:]), reads)

    def _shared(self, known: KnownPath, model_input: ModelInput) -> int:
        """How many ids of `known` serve this path: those in common, but no further than a score that is missing."""
        num = common(known.ids, model_input.ids)
        if self._reader.remembers:
            return num if num == len(known.ids) else -1  # the root always serves
        return next((read for read in model_input.reads if read < num and read not in known.values), num)

    def _extend(self, works: list[PathUpdate]) -> None:
        """Compute a wave: one batch for all paths that do not depend on each other."""
        if not works:
            return
        outputs = self._body.extend([(_prefix(work.base.handle, work.start), work.new) for work in works])
        readings = self._reader.read(works, [hidden for hidden, _ in outputs])
        ended = []
        for work, (_, handle), (values, memo) in zip(works, outputs, readings, strict=True):
            score = self._keep(work, handle, values, memo)
            usage = Usage(scored=len(work.new), flops=self._shape.flops(len(work.new), work.start))
            ended.append((work.job, usage, score))
        finish_all(ended)

    def _keep(self, work: PathUpdate, handle: Segment, values: tuple[float, ...], memo: Any) -> Score:
        scores = {at: value for at, value in work.base.values.items() if at < work.start}
        scores.update({work.start + read: value for read, value in zip(work.reads, values, strict=True)})
        score = self._score(work.model_input, scores)
        work.paths[work.prompt.path] = KnownPath(work.model_input.ids, handle, scores, memo, score)
        return score

    def _score(self, model_input: ModelInput, values: dict[int, float]) -> Score:
        steps = tuple(values[read] for read in model_input.reads)
        return Score(aggregate(Score(steps[-1], steps), self._aggregation), steps)


@contextmanager
def inference(threads: int) -> Iterator[None]:
    """Compute without gradients on so many threads of the calling thread's pool."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


def _prefix(handle: Segment | None, num: int) -> Segment | None:
    return None if handle is None or num == 0 else handle.upto(num)
