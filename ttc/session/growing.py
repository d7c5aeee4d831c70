"""A draw that grows piece by piece, so that a strategy can inspect and stop it before it ends.

A piece continues the same draw: its seed, path and token positions are those of the uninterrupted run, so its tokens
are too. A draw that is not grown further is really cancelled: nothing more of it is decoded. Every piece is one more
request, over a cached context where the engine caches. Needs an engine that takes token ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttc.concurrent import gather
from ttc.core import Candidate, FinishReason, Prompt, Sampling
from ttc.errors import ConfigError
from ttc.session.meter import Cost
from ttc.session.session import Session
from ttc.session.thinking import Thinking


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw `number` of the prompt it began with; `prompt` holds what it has so far.

    `ended` says that it cannot grow: finished, or cut by its own length, the thinking control or the budget.
    """

    prompt: Prompt
    number: int
    num_sampled: int = 0
    ended: bool = False
    finish_reason: FinishReason = "length"
    thinking: Thinking | None = None

    @property
    def finished(self) -> bool:
        """Whether it ended by itself."""
        return self.ended and self.finish_reason == "stop"

    @property
    def whole(self) -> Prompt:
        """What it has so far, at its own path."""
        return replace(self.prompt, path=(*self.prompt.path, self.number))

    def candidate(self, session: Session, score: float | None = None) -> Candidate:
        """Close it; one that did not finish has no final answer."""
        return session.candidate_at(self.whole, self.finish_reason, score, self.num_sampled)


async def grow(session: Session, draw: Draw, num_tokens: int, stop: tuple[str, ...] = ()) -> Draw:
    """Sample up to `num_tokens` more of `draw`, or up to a `stop` string; it ends with the budget and the context."""
    goal = draw.num_sampled + num_tokens
    while True:
        rests = _rests(draw.prompt, session.sampling)
        draw, is_rest = await _piece(session, draw, goal - draw.num_sampled, stop, rests)
        if not is_rest or draw.ended or draw.num_sampled >= goal:
            return draw


async def _piece(
    session: Session, draw: Draw, num_tokens: int, stop: tuple[str, ...], rests: tuple[str, ...]
) -> tuple[Draw, bool]:
    """One request of `grow`, and whether it was ended by one of `rests` that completes no stop string."""
    sampling, room = session.sampling, room_after(session, draw.prompt)
    if room < 1:
        return replace(draw, ended=True), False
    piece = min(num_tokens, sampling.max_tokens - draw.num_sampled, room)
    request = replace(sampling, max_tokens=piece, stop=(*sampling.stop, *stop, *rests))
    numbers = range(draw.number, draw.number + 1)
    parts = await session.generate(draw.prompt, numbers, sampling=request, thinking=draw.thinking, least=0)
    if not parts:
        return replace(draw, ended=True), False
    (part,) = parts
    prompt = replace(draw.prompt.then(part), path=draw.prompt.path)
    num_sampled = draw.num_sampled + part.usage.generated
    stopped, is_rest = part.finish_reason == "stop", part.stop_reason in rests
    own = part.stop_reason in sampling.stop or (is_rest and _is_stopped(session, prompt))
    paused = stopped and not own and (is_rest or part.stop_reason in stop)
    out_of_room = not stopped and (part.usage.generated < piece or num_sampled >= sampling.max_tokens)
    full = paused and num_sampled >= sampling.max_tokens
    grown = replace(
        draw,
        prompt=prompt,
        num_sampled=num_sampled,
        ended=out_of_room or full or (stopped and not paused),
        finish_reason="stop" if stopped and not paused else "length",
    )
    return grown, paused and part.stop_reason not in stop


def _rests(prompt: Prompt, sampling: Sampling) -> tuple[str, ...]:
    """The strings that would complete a stop string already begun: engines miss one that begins in the prompt."""
    if not sampling.stop:
        return ()
    text = prompt.generated_text
    sizes = ((stop, size) for stop in sampling.stop for size in range(1, len(stop)))
    return tuple(stop[size:] for stop, size in sizes if text.endswith(stop[:size]))


def _is_stopped(session: Session, prompt: Prompt) -> bool:
    """Whether the answer contains a stop string, apart from the white space that follows a thought."""
    parts = session.split(prompt)
    answer = parts.answer.lstrip() if parts.thinking or prompt.think_state == "open" else parts.answer
    return any(stop in answer for stop in session.sampling.stop)


def room_after(session: Session, prompt: Prompt) -> int:
    """Tokens that context and session leave after what was drawn; the engine refuses a prompt that leaves none."""
    ids, most = prompt.token_ids or (), session.room(prompt)
    room = session.capabilities.max_context - len(ids) if prompt.generated_ids else session.sampling.max_tokens
    return room if most is None else min(room, most)


async def grow_all(session: Session, draws: Sequence[Draw], num_tokens: int) -> list[Draw]:
    """Grow every draw that has not ended, all at once; the order is kept."""
    pieces = iter(await gather(grow(session, draw, num_tokens) for draw in draws if not draw.ended))
    return [draw if draw.ended else next(pieces) for draw in draws]


async def begin(session: Session, prompt: Prompt, n: int, num_tokens: int) -> list[Draw]:
    """Return the draws to grow by `num_tokens` at a time: n, or as many as the budget can finish.

    If a budget may end before n draws do, the first is finished at once, which gives an answer and shows what a draw
    costs; then only as many others are begun as the rest pays for.
    """
    draws = [Draw(prompt, number) for number in range(n)]
    longest = session.sampling.max_tokens
    timed = session.seconds_left < math.inf  # the length of a draw is not known yet
    if not timed and session.pays_for(_cost(session, prompt, longest, num_tokens)) >= n:
        return draws
    session.narrow()
    first = await grow(session, draws[0], longest)
    others = session.pays_for(_cost(session, prompt, max(first.num_sampled, 1), num_tokens))
    return [first, *draws[1 : 1 + int(min(others, n - 1))]]


def _cost(session: Session, prompt: Prompt, num_tokens: int, piece: int) -> Cost:
    """The cost of a draw of this many tokens that grows by `piece` at a time over a cached context."""
    length = len(prompt.token_ids or ()) + num_tokens
    calls = session.thinking.calls_each * -(-num_tokens // piece)
    return Cost(num_tokens, calls, session.capabilities.flops(length, 0))


def check_pieces(name: str, session: Session, chunk: int) -> None:
    """Refuse an engine that cannot continue a draw, and a piece without a token."""
    if chunk < 1:
        raise ConfigError(f"{name}: chunk must be >= 1, got {chunk}")
    if not session.capabilities.token_ids:
        raise ConfigError(f"{name} continues draws by their token ids, {session.without_ids}")
