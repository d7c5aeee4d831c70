"""A session: one problem's view of an engine, and all that a strategy may use.

Through it every request is seeded by path, held to the thinking control and the budget, charged to the meter and
written to the trace. Strategies and scorers never see the engine itself, other problems, or a target. Cancelling the
awaiting task aborts the requests in the engine.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ttc.choosing.selection import Select, choose, fallback, num_unweighed, vote
from ttc.concurrent import HeadStart, gather, gather_until
from ttc.config.plugins import call_strategy, read_scores
from ttc.config.values import at_least, at_most
from ttc.core import (
    Answer,
    AnswerReader,
    Budget,
    Candidate,
    Capabilities,
    Completion,
    Enforced,
    Engine,
    Event,
    ExtraSampling,
    Message,
    Path,
    Price,
    PricedScorer,
    Problem,
    Prompt,
    Sampling,
    Score,
    Scorer,
    SearchAware,
    Strategy,
    ToolEngine,
    Tools,
    Usage,
)
from ttc.errors import BudgetExceeded, ConfigError, PromptTooLong
from ttc.seeds import derive, uniform
from ttc.session.meter import FREE, Clock, Cost, Lease, Meter, OwnPrefixes, Request, generate_alone
from ttc.session.thinking import (
    OUT_OF_CALLS,
    OUT_OF_ROOM,
    Split,
    Thinking,
    answer_reserve,
    check_handover,
    controlled,
    count_sampled_thinking,
    split_prompt,
    split_whole,
)

T = TypeVar("T")
HEAD_START = 0.25
"""Share of a budget in seconds for which the first draw may run alone where draws share time."""
_MARK = re.compile(r"[<\[].+[>\]]", re.DOTALL)
"""A token that may be one of control."""
Shared: TypeAlias = dict[Callable[[], Any], Any]
"""What the sessions of one run have in common, by the factory that made it."""
MAX_SAMPLES = 100_000
"""Draws of one problem whose requests still fit into memory, and more than any curve of coverage needs."""


def _shortened(completion: Completion, lease: Lease, sampling: Sampling, thinking: Thinking) -> bool:
    """Whether the budget, and not the request, ended a draw or its thought."""
    if completion.finish_reason != "length":
        spent = lease.max_calls is not None and completion.usage.calls >= lease.max_calls
        return spent and (thinking.min_tokens > 0 or completion.num_waits < thinking.num_waits)
    if completion.stop_reason == OUT_OF_ROOM:
        return lease.is_cut
    return lease.max_tokens < sampling.max_tokens or completion.stop_reason == OUT_OF_CALLS


def _check_budget(budget: Budget, thinking: Thinking, capabilities: Capabilities) -> None:
    """Refuse, before anything is spent, limits too small for any answer."""
    if budget.flops is not None and capabilities.shape is None:
        raise ConfigError(f"budget.flops: the size of {capabilities.model} is not known, so set budget.tokens")
    if not thinking.active or thinking.template is False:
        return
    if budget.calls is not None and budget.calls < 2:
        raise ConfigError(
            f"budget.calls={budget.calls} leaves no call for the answer after a thought that is held to a budget: set "
            "budget.calls to 2 or more, or think without limits"
        )
    if budget.tokens is not None and thinking.min_tokens >= budget.tokens:
        raise ConfigError(
            f"thinking.min_tokens={thinking.min_tokens} leaves nothing of budget.tokens={budget.tokens} for an answer: "
            "raise the budget or think less"
        )


_UNPAID = Score(None, note="the budget does not cover its scoring")
_TOO_LATE = Score(None, note="budget.seconds ended its scoring")
_SCORED_TOGETHER = 16
"""Prompts of one call to a scorer while a clock runs: what it has scored when time is up is kept."""


class Session:
    """What a strategy receives besides the problem.

        ask       render, ask, encode, encode_plain; root and next_draw: where in the tree
        draw      generate; run: another strategy; chance: the strategy's own dice
        judge     score, price; extract and key: final answers and the classes they vote in
        answer    candidate, candidate_at, split, answering; answer, best_so_far
        budget    limited, rationed, exhausted, spent, seconds_left, clock, pays_for; narrow; subtree: an equal share
        trace     note, prune

    `attempt` and `close` are for who opens the session, `shared` for what the problems of a run have in common.
    """

    def __init__(
        self,
        problem: Problem,
        engine: Engine,
        *,
        answers: AnswerReader,
        seed: int,
        sampling: Sampling,
        thinking: Thinking | None = None,
        budget: Budget | None = None,
        shared: Shared | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Bind `engine` to `problem`; `seed` is the run's, `sampling` the run-level defaults of each draw.

        `answers` reads and groups final answers of the problem's kind: `ttc.answers.kind_of(problem.kind)`. `shared` is
        one dictionary for all sessions of a run; without it, this session is a run of its own. `clock` measures a
        budget in seconds; the event loop waits by its own.

        Raises:
            ConfigError: the engine cannot hold the thinking control or the budget, or the two contradict each other.
        """
        self.problem = problem
        self.thinking = thinking or Thinking()
        self._engine = engine
        self.check_thinking(self.thinking)
        _check_budget(budget or Budget(), self.thinking, engine.capabilities)
        self.sampling = replace(sampling, seed=derive(seed, problem.id), logprobs=engine.capabilities.logprobs)
        self.seed = seed
        self._answers = answers
        self._meter = Meter(budget, clock=clock)
        self._draws = DrawBook()
        self._prefixes = OwnPrefixes()
        self._head_start = HeadStart()
        self._finished_draws: dict[Path, tuple[Prompt, Completion]] = {}
        """Draws that the model or a stop string ended, with their prompts: in hand when the budget ends."""
        self._scores: dict[Path, Score] = {}
        self._candidates: dict[Path, Candidate] = {}
        self._events: list[Event] = []
        self._scorers: list[Scorer] = []
        # Checked once per part and not per path: isinstance of a protocol looks at every attribute.
        self._aware: list[SearchAware] = [engine] if isinstance(engine, SearchAware) else []
        self._shared: Shared = {} if shared is None else shared
        self._enforcements: list[Enforced] = []
        """How the thinking budget of each draw was held."""
        self._run_prompts: dict[Path, Prompt] = {}
        """The whole paths of candidates of `run`, which may answer another question than the problem itself."""
        self.root: Path = ()

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can honour."""
        return self._engine.capabilities

    def check_thinking(self, thinking: Thinking) -> None:
        """Refuse, before any work, thinking control that the engine cannot honour; raises ConfigError."""
        thinking.check(self.capabilities)
        if thinking.active or thinking.handover is not None:
            check_handover(self._engine, thinking)

    @property
    def usage(self) -> Usage:
        """Everything charged so far."""
        return self._meter.usage

    @property
    def trace(self) -> tuple[Event, ...]:
        """The events in tree order, independent of the schedule (stable within one path)."""
        return tuple(sorted(self._events, key=lambda event: event.path))

    def enforced(self, thinking: Thinking) -> Enforced:
        """How this thinking control's budget was enforced in the draws so far."""
        if not thinking.active:
            return "none"
        return "native" if self._enforcements and set(self._enforcements) == {"native"} else "ids"

    # -- asking --------------------------------------------------------------------------------------------------------
    def render(self, thinking: Thinking | None = None) -> Prompt:
        """Render the problem as the root of the tree; `thinking` overrides the session's."""
        prompt = self._engine.render(self.problem.messages, (thinking or self.thinking).template)
        return replace(prompt, problem_id=self.problem.id, messages=self.problem.messages, path=self.root)

    def ask(self, messages: Sequence[Message], path: Path, tools: Tools = ()) -> Prompt:
        """Render a question of the strategy itself (to compare, to revise), at a `path` that no other draw has.

        Args:
            messages: the conversation.
            path: the node.
            tools: functions that the chat template shows to the model; needs a `tool_format`.

        Raises:
            ConfigError: the path is not below `root`, where another strategy may draw.
        """
        if path[: len(self.root)] != self.root:
            raise ConfigError(f"path {list(path)} is not below {list(self.root)}: begin it with session.root")
        engine, template = self._engine, self.thinking.template
        if tools and isinstance(engine, ToolEngine):
            prompt = engine.render_tools(messages, template, tools)
        else:
            prompt = engine.render(messages, template)
        return replace(prompt, problem_id=self.problem.id, messages=tuple(messages), path=path)

    def next_draw(self, path: Path) -> int:
        """The first free draw number at `path`, ignoring calls in flight."""
        return self._draws.next_number(path)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` that a strategy injects, without any special token added."""
        return self._engine.encode(text)

    @property
    def tool_format(self) -> str:
        """The format in which the model's chat template writes calls (`ttc.core.ToolEngine`); "" for none."""
        return self._engine.tool_format if isinstance(self._engine, ToolEngine) else ""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return self._engine.decode(ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Token ids of the characters of `text`: a control token that it spells out (`<|im_end|>`) is split."""
        pieces = {self._engine.decode([token]) for token in set(self.encode(text))}
        marks = [piece for piece in pieces if _MARK.fullmatch(piece) and piece in text]
        if not marks:
            return self.encode(text)
        parts = re.split(f"({'|'.join(map(re.escape, sorted(marks, key=len, reverse=True)))})", text)
        halves = (half for part in parts for half in ((part[:1], part[1:]) if part in marks else (part,)) if half)
        return tuple(token for half in halves for token in self.encode_plain(half))

    def extract(self, text: str) -> str | None:
        """The final answer of `text`, read without the target by the problem's answer kind; None if there is none."""
        return self._answers.final(text)

    def key(self, final: str) -> str:
        """The class that a final answer votes in: answers with equal keys are in one class."""
        return self._answers.key(final)

    def chance(self, *purpose: int | str) -> float:
        """Return the random number in [0, 1) for `purpose`: a strategy's own randomness, keyed like a draw's."""
        place: tuple[int | str, ...] = ("at", *self.root) if self.root else ()
        return uniform(derive(self.sampling.seed or 0, "strategy", *place, *purpose), 0)

    # -- a strategy inside another -------------------------------------------------------------------------------------
    async def attempt(self, strategy: Strategy) -> Answer:
        """Run `strategy`; if the budget ends it, return the best answer from what was drawn so far."""
        try:
            return await call_strategy(strategy, self.problem, self)
        except BudgetExceeded:
            return self.best_so_far()
        finally:
            self._meter.release_below(self.root)

    async def run(self, strategy: Strategy, index: int) -> Answer:
        """Run another strategy on the problem, on the same budget and ledger; its tree is below draw `index`.

        The number decides its randomness like a draw's. If the budget ends it, its best answer so far is returned.

        Raises:
            TTCError: what the strategy raises.
        """
        view = copy.copy(self)
        view.root = (*self.root, index)
        return await view.attempt(strategy)

    def answering(self, candidate: Candidate) -> Prompt:
        """The path of a candidate of `run` as an answer to the problem itself, whatever question it answered.

        Raises:
            ConfigError: the candidate did not come from `Session.candidate`.
        """
        whole, root = self._run_prompts.get(candidate.path), self.render()
        if whole is None:
            raise ConfigError(
                f"no session has drawn path {list(candidate.path)}: make candidates with session.candidate"
            )
        return replace(
            whole,
            text=root.text + whole.generated_text,
            token_ids=None if root.token_ids is None else root.token_ids + whole.generated_ids,
            rendered_len=root.rendered_len,
            rendered_chars=root.rendered_chars,
            think_state=root.think_state,
            messages=root.messages,
        )

    def subtree(self, parts: int, index: int) -> Session:
        """Return a view of this session that may spend share `index` of `parts` equal ones of what is left."""
        view = copy.copy(self)
        view._meter = self._meter.share(parts, index)
        return view

    # -- the budget and the trace --------------------------------------------------------------------------------------
    @property
    def exhausted(self) -> bool:
        """Whether the budget has ended some of the work."""
        return self._meter.exhausted

    def narrow(self) -> None:
        """Mark the answer as stopped by the budget: for strategies that ask for less than they would without one."""
        self._meter.exhaust()

    @property
    def without_ids(self) -> str:
        """Why token ids are missing and what helps, for an engine that takes none."""
        return (
            f"which {self.capabilities.model} does not take; with engine openai, serve it with vLLM or llama.cpp and "
            "set engine.tokenizer=PATH"
        )

    @property
    def rationed(self) -> bool:
        """Whether tokens or FLOPs are limited: then an earlier request may get the last of them, and order matters."""
        return self._meter.budget.tokens is not None or self._meter.budget.flops is not None

    @property
    def limited(self) -> bool:
        """Whether there is any budget: then requests may be granted in part."""
        return self._meter.limited

    def clock(self) -> float:
        """The time of the clock that measures the budget."""
        return self._meter.clock()

    def price(self, prompt: Prompt, scorer: Scorer) -> Price:
        """The price of scoring `prompt` and what is drawn after it; zero without a budget."""
        return self._meter.price(prompt, scorer)

    @property
    def seconds_left(self) -> float:
        """Seconds that the budget leaves; infinite without such a limit."""
        left = self._meter.seconds_left
        return math.inf if left is None else left

    def pays_for(self, cost: Cost) -> float:
        """How many times the rest of the budget covers `cost`; infinite if none of its units is limited."""
        return self._meter.pays_for(cost)

    @property
    def spent(self) -> bool:
        """Whether not even one more token can be drawn."""
        return self.pays_for(Cost(tokens=1, calls=1)) < 1

    def shared(self, factory: Callable[[], T]) -> T:
        """Return the one object of `factory` that all sessions of this run share; made at the first call.

        For the schedule or a budget of the whole run; nothing that decides a draw may be kept here.
        """
        if factory not in self._shared:
            self._shared[factory] = factory()
        one: T = self._shared[factory]
        return one

    def note(self, kind: str, path: tuple[int, ...], **data: object) -> None:
        """Add an event to the trace."""
        self._events.append(Event(kind, path, data))

    def prune(self, path: Path) -> None:
        """Leave a path for good, so that engine and scorer may free what they keep for it."""
        self.note("prune", path)
        for part in self._aware:
            part.prune(self.problem.id, path)

    # -- drawing -------------------------------------------------------------------------------------------------------
    async def generate(
        self,
        prompt: Prompt,
        draws: range | int,
        *,
        sampling: Sampling | None = None,
        thinking: Thinking | None = None,
        scorer: Scorer | None = None,
        resumed: bool = False,
        piece: bool = False,
        least: int = 1,
        spare: float = 0.0,
    ) -> list[Completion]:
        """Continue `prompt` once per draw; fewer completions come back when the budget ends first.

        A count takes the next free numbers at this place of the tree; overlapping calls at one place must name their
        ranges. `scorer` will score every draw: if its price is known, a budget reserves that. `resumed`: `prompt` is an
        unfinished draw, and the scoring reserved for it passes on to these draws. `piece`: the draws will continue
        later, so the end of a budget does not force their thinking into an answer. A question of the strategy itself
        that fills the context gives no draw if `least` is 0 and there are others. `spare`: the share of a budget's rest
        in seconds that is wanted afterwards: once two draws have finished, the others are cut for it.

        Raises:
            BudgetExceeded: fewer than `least` could be drawn; a strategy leaves that to `solve`.
            ConfigError: a number was asked for twice, or a count beside a call in flight.
        """
        thinking = thinking or self.thinking
        sampling = self._fitted(prompt, sampling or self.sampling, thinking)
        completions: list[Completion] = []
        with self._draws.numbered(prompt, draws) as numbers:
            needed = min(least, len(numbers))
            while numbers:
                try:
                    lease = self._meter.lease(self._request(prompt, len(numbers), sampling, thinking, scorer, piece))
                except BudgetExceeded:
                    self._meter.exhaust()
                    if len(completions) < needed:
                        raise
                    break
                if resumed:
                    self._meter.release(prompt.path)
                now, numbers = numbers[: lease.num_draws], numbers[lease.num_draws :]
                control = thinking if piece else self._closing(thinking, lease, sampling)
                try:
                    part = await self._draw_leased(prompt, lease, sampling, now, control, spare)
                except PromptTooLong as exc:
                    if needed or prompt.messages == self.problem.messages or not self._meter.usage.calls:
                        raise
                    self.note("note", prompt.path, unasked=str(exc))
                    break
                if control is not thinking and any(one.injected for one in part):
                    self._meter.exhaust()
                self._keep_for_scoring(prompt, lease, part, scorer)
                completions += part
        if len(completions) < needed:  # every lease was granted, so the clock has cut the draws
            raise BudgetExceeded(f"budget.seconds {self._meter.budget.seconds:g} is spent")
        return completions

    async def _draw_leased(
        self, prompt: Prompt, lease: Lease, sampling: Sampling, draws: range, thinking: Thinking, spare: float
    ) -> list[Completion]:
        """Run draws under a lease, return the lease, and note whether the budget ended them."""
        made: Sequence[int] = draws
        try:
            completions = await self._draw_in_time(prompt, lease, sampling, draws, thinking, spare)
            made = [completion.path[-1] for completion in completions]  # draws cut by the clock were never returned
        finally:
            self._draws.made(prompt, made)
            self._meter.settle(lease)
        if len(completions) < len(draws) or any(_shortened(one, lease, sampling, thinking) for one in completions):
            self._meter.exhaust()
        return completions

    def _fitted(self, prompt: Prompt, sampling: Sampling, thinking: Thinking) -> Sampling:
        """`sampling` cut to the context, since a strategy's own prompt may be longer than the problem's."""
        room = self.capabilities.max_context - len(prompt.token_ids or ())
        is_other = prompt.messages != self.problem.messages or thinking.template is not self.thinking.template
        if prompt.token_ids is None or not 1 <= room < sampling.max_tokens or not (is_other or prompt.generated_ids):
            return sampling  # even if it does not fit: the engine refuses what the user asked for
        return replace(sampling, max_tokens=room)

    def _request(
        self, prompt: Prompt, num_draws: int, sampling: Sampling, thinking: Thinking, scorer: Scorer | None, piece: bool
    ) -> Request:
        """What the draws of a prompt ask of the budget."""
        length = len(prompt.token_ids or ())
        closable = not piece and self._can_close(thinking)
        stops = self._answer_stops(prompt, sampling, thinking)
        control = thinking  # including the hand-over that the budget may inject
        if closable and thinking.max_tokens is None:
            control = replace(thinking, max_tokens=max(sampling.max_tokens, thinking.min_tokens))
        return Request(
            num_draws=num_draws,
            max_tokens=sampling.max_tokens,
            price=self._meter.price(prompt, scorer),
            prompt=prompt.path,
            calls=max(control.calls_each, 3 if self._parted(prompt, sampling, stops) else 1),
            most_calls=control.most_calls(self._engine) if control.active and self.limited else 1,
            injected=control.count_injected(self._engine) if self.rationed else 0,
            opening=not piece,
            draw_flops=lambda num_tokens: self.capabilities.flops(length + num_tokens, 0),
        )

    def _can_close(self, thinking: Thinking) -> bool:
        """Whether a budget may cut a thought and hand the model over to its answer.

        Only while nothing has finished: a forced answer is better than none, but worth less than a vote.
        """
        model = self.capabilities
        if self._finished_draws:
            return False
        open_ended = thinking.template is not False and thinking.at_cap == "handover"
        return self._meter.budget.tokens is not None and open_ended and bool(model.think_close) and model.token_ids

    def _closing(self, thinking: Thinking, lease: Lease, sampling: Sampling) -> Thinking:
        """`thinking`, ended in time for an answer if the budget has shortened the draw.

        A thought that ends by itself before that is the same as in an unlimited draw.
        """
        if not lease.is_cut or lease.max_calls == 1 or not self._can_close(thinking):
            return thinking
        cap = max(lease.max_tokens - answer_reserve(lease.max_tokens), 1)
        if thinking.max_tokens is not None and thinking.max_tokens <= cap:
            return thinking
        return replace(thinking, max_tokens=cap, min_tokens=min(thinking.min_tokens, cap))

    def _keep_for_scoring(
        self, prompt: Prompt, lease: Lease, drawn: Sequence[Completion], scorer: Scorer | None
    ) -> None:
        before = self._meter.price(prompt, scorer)
        if before != FREE:
            prices = [self._meter.price(prompt.then(completion), scorer) for completion in drawn]
            self._meter.keep(lease, drawn, prices, before)

    async def _draw_in_time(
        self, prompt: Prompt, lease: Lease, sampling: Sampling, draws: range, thinking: Thinking, spare: float
    ) -> list[Completion]:
        """Run draws until the budget in seconds ends: finished ones are returned, the rest is aborted."""
        leased = lease.hold(sampling, self.sampling)
        seconds = self._meter.seconds_left
        if seconds is None:
            return await self._draw(prompt, leased, draws, thinking, lease)
        works = (
            partial(self._draw, prompt, leased, range(draw, draw + 1), thinking, lease) for draw in draws
        )  # a request each, so that one can end without the others
        if self.capabilities.draws_share_time:  # in one batch with many others nothing might be finished in time
            works = (partial(self._head_start.run, work, HEAD_START * seconds) for work in works)
        completions = await gather_until((work() for work in works), seconds, (1 - spare) * seconds if spare else None)
        return [completion for part in completions if part is not None for completion in part]

    async def _draw(
        self, prompt: Prompt, sampling: Sampling, draws: range, thinking: Thinking, lease: Lease
    ) -> list[Completion]:
        """Run draws in the engine; charge their thinking tokens; write the trace."""
        completions = await self._run(prompt, sampling, draws, thinking, lease)
        completions = _continued(self._engine, prompt, completions)
        self.record(prompt, completions)
        counts = count_sampled_thinking(prompt, completions, self.capabilities)
        if any(counts):
            self._meter.add(Usage(thinking=sum(counts)))
        for completion, count in zip(completions, counts, strict=True):
            # Without ids the engine has charged what its server counted.
            self._note_generated(completion, count if completion.token_ids else completion.usage.thinking)
        return completions

    async def _run(
        self, prompt: Prompt, sampling: Sampling, draws: range, thinking: Thinking, lease: Lease
    ) -> list[Completion]:
        """Run draws in the engine: one by one if their thinking is counted or separated from the answer."""
        generate = partial(generate_alone, self._engine, self._prefixes)
        stops = self._answer_stops(prompt, sampling, thinking)
        counted = thinking.active and thinking.template is not False
        if not counted and not self._parted(prompt, sampling, stops):
            return await generate(prompt, sampling, draws, self._meter.add)
        return await gather(
            controlled(
                self._engine,
                prompt,
                sampling,
                draw,
                thinking,
                self._meter.add,
                lease.max_calls,
                self._enforcements.append if counted else None,
                stops,
                self.room(prompt) if lease.max_ids is None else lease.max_ids,
                generate,
            )
            for draw in draws
        )

    def _note_generated(self, completion: Completion, num_thinking: int) -> None:
        self.note(
            "generate",
            completion.path,
            text=completion.text,
            num_tokens=completion.usage.generated,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            thinking=num_thinking > 0,
            num_thinking=num_thinking,
            injected=completion.injected,
        )

    def room(self, prompt: Prompt) -> int | None:
        """Most ids that a draw of `prompt` may have, injected ones included; None: only sampled ones are capped."""
        return None

    def _parted(self, prompt: Prompt, sampling: Sampling, stops: Sequence[str]) -> bool:
        """Whether a thought is drawn separately from its answer, as `stops` and a grammar apply only to the latter."""
        guided = isinstance(sampling, ExtraSampling) and sampling.grammar is not None
        return bool(stops) or (guided and split_prompt(prompt, self.capabilities).inside)

    def _answer_stops(self, prompt: Prompt, sampling: Sampling, thinking: Thinking) -> tuple[str, ...]:
        """The stop strings that apply to the answer, for a draw that may think; a strategy's own ones end its steps."""
        capabilities = self.capabilities
        if not (capabilities.think_close and capabilities.token_ids) or thinking.template is False:
            return ()
        return () if prompt.think_state == "closed" else tuple(s for s in sampling.stop if s in self.sampling.stop)

    def record(self, prompt: Prompt, completions: Sequence[Completion]) -> None:
        """Record an ended draw, which can be returned if the budget ends before the strategy does."""
        if prompt.messages == self.problem.messages:  # a question of the strategy's own has no answer to the problem
            stops = (*self.sampling.stop, *self.sampling.stop_token_ids)
            ended = (one for one in completions if one.finished or one.stop_reason in stops)
            self._finished_draws.update({one.path: (prompt, one) for one in ended})

    # -- scoring -------------------------------------------------------------------------------------------------------
    async def score(self, scorer: Scorer, prompts: Sequence[Prompt]) -> list[Score]:
        """Score the generated part of each prompt; the scorer's tokens and FLOPs are charged here.

        A prompt whose scoring the budget does not cover in tokens or time has no verdict; nor has one whose score is
        not finite.
        """
        if not any(other is scorer for other in self._scorers):
            self._scorers.append(scorer)
            self._aware += [scorer] if isinstance(scorer, SearchAware) else []
        for prompt in prompts:
            self._meter.cover(prompt.path, self._meter.price(prompt, scorer))
        affordable = [prompt for prompt in prompts if self._meter.affords(prompt.path)]
        try:
            verdicts = iter(await self._score_in_time(scorer, affordable))
        finally:
            for prompt in affordable:
                self._meter.release(prompt.path)
        scores = [next(verdicts) if self._meter.affords(prompt.path) else _UNPAID for prompt in prompts]
        if any(score is _UNPAID or score is _TOO_LATE for score in scores):
            self._meter.exhaust()
        for prompt, score in zip(prompts, scores, strict=True):
            self._scores[prompt.path] = score
            self.note("score", prompt.path, value=score.value, steps=score.steps, note=score.note)
        return scores

    async def _score_in_time(self, scorer: Scorer, prompts: Sequence[Prompt]) -> list[Score]:
        """Score until the budget in seconds ends; scores by then are kept."""
        seconds = self._meter.seconds_left
        if seconds is None:
            return read_scores(scorer, await scorer.score(prompts, self._meter.add), len(prompts))
        scores: list[Score] = []
        # Scorers that can price a single prompt give it the same score whatever it is scored with.
        alone = isinstance(scorer, PricedScorer) and all(not scorer.price(prompt).per_draw for prompt in prompts[:1])
        size = _SCORED_TOGETHER if alone else len(prompts)
        while len(scores) < len(prompts):
            batch = prompts[len(scores) : len(scores) + size]
            (verdicts,) = await gather_until([scorer.score(batch, self._meter.add)], self.seconds_left)
            if verdicts is None:
                break
            scores += read_scores(scorer, verdicts, len(batch))
        return scores + [_TOO_LATE] * (len(prompts) - len(scores))

    # -- answering -----------------------------------------------------------------------------------------------------
    def candidate(self, prompt: Prompt, completion: Completion, score: float | None = None) -> Candidate:
        """Close a path: split thinking from answer and extract the final answer."""
        whole = prompt.then(completion)
        return self.candidate_at(whole, completion.finish_reason, score, completion.usage.generated)

    def split(self, whole: Prompt) -> Split[str]:
        """The generated part of `whole`, split at the model's thinking markers."""
        return split_whole(whole, self._engine)

    def candidate_at(
        self, whole: Prompt, finish_reason: str, score: float | None = None, num_tokens: int = 0
    ) -> Candidate:
        """`candidate` for a prompt that already ends the path; `num_tokens` is its length on engines without ids."""
        parts = self.split(whole)
        complete = finish_reason == "stop" and not parts.inside
        logprobs = [value for value in whole.logprobs or () if value is not None]
        candidate = Candidate(
            path=whole.path,
            text=parts.answer,
            thinking=parts.thinking,
            final=self._answers.final(parts.answer) if complete else None,
            finish_reason="stop" if finish_reason == "stop" else "length",
            num_tokens=num_tokens if whole.token_ids is None else len(whole.generated_ids),
            score=score,
            logprob=sum(logprobs) if logprobs else None,
        )
        self._candidates[candidate.path] = candidate
        if self.root:
            self._run_prompts[candidate.path] = whole
        return candidate

    def choose(
        self, candidates: Sequence[Candidate], select: Select, *, beta: float = 0.1, u: float = 0.0
    ) -> Candidate | None:
        """`ttc.choosing.selection.choose` by the problem's classes; the trace notes how many scores had no say."""
        unweighed = num_unweighed(candidates, select)
        if unweighed:
            self.note("note", self.root, unweighed=unweighed)
        return choose(candidates, self.key, select, beta=beta, u=u)

    def best_so_far(self) -> Answer:
        """The answer when the budget ended before the strategy did: the best score, else the vote."""
        here = len(self.root)
        for path, (prompt, completion) in self._finished_draws.items():
            if path not in self._candidates and path[:here] == self.root:
                score = self._scores.get(path)
                self.candidate(prompt, completion, None if score is None else score.value)
        candidates = [self._candidates[path] for path in sorted(self._candidates) if path[:here] == self.root]
        best = choose(candidates, self.key, "argmax") or vote(candidates, self.key) or fallback(candidates)
        return self.answer(best, candidates, "budget")

    def answer(self, chosen: Candidate | None, candidates: Sequence[Candidate], stop_cause: str = "done") -> Answer:
        """Build the strategy's answer from the chosen candidate (None: nothing was found)."""
        if chosen is not None:
            self.note("select", chosen.path)
        return Answer(
            text=chosen.text if chosen else "",
            final=chosen.final if chosen else None,
            thinking=chosen.thinking if chosen else "",
            finish_reason=chosen.finish_reason if chosen else "length",
            candidates=tuple(sorted(candidates, key=lambda candidate: candidate.path)),
            stop_cause="budget" if self._meter.exhausted else stop_cause,
            enforced=self.enforced(self.thinking),
        )

    def close(self) -> None:
        """Free what scorers and the engine keep for this problem."""
        for scorer in self._scorers:
            scorer.release(self.problem.id)
        if isinstance(self._engine, SearchAware):
            self._engine.release(self.problem.id)


_WINDOW = 16
"""Ids before a piece that it is decoded with."""


def _continued(engine: Engine, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
    """Draws of a prompt, each with the text that it adds: joined to what was generated before, the decoded whole.

    SentencePiece-like tokenizers drop a text's leading space, which would be lost between pieces. A character that is
    cut between pieces belongs to the piece that completes it.
    """
    before = prompt.generated_ids
    ids, known = before[-_WINDOW:], engine.decode(before[-_WINDOW:]) if before else ""
    if "\ufffd" in known:  # the window may begin inside a character
        ids, known = before, engine.decode(before)
    known = known if prompt.text.endswith("\ufffd") else known.rstrip("\ufffd")
    return [_piece(engine, ids, known, one) if one.token_ids else one for one in completions]


def _piece(engine: Engine, ids: tuple[int, ...], known: str, completion: Completion) -> Completion:
    """`completion` with the text that it adds to `known`, the text of the preceding `ids`."""
    partial = completion.finish_reason == "length"
    if not (ids or (partial and completion.text.endswith("\ufffd"))):
        return completion
    whole = engine.decode(ids + completion.token_ids[: len(completion.token_ids) - completion.num_eos])
    if not whole.startswith(known):
        return completion
    text = whole[len(known) :].rstrip("\ufffd") if partial else whole[len(known) :]
    return completion if text == completion.text else replace(completion, text=text)


# -- the draw contract -------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Place:
    """Draws below one path: the length and hash of each one's prompt, and the ranges in flight."""

    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    in_flight: list[range] = field(default_factory=list)
    flying: set[int] = field(default_factory=set)
    """The numbers of `in_flight`: a search has hundreds of calls of one number each in flight at once."""

    @property
    def next_number(self) -> int:
        return max(self.prompts, default=-1) + 1


class DrawBook:
    """Which draw numbers at which place of the tree are taken or in flight; private to its session, so it may change.

    The number of a draw decides its randomness, so a number is drawn once. Calls that overlap at one place name their
    ranges; a bare count takes the next free numbers there. A cut draw may continue under its own number, from a longer
    prompt that begins with its original one. Cost: one hash of the prompt a call. Left out: telling apart two prompts
    whose hashes are equal.
    """

    def __init__(self) -> None:
        self._places: dict[Path, _Place] = {}

    @contextmanager
    def numbered(self, prompt: Prompt, draws: range | int) -> Iterator[range]:
        """Yield the numbers of `draws`, reserved meanwhile; `made` records which became draws.

        Raises:
            ConfigError: a number was drawn before or is in flight; a bare count beside a call in flight.
        """
        place = self._places.setdefault(prompt.path, _Place())
        numbers = _next_numbers(place, prompt, draws) if isinstance(draws, int) else draws
        _check_free(place, prompt, numbers)
        place.in_flight.append(numbers)
        place.flying.update(numbers)
        try:
            yield numbers
        finally:
            place.in_flight.remove(numbers)
            place.flying.difference_update(numbers)

    def next_number(self, path: Path) -> int:
        """The first number after all that became draws at `path`."""
        place = self._places.get(path)
        return 0 if place is None else place.next_number

    def made(self, prompt: Prompt, numbers: Sequence[int]) -> None:
        """Record that these numbers became draws."""
        content = _content(prompt)
        state = (len(content), hash(content))
        prompts = self._places[prompt.path].prompts
        for number in numbers:
            prompts[number] = state


def _next_numbers(place: _Place, prompt: Prompt, count: int) -> range:
    if place.in_flight:
        raise ConfigError(
            f"{count} draws were asked for at {_name(prompt.path)} while draws {_span(place.in_flight[0])} are in "
            f"flight there: calls that overlap name their numbers, as in range({place.in_flight[0].stop}, "
            f"{place.in_flight[0].stop + count})"
        )
    return range(place.next_number, place.next_number + count)


def _check_free(place: _Place, prompt: Prompt, numbers: range) -> None:
    content = _content(prompt)
    for number in numbers:
        earlier = place.prompts.get(number)
        goes_on = earlier is None or (len(content) > earlier[0] and hash(content[: earlier[0]]) == earlier[1])
        if goes_on and number not in place.flying:
            continue
        free = max([place.next_number, *(flying.stop for flying in place.in_flight)])
        raise ConfigError(
            f"draw {number} at {_name(prompt.path)} was asked for twice: the same number is the same draw. Ask for a "
            f"count, which takes the next free numbers, or for range({free}, {free + len(numbers)})"
        )


def _content(prompt: Prompt) -> tuple[int, ...] | str:
    return prompt.text if prompt.token_ids is None else prompt.token_ids


def _name(path: Path) -> str:
    return f"path {list(path)}" if path else "the root"


def _span(numbers: range) -> str:
    return f"{numbers.start} to {numbers.stop - 1}"


def check_n(strategy: str, n: int, sampling: Sampling, name: str = "n") -> None:
    """Refuse an impossible number of draws; `name` is the parameter of `strategy`."""
    at_least(strategy, 1, **{name: n})
    at_most(strategy, MAX_SAMPLES, **{name: n})
    if n > 1 and sampling.temperature == 0:
        raise ConfigError(f"{strategy}: {name}={n} needs temperature > 0: at 0 all draws are equal")
