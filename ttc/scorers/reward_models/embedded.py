"""Reward models in this process: a body, a reader of its hidden states, and the incremental scorer over them.

A public model is read in its own format (`adapted`). A model that reads the generator's own ids (`same_ids`) is one of
this project, or any other with the generator's tokenizer: nothing is tokenised again, and the model sees the
generator's own chat template. `ttc_prm` in the folder's config.json, or the user, states how it is read. There are
three kinds: token classifiers (label), language models that answer with a good or a bad token (token), and better
language models, by the likelihood of the path (likelihood).

Only tokens that no earlier call has seen are computed: the keys and values of a path are kept per problem, forked
without a copy, and freed by `release`; concurrent calls are batched; the common part of a problem's paths is computed
once. A `Layout` determines what the model reads, a `ScoreReader` how a score is read from hidden states. A path
continues the ancestor with which it shares the longest prefix of ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from ttc.choosing.selection import How, aggregate
from ttc.core import Engine, Message, ModelShape, Price, Prompt, Score, Usage, UsageSink
from ttc.core import Path as TreePath
from ttc.errors import ConfigError, PromptTooLong, ScorerError, TTCError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.adapters import adapter_names
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.batching import Batcher, WorkItem, finish_all
from ttc.scorers.reward_models.layouts import Layout, ModelInput, OwnText, RewardTokenizer, SameIds, common

if TYPE_CHECKING:
    import torch

    from ttc.engines.embedded.core.model import Body
    from ttc.engines.embedded.core.pool import Segment

Kind = Literal["label", "token", "likelihood"]
Head: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""Hidden states (N, D) -> probabilities (N,) that the path is right so far."""


def load(folder: Path, place: EmbeddedCore, *, head: bool) -> tuple[Body, dict[str, Any]]:
    """Load the body (with its language-model head on demand) and the folder's other tensors.

    Raises:
        ConfigError: the folder cannot be read, or its architecture is not one the embedded core runs.
    """
    from ttc.engines.embedded.core.attention import PrefixAttention
    from ttc.engines.embedded.core.model import load_body, pick_device

    device = pick_device(place.device)
    if device.type == "cuda" and not place.batch_invariant:
        from ttc.engines.embedded.gpu.loading import reward_body

        return reward_body(
            folder, device=device, dtype=place.dtype, max_context=place.max_context, kv_bytes=place.kv_bytes, head=head
        )
    if place.kv_bytes is not None:
        raise ConfigError(f"scorer.kv_bytes is for GPUs: on {device} a reward model holds what its live paths need")
    loader = partial(
        load_body, folder, device=place.device, dtype=place.dtype, max_context=place.max_context, head=head, steps=True
    )
    if not place.batch_invariant:
        return loader(attention=PrefixAttention)
    from ttc.engines.embedded.core.invariant import PAD_ROWS, BlockedPrefix, check

    body, rest = loader(attention=BlockedPrefix, pad_rows=PAD_ROWS)
    with inference(place.threads):
        check(body)
    return body, rest


