"""Tools: let the model call a calculator, run Python or search files while it answers, and vote over n episodes.

Yao et al. 2023, "ReAct"; Gou et al. 2024, "ToRA". The loop is `ttc.agents.episode`, the tools are `ttc/tools/`. Cost: n
completions, and per call one more request over a cached context; what tools return is charged as prompt. Needs an
engine that takes token ids. A tool sees the problem but never its target. Left out: calls that run at
the same time.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ttc.agents.episode import EpisodeLimits, run_episode
from ttc.agents.markup import MarkupName, markup_for
from ttc.agents.tool import Kit
from ttc.choosing.selection import fallback, vote
from ttc.concurrent import gather
from ttc.config.signatures import drawing
from ttc.core import Answer, Candidate, Problem
from ttc.session.growing import Draw, check_pieces
from ttc.session.session import Session, check_n


@drawing(adds=lambda n, max_calls, max_result: n * max_calls * max_result)
async def tools(
    problem: Problem,
    session: Session,
    *,
    tools: tuple[str, ...] = ("calculator",),
    n: int = 1,
    markup: MarkupName = "auto",
    instruct: bool = True,
    max_calls: int = 8,
    max_result: int = 2000,
    tool_s: float = 10.0,
) -> Answer:
    """Return the majority answer of n episodes with tools.

    Args:
        problem: the question.
        session: the metered engine.
        tools: which, NAME or NAME:KEY=VALUE each; several with --set tools.tools=calculator,python.
        n: episodes.
        markup: how calls are written: template, as the model's own chat template has them; tags or hermes, as the model
            is told; auto, template if that shows functions and its calls can be read, else tags.
        instruct: tell the model what it can call; a model trained on the markup does not need it.
        max_calls: most calls of an episode; one more ends it as cut.
        max_result: most characters of a result.
        tool_s: most seconds of a call; python has its own limit, timeout_s.

    Raises:
        ConfigError: an unknown tool, a limit out of range, or an engine without token ids.
    """
    check_n("tools", n, session.sampling)
    check_pieces("tools", session, 1)
    limits = EpisodeLimits(max_calls, max_result, tool_s)
    kit = session.shared(Kit(tools))
    writing = markup_for(session, list(kit.values()), markup)
    root = writing.ask(session, instruct=instruct)
    play = functools.partial(run_episode, tools=kit, markup=writing, limits=limits)
    # Under a budget one after another: in parallel, all might be cut though the first could have been finished.
    if session.limited:
        played = [await play(session, Draw(root, draw)) for draw in range(n)]
    else:
        played = await gather(play(session, Draw(root, draw)) for draw in range(n))
    candidates = [_read(session, candidate) for candidate in played]
    return session.answer(vote(candidates, session.key) or fallback(candidates), candidates)


def _read(session: Session, candidate: Candidate) -> Candidate:
    """The candidate with the final answer of its last words; a cut one has none."""
    if candidate.finish_reason != "stop":
        return candidate
    return replace(candidate, final=session.extract(candidate.text))
