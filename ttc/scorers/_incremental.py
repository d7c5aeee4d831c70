"""Scoring paths incrementally: only the tokens that no earlier call has seen are computed.

What every reward model run in process shares: the keys and values of a path are kept per problem, forked with it
without a copy, and freed by `release`; concurrent calls are batched (what arrives while one batch runs makes the next);
each new token is computed once, the rendered prompt once per problem. How a score is read from hidden states is a
`Reader` (`_readers.py`). Left out: models with another tokenizer than the generator's, which are refused by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ttc.core import ModelShape, Path, Prompt, Score, Usage, UsageSink
from ttc.errors import ConfigError, ScorerError, TTCError

if TYPE_CHECKING:
    import torch

    from ttc.embedded.cache import Segment
    from ttc.embedded.model import Body


class Tokens:
    """What the scorer needs of a tokenizer: texts of single ids, and single ids of texts."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Text of one id."""
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token])
        return self._texts[token]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def single(self, name: str, text: str) -> int:
        """The one id of `text`; a text that the tokenizer splits is refused."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1:
            raise ConfigError(f"prm {name}={text!r} must be one token of this model, it is {len(ids)}")
        return int(ids[0])


@dataclass(slots=True)
class KnownPath:
    """What is known of a scored path: ids, keys and values, scores of its finished steps, and the reader's memo."""

    ids: tuple[int, ...]
    handle: Segment
    steps: tuple[float, ...]
    memo: Any
    score: Score | None = None


@dataclass(slots=True)
class Request:
    prompt: Prompt
    on_usage: UsageSink
    done: asyncio.Future[Score]
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True)
class Work:
    """New tokens to compute for one request, and where scores are read among them."""

    request: Request
    base: KnownPath
    ids: tuple[int, ...]
    new: list[int]
    reads: list[int] = field(default_factory=list)
    ends_open: bool = True


class Reader(Protocol):
    """Turns hidden states into scores. A memo is what a path must remember for its continuations."""

    def root(self, hidden: torch.Tensor) -> Any:
        """Memo of a rendered prompt, from its hidden states (T, D)."""
        ...

    def read(self, works: Sequence[Work], hidden: Sequence[torch.Tensor]) -> list[tuple[tuple[float, ...], Any]]:
        """Per work: the scores at `work.reads`, and the memo of the path that ends with its new tokens.

        `hidden` holds one tensor (T, D) per work, of its new tokens.
        """
        ...