def adapted(folder: Path, adapter: Adapter, place: EmbeddedCore, step_delimiter: str | None) -> IncrementalScorer:
    """The scorer of a public reward model, in its own format."""
    tokens = RewardTokenizer(folder)
    layout = OwnText(adapter, tokens, step_delimiter or adapter.step_delimiter)
    shared = {name: getattr(adapter, name) for name in ("kind", "good", "bad", "positive_label", "activation")}
    body, rest = load(folder, place, head=adapter.kind == "token")
    reader = _reader(Reading(**shared), body, rest, tokens, str(folder), lambda exc: f"adapter {adapter.name}: {exc}")
    return IncrementalScorer(
        body,
        reader,
        layout,
        num_outputs=2 if adapter.kind == "label" else body.dims.vocab,
        threads=place.threads,
        aggregation=adapter.aggregation,
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Where and how a model's scores are read: config.json's `ttc_prm`, or the factory's parameters.

    A step ends at `step_delimiter`; `step_tag` is inserted there if the model needs one. `kind` is label (probability
    of label `positive_label`), token (of the token `good` against `bad`) or likelihood (of the path against the model's
    own first choices, to the power `beta`).
    """

    kind: Kind = "label"
    step_delimiter: str = "\n\n"
    step_tag: str | None = None
    good: str | None = None
    bad: str | None = None
    positive_label: int = 1
    activation: str = "softmax"
    beta: float = 1.0


def _reader(
    reading: Reading,
    body: Body,
    rest: Mapping[str, Any],
    tokens: RewardTokenizer,
    where: str,
    explain: Callable[[ConfigError], str],
) -> ScoreReader:
    """The reader for `reading` with this model; `explain` turns the error of a missing head into one for the user."""
    if reading.kind == "likelihood":
        if reading.step_tag is not None:
            raise ConfigError("prm kind=likelihood reads no step_tag")
        return LikelihoodReader(body, reading.beta)
    if reading.kind == "token":
        if reading.good is None or reading.bad is None:
            raise ConfigError("prm kind=token needs both good and bad")
        good, bad = tokens.single("good", reading.good), tokens.single("bad", reading.bad)
        return HeadReader(body, lambda hidden: body.logits(hidden)[:, [good, bad]].float().softmax(-1)[:, 0])
    try:
        head = label_head(rest, body.device, reading.positive_label, reading.activation, where)
    except ConfigError as exc:
        raise ConfigError(explain(exc)) from exc
    return HeadReader(body, head)


def _reading(stated: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Reading:
    """The settings in the folder, overridden by the user's."""
    names = {spec.name for spec in fields(Reading)}
    if unknown := set(stated) - names:
        raise ConfigError(f"{where}: config.json ttc_prm has unknown keys {sorted(unknown)} (known: {sorted(names)})")
    reading = Reading(**{**stated, **given})
    if reading.kind not in get_args(Kind):
        raise ConfigError(f"prm kind must be one of {sorted(get_args(Kind))}, got {reading.kind!r}")
    return reading


_QUESTION = (Message("user", "How much is 12 + 30 * 2?"),)


def same_ids(
    folder: Path, config: Mapping[str, Any], given: Mapping[str, Any], place: EmbeddedCore, engine: Engine | None
) -> IncrementalScorer:
    """The scorer of the model in `folder`; `given` are fields of `Reading` that the user set, `engine` the generator's.

    Raises:
        ConfigError: an unknown field, a token that the tokenizer splits, a folder without such a head, or an engine
            whose ids this tokenizer does not read as the engine's does.
    """
    reading = _reading(config.get("ttc_prm", {}), given, str(folder))
    tokens = RewardTokenizer(folder)
    body, rest = load(folder, place, head=reading.kind != "label")

    def explain(exc: ConfigError) -> str:
        return f"{exc}; a public one in a format of its own needs scorer.adapter=NAME ({adapter_names(outcome=False)})"

    reader = _reader(reading, body, rest, tokens, str(folder), explain)
    tag = None if reading.step_tag is None else tokens.single("step_tag", reading.step_tag)
    layout = SameIds(tokens, body.dims.vocab, reading.step_delimiter, tag)
    if engine is not None:  # another tokenizer is refused here, before anything is sampled
        layout.root(engine.render(_QUESTION, None))
    num_outputs = 2 if reading.kind == "label" else body.dims.vocab
    return IncrementalScorer(body, reader, layout, num_outputs=num_outputs, threads=place.threads)


# -- the scorer --------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class KnownPath:
    """A computed path: its ids, keys and values, scores by position, and the reader's memo at its end."""

    ids: tuple[int, ...]
    handle: Segment | None
    values: dict[int, float]
    memo: Any
    score: Score | None = None


Paths: TypeAlias = dict[TreePath, KnownPath]


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
    """Turns hidden states into scores. A memo is the state that a path's continuations need."""

    remembers: bool
    """Whether a path can only be continued from its very end, where its memo belongs."""

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
        num_outputs: int,
        threads: int,
        aggregation: How = "last",
    ) -> None:
        """`num_outputs` are those of the head; `aggregation` makes the value of a score from its steps."""
        self._body, self._reader, self._layout = body, reader, layout
        self._shape: ModelShape = body.dims.model_shape(num_outputs)
        self._threads, self._aggregation = threads, aggregation
        self.whole_answers = layout.whole_answers
        self._problems: dict[str, dict[Hashable, Paths]] = {}
        self._busy: set[str] = set()  # problems of the running batch
        self._batcher: Batcher[Prompt, Score] = Batcher("prm", self._compute)

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt: `steps` all of them in order, `value` aggregated."""
        return await self._batcher.submit(prompts, on_usage)

    def price(self, prompt: Prompt) -> Price:
        """Exactly the uncomputed tokens of `prompt`, and each new one with its tag."""
        model_input = self._layout.lay(prompt)
        if not model_input.ids:
            model_input = ModelInput(self._layout.root(prompt), ())
        paths = self._problems.get(prompt.problem_id, {}).get(self._layout.key(prompt), {})
        ancestors = [path for end in range(len(prompt.path) + 1) if (path := paths.get(prompt.path[:end])) is not None]
        shared = max((self._shared(path, model_input) for path in ancestors), default=0)
        start = max(shared, 0)
        return Price(len(model_input.ids) - start, self._layout.per_token, context=start, shape=self._shape)

    def prune(self, problem_id: str, path: TreePath) -> None:
        """Free the keys and values of a path and of all below it, after the current batch."""
        self._batcher.later(self._forget, problem_id, path)

    def _forget(self, problem_id: str, path: TreePath) -> None:
        for paths in self._problems.get(problem_id, {}).values():
            for below in [known for known in paths if known[: len(path)] == path]:
                del paths[below]

    def release(self, problem_id: str) -> None:
        """Free the keys and values of a problem, after the current batch."""
        self._batcher.later(self._problems.pop, problem_id, None)

    # -- worker thread ---------------------------------------------------------------------------------------------

    def _compute(self, batch: list[WorkItem[Prompt, Score]]) -> None:
        self._busy = {job.item.problem_id for job in batch}
        with inference(self._threads), self._body.place():
            for wave in self._waves(self._lay_out(batch)):
                self._extend([work for job, model_input in wave if (work := self._plan(job, model_input)) is not None])

    def _waves(
        self, ready: Sequence[tuple[WorkItem[Prompt, Score], ModelInput]]
    ) -> list[list[tuple[WorkItem[Prompt, Score], ModelInput]]]:
        """Divide paths into waves, each one batch of the model: ancestors come before paths that continue them."""
        waves: list[list[tuple[WorkItem[Prompt, Score], ModelInput]]] = []
        numbers: dict[tuple[str, Hashable, TreePath], int] = {}
        for job, model_input in sorted(ready, key=lambda entry: len(entry[0].item.path)):
            prompt = job.item
            key, path = self._layout.key(prompt), prompt.path
            ancestors = ((prompt.problem_id, key, path[:end]) for end in range(len(path) - 1, -1, -1))
            number = next((numbers[place] + 1 for place in ancestors if place in numbers), 0)
            numbers[prompt.problem_id, key, path] = number
            if number == len(waves):
                waves.append([])
            waves[number].append((job, model_input))
        return waves

    def _lay_out(self, batch: list[WorkItem[Prompt, Score]]) -> list[tuple[WorkItem[Prompt, Score], ModelInput]]:
        """Lay out every path and compute missing roots, once each; an invalid path fails alone."""
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
        outputs = self._grow([(None, ids) for _, ids in full.values()])
        roots = {where: KnownPath((), None, {}, None) for where in missing}
        for (where, (job, ids)), (hidden, handle) in zip(full.items(), outputs, strict=True):
            roots[where] = KnownPath(ids, handle, {}, self._reader.root(hidden))
            job.report(Usage(scored=len(ids), flops=self._shape.flops(len(ids), 0)))
        for (problem_id, key), root in roots.items():
            self._problems.setdefault(problem_id, {})[key] = {(): root}

    def _plan(self, job: WorkItem[Prompt, Score], model_input: ModelInput) -> PathUpdate | None:
        """Find the computed path that shares the longest prefix with this one, and what must be computed after it."""
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
        """How many ids of `known` this path can reuse: the common ones, but not beyond a missing score."""
        num = common(known.ids, model_input.ids)
        if self._reader.remembers:
            return num if num == len(known.ids) else -1  # the root can always be reused
        return next((read for read in model_input.reads if read < num and read not in known.values), num)

    def _extend(self, works: list[PathUpdate]) -> None:
        """Compute a wave: one batch for all paths that do not depend on each other, halved when memory runs out."""
        shortage = self._compute_wave(works) if works else None
        if shortage is None:
            return
        if len(works) == 1:
            num = len(works[0].model_input.ids)
            works[0].job.fail(ScorerError(f"out of memory for a single path of {num} tokens: {shortage}"))
            return
        half = len(works) // 2
        self._extend(works[:half])
        self._extend(works[half:])

    def _compute_wave(self, works: list[PathUpdate]) -> str | None:
        """Compute a wave; where memory is short, compute nothing and return the reason."""
        from ttc.engines.embedded.core.prefill import memory_errors

        try:
            outputs = self._grow([(_prefix(work.base.handle, work.start), work.new) for work in works])
            with memory_errors():
                readings = self._reader.read(works, [hidden for hidden, _ in outputs])
        except MemoryError as exc:
            return str(exc)
        ended = []
        for work, (_, handle), (values, memo) in zip(works, outputs, readings, strict=True):
            score = self._keep(work, handle, values, memo)
            usage = Usage(scored=len(work.new), flops=self._shape.flops(len(work.new), work.start))
            ended.append((work.job, usage, score))
        finish_all(ended)
        return None

    def _grow(self, items: Sequence[tuple[Segment | None, Sequence[int]]]) -> list[tuple[torch.Tensor, Segment]]:
        """`Body.extend`; where memory runs out, drop the oldest problem outside the batch.

        It must then be computed again. After that the batch is halved, and for a single path the batch's own problems
        are dropped, oldest first: a batch may have more paths than fit into memory.
        """
        from ttc.engines.embedded.core.prefill import memory_errors

        while True:
            try:
                with memory_errors():
                    return self._body.extend(items)
            except MemoryError:
                idle = next((problem_id for problem_id in self._problems if problem_id not in self._busy), None)
                if idle is None and len(items) == 1 and not self._forget_scored():
                    raise
            # after the handler, since the exception refers to the pages of the attempt
            if idle is not None:
                del self._problems[idle]
            elif len(items) > 1:
                half = len(items) // 2
                return self._grow(items[:half]) + self._grow(items[half:])

    def _forget_scored(self) -> bool:
        """Drop the computed paths below the roots of the oldest problem that has any; returns whether there was one.

        A path in work keeps the ancestor that it continues, and a later one starts from its root again.
        """
        for layouts in self._problems.values():
            below = [(paths, place) for paths in layouts.values() for place in paths if place != ()]
            for paths, place in below:  # in place, since the current batch writes into these
                del paths[place]
            if below:
                return True
        return False

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
    """Compute without gradients on `threads` threads of the calling thread's pool."""
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


