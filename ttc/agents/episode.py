"""One episode: observe, think, act, until the model answers or a limit ends it.

Yao et al. 2023, "ReAct"; ToRA and ReTool do the same within one reasoning trace. A turn is sampled up to the end of a
call; the call is run; what it returned is appended as ids; the same draw goes on. So an episode is one draw with
injected spans: its randomness is keyed by token position as in any draw, the budget and the thinking control hold over
all of its turns, and training masks what it did not sample. Cost: one request per turn, over a cached context.

A failure of a tool (a wrong call, an exception, no result in time) is an observation that begins with `error:`. More
calls than `max_calls`, or no room for another turn, end the episode as cut, which is not finished. Left out: calls
that run side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ttc.agents.markup import Markup
from ttc.agents.tool import Tool, ToolFailure, Use
from ttc.core import Candidate
from ttc.errors import ConfigError
from ttc.session.growing import Draw, grow
from ttc.session.session import Session


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What one episode may use: calls, characters of one result, seconds of one call.

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


async def run_episode(
    session: Session, draw: Draw, tools: Mapping[str, Tool], markup: Markup, limits: EpisodeLimits
) -> Candidate:
    """Play `draw` to its end; the candidate's text is what the model said after the last result."""
    uses = {name: tool.start(session.problem) for name, tool in tools.items()}
    num_results = 0
    start = len(draw.prompt.text)
    for number in range(limits.max_calls + 1):
        draw = await _turn(session, draw, markup)
        if draw.ended or number == limits.max_calls:
            break
        began = time.perf_counter()
        observation = await _act(draw.prompt.text[start:], uses, markup, limits)
        session.note(
            "tool",
            draw.whole.path,
            result=observation.text,
            failed=observation.failed,
            seconds=time.perf_counter() - began,
        )
        text = markup.write(observation.text)
        draw = replace(draw, prompt=draw.prompt.extend(session.encode(text), text))
        start, num_results = len(draw.prompt.text), num_results + 1
    candidate = draw.candidate(session)
    return _answered(candidate, markup, num_results)


async def _turn(session: Session, draw: Draw, markup: Markup) -> Draw:
    """Sample up to a call, the end, or the end of the room there is."""
    ids = draw.prompt.token_ids or ()
    room = min(session.capabilities.max_context - len(ids), session.sampling.max_tokens - draw.num_sampled)
    if room < 1:
        return replace(draw, ended=True, finish_reason="length")
    turn = await grow(session, draw, room, markup.stops)
    full = turn.num_sampled - draw.num_sampled >= room
    return replace(turn, ended=True) if full and not turn.ended else turn


async def _act(turn: str, uses: Mapping[str, Use], markup: Markup, limits: EpisodeLimits) -> _Seen:
    """Run the call at the end of `turn`; whatever goes wrong is for the model to read."""
    try:
        call = markup.read(turn)
        if call.tool not in uses:
            raise ToolFailure(f"no tool {call.tool!r}; there is {', '.join(uses)}")
        async with asyncio.timeout(limits.tool_s):
            result = await uses[call.tool](call.argument)
    except ToolFailure as failure:
        return _Seen(f"error: {failure}"[: limits.max_result], True)
    except TimeoutError:
        return _Seen(f"error: no result after {limits.tool_s:g} s", True)
    except Exception as exc:  # a tool is foreign code: its bug is one failed call of one episode
        return _Seen(f"error: {type(exc).__name__}: {exc}"[: limits.max_result], True)
    return _Seen(result[: limits.max_result], False)


def _answered(candidate: Candidate, markup: Markup, shown: int) -> Candidate:
    """The candidate with only what was said after the last result as its text; thinking is left as it is."""
    if not shown:
        return candidate
    mark = markup.write("\0").partition("\0")[2]
    _, _, last = candidate.text.rpartition(mark)
    return replace(candidate, text=last)
