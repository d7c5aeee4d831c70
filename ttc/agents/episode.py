"""One episode: observe, think, act, until the model answers or a limit ends it.

Yao et al. 2023, "ReAct"; ToRA and ReTool do the same within one reasoning trace. A turn is sampled up to the end of a
call; the call is run; its result is appended as ids; the same draw continues. So an episode is one draw with injected
spans: its randomness is keyed by token position as in any draw, the budget and the thinking control apply to all of its
turns together, and training masks what was not sampled. Cost: one request per turn, over a cached context.

A failure of a tool (a wrong call, an exception, no result in time) is an observation that begins with `error:`. More
calls than `max_calls`, or no room for another turn, end the episode as cut, which is not finished. Several calls of one
turn run one after another. Left out: calls that run at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ttc.agents.markup import Call, Markup
from ttc.agents.tool import Tool, ToolFailure, Use, seconds_of
from ttc.core import Candidate, Prompt, ThinkState
from ttc.errors import ConfigError
from ttc.session.growing import Draw, grow
from ttc.session.session import Session


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What one episode may use: calls, characters of one result, seconds of one call (`ttc.agents.tool.seconds_of`).

    The tokens that the model samples in all turns together are `Sampling.max_tokens`.
    """

    max_calls: int = 8
    max_result: int = 2000
    tool_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse limits under which no call can be made."""
        if self.max_calls < 1 or self.max_result < 1 or not self.tool_s > 0:
            raise ConfigError(
                "tools: max_calls and max_result must be at least 1 and tool_s above 0, "
                f"got {self.max_calls}, {self.max_result} and {self.tool_s}"
            )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What came back from a call."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class _Started:
    """A tool of one episode, and the most seconds of a call (None: it limits itself)."""

    use: Use
    within_s: float | None


async def run_episode(
    session: Session, draw: Draw, tools: Mapping[str, Tool], markup: Markup, limits: EpisodeLimits
) -> Candidate:
    """Play `draw` to its end; the candidate's text is what the model said after the last result."""
    uses = {
        name: _Started(tool.start(session.problem), seconds_of(tool, limits.tool_s)) for name, tool in tools.items()
    }
    before, num_calls = draw.prompt, 0
    while True:
        draw = await _turn(session, draw, markup)
        if draw.ended and (markup.stops or not draw.finished):
            break
        calls = _read(session, draw.prompt.text[len(before.text) :], markup)
        if not calls:
            break
        if num_calls + len(calls) > limits.max_calls:
            draw = replace(draw, finish_reason="length")
            break
        results = [await _observed(session, draw, call, uses, limits) for call in calls]
        before = draw.prompt.extend(*markup.write(session, results))
        draw = replace(draw, prompt=before, ended=False, finish_reason="length")
        num_calls += len(calls)
    candidate = draw.candidate(session)
    return replace(candidate, text=_said_last(session, draw.prompt, before)) if num_calls else candidate


def _read(session: Session, turn: str, markup: Markup) -> Sequence[Call | ToolFailure]:
    """The calls at the end of `turn`, or the reason why the one there is invalid."""
    try:
        return markup.read(session, turn)
    except ToolFailure as failure:
        return (failure,)


async def _observed(
    session: Session, draw: Draw, call: Call | ToolFailure, uses: Mapping[str, _Started], limits: EpisodeLimits
) -> str:
    """Run a call, and note it in the trace; any failure becomes text for the model."""
    began = time.perf_counter()
    observation = await _act(call, uses, limits)
    seconds = time.perf_counter() - began
    session.note("tool", draw.whole.path, result=observation.text, failed=observation.failed, seconds=seconds)
    return observation.text


async def _turn(session: Session, draw: Draw, markup: Markup) -> Draw:
    """Sample up to a call, the end, or the limit of tokens."""
    ids = draw.prompt.token_ids or ()
    room = min(session.capabilities.max_context - len(ids), session.sampling.max_tokens - draw.num_sampled)
    if room < 1:
        return replace(draw, ended=True, finish_reason="length")
    turn = await grow(session, draw, room, markup.stops)
    full = turn.num_sampled - draw.num_sampled >= room
    return replace(turn, ended=True) if full and not turn.ended else turn


async def _act(call: Call | ToolFailure, uses: Mapping[str, _Started], limits: EpisodeLimits) -> _Seen:
    try:
        if isinstance(call, ToolFailure):
            raise call
        if call.tool not in uses:
            raise ToolFailure(f"no tool {call.tool!r}; there is {', '.join(uses)}")
        return _Seen(_cut(await _used(uses[call.tool], call), limits), False)
    except ToolFailure as failure:
        return _Seen(_cut(f"error: {failure}", limits), True)
    except (Exception, SystemExit, asyncio.CancelledError) as exc:  # a bug in a tool is one failed call of one episode
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise  # it is the episode that is cancelled, and not something within the tool
        return _Seen(_cut(f"error: {type(exc).__name__}: {exc}", limits), True)


async def _used(tool: _Started, call: Call) -> str:
    """What the tool returns; raises ToolFailure if that is no text or too late."""
    try:
        async with asyncio.timeout(tool.within_s) as limit:
            result: object = tool.use(call.argument)
            result = await result if inspect.isawaitable(result) else result
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise ToolFailure(f"no result after {tool.within_s:g} s") from exc
    if not isinstance(result, str):
        raise ToolFailure(f"{call.tool} returned no text but {type(result).__name__}")
    return result


def _cut(text: str, limits: EpisodeLimits) -> str:
    """`text` as the model may read it: cut to its limit, with question marks for invalid characters."""
    return text[: limits.max_result].encode("utf-8", "replace").decode()


def _said_last(session: Session, whole: Prompt, before: Prompt) -> str:
    """What `whole` adds to `before` without its thoughts, of which each turn may have some."""
    state: ThinkState = "open" if session.split(before).inside else "none"
    length, chars = len(before.token_ids or ()), len(before.text)
    return session.split(replace(whole, rendered_len=length, rendered_chars=chars, think_state=state)).answer