# -- readers -----------------------------------------------------------------------------------------------------------
class HeadReader:
    """Reads a probability at the last token of a step (or at its tag) through `head`; has no memo."""

    remembers = False

    def __init__(self, body: Body, head: Head) -> None:
        self._body, self._head = body, head

    def root(self, hidden: torch.Tensor) -> Any:
        """None: there is no memo."""
        return None

    def read(self, works: Sequence[PathUpdate], hidden: Sequence[torch.Tensor]) -> list[tuple[tuple[float, ...], Any]]:
        """One matrix product for all reads of the batch."""
        import torch

        rows = torch.cat([states[work.reads] for work, states in zip(works, hidden, strict=True)])
        padded = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % self._body.pad_rows))
        values = iter(self._head(padded)[: len(rows)].tolist())
        return [(tuple(next(values) for _ in work.reads), None) for work in works]


class LikelihoodReader:
    """Reads exp(beta * sum of log p(token) / p(first choice)) over the sampled tokens of the path so far, in (0, 1].

    A token that is the model's own first choice costs nothing, an implausible one costs much, and a free choice (which
    step first) costs little. Injected tokens, which have no log-probability in the prompt, do not count.
    """

    remembers = True

    def __init__(self, body: Body, beta: float) -> None:
        if not beta > 0:
            raise ConfigError(f"prm beta must be > 0, got {beta}")
        self._body, self._beta = body, beta

    def root(self, hidden: torch.Tensor) -> Any:
        """The last hidden state, which predicts the first token, and a sum of 0."""
        return hidden[-1:], 0.0

    def read(self, works: Sequence[PathUpdate], hidden: Sequence[torch.Tensor]) -> list[tuple[tuple[float, ...], Any]]:
        """One matrix product for all new tokens of the batch."""
        import torch

        pairs = list(zip(works, hidden, strict=True))
        before = torch.cat([part for work, states in pairs for part in (work.base.memo[0], states[:-1])])
        token_ids = torch.tensor([token for work in works for token in work.new], device=before.device)
        logits = self._body.logits(before).float()
        margins = iter((logits.gather(1, token_ids[:, None])[:, 0] - logits.amax(-1)).tolist())
        return [self._accumulate(work, [next(margins) for _ in work.new], states) for work, states in pairs]

    def _accumulate(
        self, work: PathUpdate, margins: list[float], states: torch.Tensor
    ) -> tuple[tuple[float, ...], Any]:
        prompt = work.prompt
        start = work.start - prompt.rendered_len
        logprobs = None if prompt.logprobs is None else prompt.logprobs[start : start + len(work.new)]
        total, sums = work.base.memo[1], []
        for at, margin in enumerate(margins):
            injected = logprobs is not None and logprobs[at] is None
            total += 0.0 if injected else self._beta * margin
            sums.append(total)
        return tuple(math.exp(sums[at]) for at in work.reads), (states[-1:], total)