class IncrementalScorer:
    """See the module docstring. All model state is touched by one worker thread only."""

    def __init__(
        self,
        body: Body,
        reader: Reader,
        tokens: Tokens,
        *,
        step_delimiter: str,
        step_tag: int | None,
        shape: ModelShape,
        threads: int,
    ) -> None:
        """A step ends at `step_delimiter`; the token `step_tag` is inserted there when the model wants one."""
        self._body, self._reader, self._tokens = body, reader, tokens
        self._delimiter, self._tag = step_delimiter, step_tag
        self._shape, self._threads = shape, threads
        self._paths: dict[str, dict[Path, KnownPath]] = {}
        self._pending: list[Request] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prm")

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt; `value` is the last one's, `steps` all of them in order."""
        loop = asyncio.get_running_loop()
        requests = [Request(prompt, on_usage, loop.create_future(), loop) for prompt in prompts]
        if loop is not self._loop:  # an earlier loop may have been closed in the middle of a batch
            self._loop, self._running, self._pending = loop, False, []
        self._pending += requests
        if not self._running:
            self._running = True
            loop.call_soon(self._launch, loop)
        return list(await asyncio.gather(*(request.done for request in requests)))

    def release(self, problem_id: str) -> None:
        """Free the keys and values of a problem, after the batch in progress."""
        self._pool.submit(self._paths.pop, problem_id, None)

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand everything that waits to the worker; called again when a batch has ended."""
        if loop is not self._loop:
            return
        batch, self._pending = self._pending, []
        if not batch:
            self._running = False
            return
        future = loop.run_in_executor(self._pool, self._run, batch)
        future.add_done_callback(lambda _: self._launch(loop))

    # -- worker thread ---------------------------------------------------------------------------------------------

    def _run(self, batch: list[Request]) -> None:
        try:
            self._compute(batch)
        except Exception as exc:
            error = exc if isinstance(exc, TTCError) else ScorerError(f"prm failed: {exc}")
            error.__cause__ = exc if error is not exc else None
            for request in batch:
                request.loop.call_soon_threadsafe(_fail, request.done, error)

    def _compute(self, batch: list[Request]) -> None:
        with inference(self._threads):
            self._add_roots(batch)
            for wave in _waves(batch):
                self._extend([work for request in wave if (work := self._plan(request)) is not None])

    def _add_roots(self, batch: list[Request]) -> None:
        """Compute rendered prompts that no path of their problem has brought yet, once each."""
        missing: dict[str, Request] = {}
        for request in batch:
            prompt = request.prompt
            known = self._paths.get(prompt.problem_id, {}).get(())
            if known is None or known.ids != _rendered(prompt):
                missing.setdefault(prompt.problem_id, request)
        requests = list(missing.values())
        for request in requests:
            self._check_tokenizer(request.prompt)
        outputs = self._body.extend([(None, _rendered(request.prompt)) for request in requests])
        for request, (hidden, handle) in zip(requests, outputs, strict=True):
            ids = _rendered(request.prompt)
            self._paths[request.prompt.problem_id] = {(): KnownPath(ids, handle, (), self._reader.root(hidden))}
            _report(request, Usage(scored=len(ids), flops=self._shape.flops(len(ids), 0)))

    def _check_tokenizer(self, prompt: Prompt) -> None:
        if prompt.token_ids is None:
            raise ConfigError("scorer prm needs an engine that gives token ids")
        ids = _rendered(prompt)
        vocab = self._body.dims.vocab
        if max(ids) >= vocab or self._tokens.decode(ids) != prompt.text[: prompt.rendered_chars]:
            raise ConfigError(
                "scorer prm: its tokenizer does not match the generator's; use a reward model with the same tokenizer"
            )

    def _plan(self, request: Request) -> Work | None:
        """Find the longest known part of the path and what must be computed after it."""
        prompt = request.prompt
        paths = self._paths[prompt.problem_id]
        ids, closed = self._with_tags(prompt)
        own = paths.get(prompt.path)
        if own is not None and own.ids == ids and own.score is not None:
            _finish(request, own.score)
            return None
        base = next(
            known
            for end in range(len(prompt.path), -1, -1)
            if (known := paths.get(prompt.path[:end])) is not None and ids[: len(known.ids)] == known.ids
        )
        work = Work(request, base, ids, list(ids[len(base.ids) :]))
        if not work.new:
            _finish(request, Score(None, note="no token generated yet"))
            return None
        work.reads = [at - len(base.ids) for at in closed if at >= len(base.ids)]
        work.ends_open = not closed or closed[-1] != len(ids) - 1
        if work.ends_open:
            work.reads.append(len(work.new) - 1)
        return work

    def _with_tags(self, prompt: Prompt) -> tuple[tuple[int, ...], list[int]]:
        """The ids the model reads, and the positions at which a step is closed."""
        ids = list(_rendered(prompt))
        closed: list[int] = []
        previous = ""
        for token in prompt.generated_ids:
            text = self._tokens.text(token)
            ids.append(token)
            joint = previous + text
            ends = self._delimiter in joint and self._delimiter not in previous
            previous = "" if ends else text
            if ends:
                if self._tag is not None:
                    ids.append(self._tag)
                closed.append(len(ids) - 1)
        if self._tag is not None and len(ids) > prompt.rendered_len and (not closed or closed[-1] != len(ids) - 1):
            ids.append(self._tag)
        return tuple(ids), closed

    def _extend(self, works: list[Work]) -> None:
        """Compute a wave: one batch for all paths that do not depend on each other."""
        if not works:
            return
        outputs = self._body.extend([(work.base.handle, work.new) for work in works])
        readings = self._reader.read(works, [hidden for hidden, _ in outputs])
        for work, (_, handle), (values, memo) in zip(works, outputs, readings, strict=True):
            self._keep(work, handle, values, memo)

    def _keep(self, work: Work, handle: Segment, values: tuple[float, ...], memo: Any) -> None:
        score = Score(values[-1], work.base.steps + values)
        finished = work.base.steps + (values[:-1] if work.ends_open else values)
        ids, request = work.ids, work.request
        if work.ends_open and self._tag is not None:  # a tag after an open step is not part of its continuation
            ids, handle = ids[:-1], handle.upto(len(ids) - 1) or handle
        self._paths[request.prompt.problem_id][request.prompt.path] = KnownPath(ids, handle, finished, memo, score)
        flops = self._shape.flops(len(work.new), len(work.base.ids))
        _report(request, Usage(scored=len(work.new), flops=flops))
        _finish(request, score)


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


def _waves(batch: list[Request]) -> list[list[Request]]:
    """Order by depth: a path is computed after its ancestors in the same batch."""
    depths = sorted({len(request.prompt.path) for request in batch})
    return [[r for r in batch if len(r.prompt.path) == depth] for depth in depths]


def _rendered(prompt: Prompt) -> tuple[int, ...]:
    return () if prompt.token_ids is None else prompt.token_ids[: prompt.rendered_len]


def _report(request: Request, usage: Usage) -> None:
    request.loop.call_soon_threadsafe(request.on_usage, usage)


def _finish(request: Request, score: Score) -> None:
    request.loop.call_soon_threadsafe(_resolve, request.done, score)


def _resolve(done: asyncio.Future[Score], score: Score) -> None:
    if not done.done():
        done.set_result(score)


def _fail(done: asyncio.Future[Score], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
