"""Process-reward models, incremental: only the tokens that no earlier call has seen are computed.

Lightman et al. 2023, "Let's Verify Step by Step"; Uesato et al. 2022. Two kinds of model are read: token classifiers (a
label head, one linear layer or two with a ReLU) and step-token models (the language-model head at a step, good token
against bad token). A score is read at the last token of every step, or at a tag inserted after it.

Cost: each new token of a path once, the rendered prompt once per problem (scoring whole prefixes anew would cost about
8x more at ten steps). Keys and values of a path are kept per problem, forked with it without a copy, and freed by
`release`. Concurrent calls are batched: what arrives while one batch runs makes the next.

Left out: models with another tokenizer or another chat template than the generator's (refused by name).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ttc.core import ModelShape, Path, Prompt, Score, Usage, UsageSink
from ttc.errors import ConfigError, ScorerError, TTCError

if TYPE_CHECKING:
    import torch

    from ttc.embedded.cache import Segment
    from ttc.embedded.model import Body


@dataclass(frozen=True, slots=True)
class Reading:
    """Where and how a model's scores are read: config.json's `ttc_prm`, or the factory's parameters.

    A step ends at `step_delimiter`; `step_tag` is inserted there when the model wants one. With `good` and `bad` the
    score is the probability of the good token against the bad one, else that of label `positive_label`.
    """

    step_delimiter: str = "\n\n"
    step_tag: str | None = None
    good: str | None = None
    bad: str | None = None
    positive_label: int = 1
    activation: str = "softmax"

    @property
    def from_tokens(self) -> bool:
        """Whether the language-model head is read."""
        return self.good is not None


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
class _Path:
    """What is known of a scored path: its ids, its keys and values, and the scores of its finished steps."""

    ids: tuple[int, ...]
    handle: Segment
    steps: tuple[float, ...]
    score: Score | None = None


@dataclass(slots=True)
class _Request:
    prompt: Prompt
    on_usage: UsageSink
    done: asyncio.Future[Score]
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True)
class _Work:
    """New tokens to compute for one request, and where scores are read among them."""

    request: _Request
    base: _Path | None
    ids: tuple[int, ...]
    new: list[int]
    reads: list[int] = field(default_factory=list)
    ends_open: bool = True


class PrmScorer:
    """See the module docstring. All model state is touched by one worker thread only."""

    def __init__(
        self,
        body: Body,
        head: Callable[[torch.Tensor], torch.Tensor],
        tokens: Tokens,
        reading: Reading,
        *,
        shape: ModelShape,
        threads: int,
    ) -> None:
        """`head` maps hidden states (T, D) to scores (T,) in [0, 1]."""
        self._body, self._head, self._tokens, self._reading = body, head, tokens, reading
        self._shape, self._threads = shape, threads
        self._tag = None if reading.step_tag is None else tokens.single("step_tag", reading.step_tag)
        self._paths: dict[str, dict[Path, _Path]] = {}
        self._pending: list[_Request] = []
        self._running = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prm")

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt; `value` is the last one's, `steps` all of them in order."""
        loop = asyncio.get_running_loop()
        requests = [_Request(prompt, on_usage, loop.create_future(), loop) for prompt in prompts]
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
        batch, self._pending = self._pending, []
        if not batch:
            self._running = False
            return
        future = loop.run_in_executor(self._pool, self._run, batch)
        future.add_done_callback(lambda _: self._launch(loop))

    # -- worker thread ---------------------------------------------------------------------------------------------

    def _run(self, batch: list[_Request]) -> None:
        try:
            self._compute(batch)
        except Exception as exc:
            error = exc if isinstance(exc, TTCError) else ScorerError(f"prm failed: {exc}")
            error.__cause__ = exc if error is not exc else None
            for request in batch:
                request.loop.call_soon_threadsafe(_fail, request.done, error)

    def _compute(self, batch: list[_Request]) -> None:
        with inference(self._threads):
            self._add_roots(batch)
            waves = _waves(batch)
            for wave in waves:
                self._extend([work for request in wave if (work := self._plan(request)) is not None])

    def _add_roots(self, batch: list[_Request]) -> None:
        """Compute rendered prompts that no path of their problem has brought yet, once each."""
        missing: dict[str, _Request] = {}
        for request in batch:
            prompt = request.prompt
            known = self._paths.get(prompt.problem_id, {}).get(())
            if known is None or known.ids != _rendered(prompt):
                missing.setdefault(prompt.problem_id, request)
        requests = list(missing.values())
        for request in requests:
            self._check_tokenizer(request.prompt)
        outputs = self._body.extend([(None, _rendered(request.prompt)) for request in requests])
        for request, (_, handle) in zip(requests, outputs, strict=True):
            ids = _rendered(request.prompt)
            self._paths[request.prompt.problem_id] = {(): _Path(ids, handle, ())}
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

    def _plan(self, request: _Request) -> _Work | None:
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
        work = _Work(request, base, ids, list(ids[len(base.ids) :]))
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
            ends = self._reading.step_delimiter in joint and self._reading.step_delimiter not in previous
            previous = "" if ends else text
            if ends:
                if self._tag is not None:
                    ids.append(self._tag)
                closed.append(len(ids) - 1)
        if self._tag is not None and len(ids) > prompt.rendered_len and (not closed or closed[-1] != len(ids) - 1):
            ids.append(self._tag)
        return tuple(ids), closed

    def _extend(self, works: list[_Work]) -> None:
        """Compute a wave: one batch for all paths that do not depend on each other."""
        import torch
        import torch.nn.functional as F

        if not works:
            return
        outputs = self._body.extend([(w.base.handle if w.base else None, w.new) for w in works])
        rows = torch.cat([hidden[work.reads] for work, (hidden, _) in zip(works, outputs, strict=True)])
        padded = F.pad(rows, (0, 0, 0, -len(rows) % self._body.pad_rows))
        values = self._head(padded)[: len(rows)].tolist()
        for work, (_, handle) in zip(works, outputs, strict=True):
            mine, values = values[: len(work.reads)], values[len(work.reads) :]
            self._keep(work, handle, tuple(mine))

    def _keep(self, work: _Work, handle: Segment, values: tuple[float, ...]) -> None:
        base = work.base
        before, steps = (len(base.ids), base.steps) if base else (0, ())
        score = Score(values[-1], steps + values)
        finished = steps + (values[:-1] if work.ends_open else values)
        ids, request = work.ids, work.request
        if work.ends_open and self._tag is not None:  # a tag after an open step is not part of its continuation
            ids, handle = ids[:-1], handle.upto(len(ids) - 1) or handle
        self._paths[request.prompt.problem_id][request.prompt.path] = _Path(ids, handle, finished, score)
        flops = self._shape.flops(len(work.new), before)
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


