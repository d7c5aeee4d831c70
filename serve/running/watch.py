"""One choice of one request while it runs: its session, its engine, and the progress of its search.

The session passes its events on as they happen. The engine gives fair shares, hands tokens on while they are sampled
and notes cache hits; strategies and thinking control run unchanged on top of it, so a streamed answer is the same
answer. Draws go to the engine one by one: equal prompts that arrive together share their computation there.

The board makes messages of progress from the events: counts for a summary, and the nodes that changed. A node is one
generated piece: a whole candidate, or a step of a tree. Its state is live, then pruned, finished (the model ended it),
cut (its tokens ran out) or chosen. Messages are rate-limited; what is left goes out with the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from serve.requests.search import ProgressLevel
from serve.running.admission import FairGate, FairShare
from serve.running.deltas import Deltas
from ttc import seeds
from ttc.concurrent import gather
from ttc.core import (
    Answer,
    AnswerReader,
    Budget,
    Completion,
    Engine,
    Event,
    ExtraCompletion,
    Message,
    Path,
    Problem,
    Prompt,
    Sampling,
    Tools,
    Top,
    UsageSink,
)
from ttc.engines.shared.wrapped import Wrapped, draw_shown
from ttc.session.meter import Request
from ttc.session.session import Session
from ttc.session.thinking import Thinking

CHARS_OF_TOKEN = 4
"""Of ordinary text: an estimate for what is reserved before an upstream server has counted."""


class WatchedSession(Session):
    """One choice of one request."""

    def __init__(
        self,
        problem: Problem,
        engine: RequestEngine,
        *,
        answers: AnswerReader,
        seed: int,
        index: int,
        sampling: Sampling,
        thinking: Thinking,
        budget: Budget,
        start: Prompt,
        fixed: bool,
        max_ids: int | None,
        prepaid: int | None,
        logprobs: bool,
        listen: Callable[[Event], None],
    ) -> None:
        """`index` tells the choices of a request apart; `start` is the problem as its plan has rendered it.

        A strategy that thinks otherwise than the request has it rendered anew, unless `start` is `fixed`.

        No draw has more than `max_ids` tokens, what is injected included. With `prepaid`, what is not sampled counts,
        too: prompts and injected text take up these tokens, and then those of the budget.

        Log-probabilities of every token cost an engine a pass over the vocabulary, so they are asked for only with
        `logprobs`.

        The problem's id is the request's own, so that scorers keep concurrent requests apart; draws depend on the seed
        and the index alone, so the same request with the same seed gives the same answer.
        """
        super().__init__(
            problem, engine, answers=answers, seed=seed, sampling=sampling, thinking=thinking, budget=budget
        )
        with_logprobs = logprobs and self.sampling.logprobs
        self.sampling = replace(self.sampling, seed=seeds.derive(seed, "choice", index), logprobs=with_logprobs)
        self._listen, self._max_ids, self._prepaid = listen, max_ids, prepaid
        self._read: set[tuple[int, ...]] = set()
        """The prompts that were paid for, by their ids."""
        self._start, self._fixed = start, fixed
        self._drawn: dict[Path, list[DrawnPiece]] = {}
        self.roots: dict[tuple[int, ...], Prompt] = {}
        """Every prompt that was rendered, by its ids."""

    def render(self, thinking: Thinking | None = None) -> Prompt:
        """The problem as the plan has rendered it, or anew for another way of thinking."""
        fits = self._fixed or thinking is None or thinking.template is self.thinking.template
        prompt = self._start if fits else super().render(thinking)
        named = replace(prompt, problem_id=self.problem.id, messages=self.problem.messages, path=self.root)
        return self._rooted(named)

    def ask(self, messages: Sequence[Message], path: Path, tools: Tools = ()) -> Prompt:
        """Render a question of the strategy's own."""
        return self._rooted(super().ask(messages, path, tools))

    def _rooted(self, prompt: Prompt) -> Prompt:
        if prompt.token_ids is not None:
            self.roots.setdefault(prompt.token_ids, prompt)
        return prompt

    async def generate(self, prompt: Prompt, draws: range | int, **options: Any) -> list[Completion]:
        """Draw; what is not sampled is paid for, too, so that a key never spends more than it has reserved."""
        if self._prepaid is None:
            return await super().generate(prompt, draws, **options)
        before = self._reading(prompt, draws if isinstance(draws, int) else len(draws))
        self._pay(before)
        completions: list[Completion] = []
        try:
            completions = await super().generate(prompt, draws, **options)
        finally:
            if not completions:  # nor was the prompt read
                self._pay(-before)
                self._read.discard(_root(prompt))
        return completions

    def _request(self, prompt: Prompt, num_draws: int, *options: Any) -> Request:
        """What the draws ask of the budget, and for what is injected into them, if that is paid for, too."""
        request = super()._request(prompt, num_draws, *options)
        if self._prepaid is None:
            return request
        most, room = request.max_tokens + request.injected, self.room(prompt)
        most = most if room is None else min(most, room)
        return replace(request, max_tokens=most, injected=0, holds_injected=True)

    def _pay(self, tokens: int) -> None:
        """Take tokens from those that are paid for in advance, then from the budget; fewer than 0 are given back."""
        before = self._prepaid or 0
        self._prepaid = before - tokens
        self._meter.withhold(max(-self._prepaid, 0) - max(-before, 0))

    def _reading(self, prompt: Prompt, num_draws: int) -> int:
        """Tokens that are read for these draws, and were not before; an upstream server reads them every time."""
        if prompt.token_ids is None:
            return num_draws * (len(prompt.text) // CHARS_OF_TOKEN)
        root = _root(prompt)
        is_new = root not in self._read
        self._read.add(root)
        return is_new * len(root) + (self._num_added(prompt) if self._max_ids is None else 0)

    def _num_added(self, prompt: Prompt) -> int:
        """Ids at the end of a prompt that its strategy has added to what was drawn."""
        ids = prompt.generated_ids
        pieces = (piece.ids for group in self._drawn.values() for piece in group)
        return len(ids) - max((len(piece) for piece in pieces if ids[: len(piece)] == piece), default=0)

    def room(self, prompt: Prompt) -> int | None:
        """How many more ids a draw may have."""
        return None if self._max_ids is None else self._max_ids - len(prompt.generated_ids)

    def note(self, kind: str, path: tuple[int, ...], **data: object) -> None:
        """Add an event to the trace and pass it to the listener."""
        super().note(kind, path, **data)
        self._listen(Event(kind, path, data))

    def record(self, prompt: Prompt, completions: Sequence[Completion]) -> None:
        """Record what was drawn."""
        super().record(prompt, completions)
        if self._prepaid is not None:
            self._pay(sum(end - start for one in completions for start, end in one.injected))
        for completion in completions:
            self._drawn.setdefault(completion.path, []).append(DrawnPiece(prompt, completion))

    def along(self, path: Path) -> list[DrawnPiece]:
        """The pieces of the draw that ends at `path`, from its own root on, which need not be the problem's."""
        pieces = self._drawn.get(path, [])[-1:]
        while pieces and pieces[0].prompt.generated_ids:
            before = self._before(pieces[0])
            if before is None:
                break
            pieces.insert(0, before)
        return pieces

    def _before(self, piece: DrawnPiece) -> DrawnPiece | None:
        """The piece that `piece` goes on from: at the place before it, or at its own where a draw was resumed."""
        ids = piece.prompt.generated_ids
        earlier = [*self._drawn.get(piece.completion.path, ()), *self._drawn.get(piece.prompt.path, ())]
        fitting = [other for other in earlier if len(other.ids) <= len(ids) and ids[: len(other.ids)] == other.ids]
        shorter = [other for other in fitting if len(other.prompt.generated_ids) < len(ids) and other is not piece]
        return max(shorter, key=lambda other: len(other.ids), default=None)

    @property
    def num_injected(self) -> int:
        """Tokens of all draws that nobody has sampled: put in by thinking control, or by the strategy."""
        pieces = [piece for group in self._drawn.values() for piece in group]
        inside = sum(end - start for piece in pieces for start, end in piece.completion.injected)
        return inside + sum(self._num_words(piece, pieces) for piece in pieces if piece.prompt.generated_ids)

    def _num_words(self, piece: DrawnPiece, pieces: Sequence[DrawnPiece]) -> int:
        """Ids before a piece that stand in none of `pieces`; a probe goes on from a draw beside it."""
        ids, before = piece.prompt.generated_ids, self._before(piece)
        if before is not None:
            return len(ids) - len(before.ids)
        return len(ids) - max((len(one.ids) for one in pieces if ids[: len(one.ids)] == one.ids), default=0)


def _root(prompt: Prompt) -> tuple[int, ...]:
    """The ids of a prompt without what was drawn."""
    return (prompt.token_ids or ())[: prompt.rendered_len]


@dataclass(frozen=True, slots=True)
class DrawnPiece:
    """What one request to the session has drawn, and from where."""

    prompt: Prompt
    completion: Completion

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids after the root, without the end of the text."""
        kept = len(self.completion.token_ids) - self.completion.num_eos
        return self.prompt.generated_ids + self.completion.token_ids[:kept]


def raw_prompt(engine: Engine, raw: str | tuple[int, ...]) -> Prompt:
    """A prompt without a chat template, a text or its ids: nothing is added."""
    text, ids = (raw, engine.encode(raw)) if isinstance(raw, str) else (engine.decode(raw), raw)
    messages = (Message("user", text),)
    return Prompt(text=text, token_ids=ids, rendered_len=len(ids), rendered_chars=len(text), messages=messages)


class RequestEngine(Wrapped):
    """`engine` for one choice of one request."""

    def __init__(self, engine: Engine, gate: FairGate, share: FairShare, deltas: Deltas | None) -> None:
        """`deltas` shows the one draw of a choice; None where many draws run at once."""
        super().__init__(engine)
        self._gate, self._share, self._deltas = gate, share, deltas
        self.cached: dict[tuple[int, ...], int] = {}
        """Of each root, by its ids: how much of it was in the cache when it was first drawn from."""
        self.tops: dict[int, Top] = {}
        """The likeliest tokens at each position of the sequence, prompt included; for choices of one draw."""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Run each draw in a slot of this request's share."""
        return await gather(self._draw(prompt, sampling, draw, on_usage) for draw in draws)

    async def _draw(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        async with self._gate.slot(self._share):
            completion = await self._run(prompt, sampling, draw, on_usage)
        if not prompt.generated_text and prompt.token_ids is not None:
            before = self.cached.get(prompt.token_ids, completion.usage.cached)
            self.cached[prompt.token_ids] = min(before, completion.usage.cached)
        if isinstance(completion, ExtraCompletion):
            self.tops.update(enumerate(completion.top_logprobs, len(prompt.token_ids or ())))
        return completion

    async def _run(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        if self._deltas is not None:
            return await draw_shown(self._engine, prompt, sampling, draw, on_usage, self._deltas)
        (completion,) = await self._engine.generate(prompt, sampling, range(draw, draw + 1), on_usage)
        return completion


State: TypeAlias = Literal["live", "pruned", "finished", "cut", "chosen"]
PREVIEW = 200


@dataclass(slots=True)
class _Node:
    path: Path
    tokens: int = 0
    thinking: bool = False
    text: str = ""
    score: float | None = None
    state: State = "live"

    def to_json(self) -> dict[str, Any]:
        return {
            "path": list(self.path),
            "parent": list(self.path[:-1]),
            "score": self.score,
            "tokens": self.tokens,
            "thinking": self.thinking,
            "text": self.text if len(self.text) <= PREVIEW else self.text[: PREVIEW - 1] + "…",
            "state": self.state,
        }


class Board:
    """Collects the events of one search and reports its progress from time to time."""

    def __init__(
        self, level: ProgressLevel, tell: Callable[[dict[str, Any]], None], interval_s: float, *, show: bool
    ) -> None:
        """`tell` is given the `ttc` object of a progress message; never at level off. `show` tells thought too."""
        self._level, self._tell, self._interval_s, self._show = level, tell, interval_s, show
        self._nodes: dict[Path, _Node] = {}
        self._changed: dict[Path, _Node] = {}
        self._started = time.monotonic()
        self._told = self._started - interval_s
        self._tokens = 0

    def take(self, event: Event) -> None:
        """Record an event; report when the interval has passed."""
        if self._level == "off":
            return
        self._note(event)
        now = time.monotonic()
        if self._changed and now - self._told >= self._interval_s:
            self._report(now)

    def finish(self, answer: Answer) -> None:
        """Record how each candidate ended, and report what was not reported yet."""
        if self._level == "off":
            return
        for candidate in answer.candidates:
            node = self._nodes.get(candidate.path)
            if node is not None and node.state == "live":
                node.state = "cut" if candidate.finish_reason == "length" else "finished"
                self._changed[node.path] = node
        if self._changed:
            self._report(time.monotonic())

    def _note(self, event: Event) -> None:
        node = self._nodes.setdefault(event.path, _Node(event.path))
        self._changed[event.path] = node
        match event.kind:
            case "generate":
                node.tokens, node.thinking = int(event.data["num_tokens"]), bool(event.data["thinking"])
                hidden = not self._show and (node.thinking or event.data["injected"])
                node.text = "" if hidden else str(event.data["text"])
                self._tokens += node.tokens
                if event.data["stop_reason"] == "eos":
                    node.state = "finished"
            case "score":
                node.score = event.data["value"]
            case "prune":
                node.state = "pruned"
            case "select":
                node.state = "chosen"

    def _report(self, now: float) -> None:
        states = [node.state for node in self._nodes.values()]
        scores = [node.score for node in self._nodes.values() if node.score is not None]
        parents = {node.path[:-1] for node in self._nodes.values()}
        leaves = sum(node.state == "live" and node.path not in parents for node in self._nodes.values())
        message: dict[str, Any] = {
            "type": "progress",
            "elapsed_ms": round(1000 * (now - self._started)),
            "nodes_total": len(states),
            "live": leaves,
            "pruned": states.count("pruned"),
            "finished": states.count("finished") + states.count("cut") + states.count("chosen"),
            "best_score": max(scores, default=None),
            "tokens": self._tokens,
        }
        if self._level == "full":
            message["nodes"] = [node.to_json() for _, node in sorted(self._changed.items())]
        self._changed, self._told = {}, now
        self._tell(message)