def label_head(
    tensors: Mapping[str, torch.Tensor], device: torch.device, positive_label: int, activation: str, where: str
) -> Head:
    """The head of a folder, as one function to the probability of the positive label.

    There are three forms: one linear layer (`score`), two with a ReLU (`score.0`, `score.2`: the Qwen2.5-Math reward
    models) and a value head (`v_head.summary`). The arithmetic is in fp32.
    """
    import torch

    def part(name: str) -> torch.Tensor | None:
        tensor = tensors.get(name)
        return None if tensor is None else tensor.to(device=device, dtype=torch.float32)

    stacks = (("score",), ("score.0", "score.2"), ("v_head.summary",))
    stack = [names for names in stacks if all(f"{name}.weight" in tensors for name in names)]
    if not stack:
        raise ConfigError(f"{where} has no classification head (score.weight): it is not a reward model")
    layers = [(tensors[f"{name}.weight"].to(device, torch.float32), part(f"{name}.bias")) for name in stack[0]]
    labels = layers[-1][0].shape[0]
    if labels > 1 and not 0 <= positive_label < labels:
        raise ConfigError(f"prm positive_label={positive_label}, but {where} has {labels} labels")

    def head(hidden: torch.Tensor) -> torch.Tensor:
        x = hidden.float()
        for index, (weight, bias) in enumerate(layers):
            x = torch.nn.functional.linear(x.relu() if index else x, weight, bias)
        return probability(x, positive_label, activation)

    return head


def probability(logits: torch.Tensor, positive_label: int, activation: str) -> torch.Tensor:
    """Probability (N,) of the positive label of logits (N, labels); a single output goes through a sigmoid."""
    if logits.shape[-1] == 1 or activation == "sigmoid":
        return logits[:, min(positive_label, logits.shape[-1] - 1)].sigmoid()
    return logits.softmax(-1)[:, positive_label]