def _waves(batch: list[_Request]) -> list[list[_Request]]:
    """Order by depth: a path is computed after its ancestors in the same batch."""
    depths = sorted({len(request.prompt.path) for request in batch})
    return [[r for r in batch if len(r.prompt.path) == depth] for depth in depths]


def _rendered(prompt: Prompt) -> tuple[int, ...]:
    return () if prompt.token_ids is None else prompt.token_ids[: prompt.rendered_len]


def _report(request: _Request, usage: Usage) -> None:
    request.loop.call_soon_threadsafe(request.on_usage, usage)


def _finish(request: _Request, score: Score) -> None:
    request.loop.call_soon_threadsafe(_resolve, request.done, score)


def _resolve(done: asyncio.Future[Score], score: Score) -> None:
    if not done.done():
        done.set_result(score)


def _fail(done: asyncio.Future[Score], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


def _label_head(tensors: Mapping[str, torch.Tensor], reading: Reading, body: Body, where: str) -> Callable[[Any], Any]:
    """The classification head of a folder, as one function to the probability of the positive label."""
    import torch
    import torch.nn.functional as F

    def part(name: str) -> torch.Tensor | None:
        found = tensors.get(name)
        return None if found is None else found.to(device=body.device, dtype=torch.float32)

    layers = [(w, part(f"{n}.bias")) for n in ("score.0", "score.2") if (w := part(f"{n}.weight")) is not None]
    single = part("score.weight")
    if single is not None:
        layers = [(single, part("score.bias"))]
    if not layers:
        raise ConfigError(f"{where} has no classification head (score.weight): it is not a reward model")
    labels = layers[-1][0].shape[0]
    if labels > 1 and not 0 <= reading.positive_label < labels:
        raise ConfigError(f"prm positive_label={reading.positive_label}, but {where} has {labels} labels")

    def head(hidden: torch.Tensor) -> torch.Tensor:
        x = hidden.float()
        for index, (weight, bias) in enumerate(layers):
            x = F.linear(F.relu(x) if index else x, weight, bias)
        if x.shape[-1] == 1 or reading.activation == "sigmoid":
            return torch.sigmoid(x[:, min(reading.positive_label, x.shape[-1] - 1)])
        return torch.softmax(x, -1)[:, reading.positive_label]

    return head


def _token_head(body: Body, tokens: Tokens, reading: Reading) -> Callable[[Any], Any]:
    import torch

    if reading.good is None or reading.bad is None:
        raise ConfigError("prm needs both good and bad tokens, or neither")
    pair = [tokens.single("good", reading.good), tokens.single("bad", reading.bad)]

    def head(hidden: torch.Tensor) -> torch.Tensor:
        return torch.softmax(body.logits(hidden)[:, pair].float(), -1)[:, 0]

    return head


def prm(
    model: str | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int = 1,
    max_context: int | None = None,
    batch_invariant: bool = False,
    step_delimiter: str | None = None,
    step_tag: str | None = None,
    good: str | None = None,
    bad: str | None = None,
    positive_label: int | None = None,
) -> PrmScorer:
    """Score steps with a process-reward model run in process.

    Args:
        model: a Hugging Face folder; absent: the packaged reward model of the nano family.
        device: auto, cpu or cuda.
        dtype: auto, bfloat16 or float32.
        threads: compute threads.
        max_context: a limit below the model's own.
        batch_invariant: what is scored together cannot change a single bit of a score; slower.
        step_delimiter: text that ends a step.
        step_tag: token inserted after a step, where the score is read.
        good: token whose probability is the score (step-token models), against bad.
        bad: see good.
        positive_label: index of the label that means correct.
    """
    from transformers import AutoTokenizer

    from ttc import nano
    from ttc.embedded.folder import resolve
    from ttc.embedded.invariant import PAD_ROWS, blocked_attention, check
    from ttc.embedded.model import load_body, softmax_attention
    from ttc.embedded.shape import read_config

    folder = nano.path("prm") if model is None else resolve(model)
    given = {
        "step_delimiter": step_delimiter,
        "step_tag": step_tag,
        "good": good,
        "bad": bad,
        "positive_label": positive_label,
    }
    stated = read_config(folder).get("ttc_prm", {})
    reading = Reading(**{**stated, **{k: v for k, v in given.items() if v is not None}})
    tokens = Tokens(AutoTokenizer.from_pretrained(str(folder)))
    body, rest = load_body(
        folder,
        device=device,
        dtype=dtype,
        max_context=max_context,
        head=reading.from_tokens,
        kernel=blocked_attention if batch_invariant else softmax_attention,
        pad_rows=PAD_ROWS if batch_invariant else 1,
    )
    if batch_invariant:
        with inference(threads):
            check(body)
    head = _token_head(body, tokens, reading) if reading.from_tokens else _label_head(rest, reading, body, str(folder))
    shape = body.dims.model_shape(2)
    return PrmScorer(body, head, tokens, reading, shape=shape, threads=threads)
