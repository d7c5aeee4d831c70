"""Early exit: probe the growing trace for its answer, and stop when the answer is confident or stable.

Rule `confidence`: Yang et al. 2025, "Dynamic Early Exit in Reasoning Models" (DEER, arXiv 2504.15895): the geometric
mean probability of the probed answer reaches `threshold`. Rule `stable`: Fu et al. 2024, "Efficiently Scaling LLM
Reasoning with Certaindex" (Dynasor, arXiv 2412.20993): the last `repeats` probes gave one answer. A probe ends the
thinking by the hand-over, begins the answer and reads what the model would say. It is greedy, at most `probe_tokens`
long, and not part of the trace. After an exit the model answers after the same words. Cost: the trace up to the exit,
one probe every `chunk` tokens, the answer; injected words are charged as prompt. When the budget ends first, the last
probe's answer stands. Small and over-confident models lose accuracy: compare with `direct`. Left out: probing only at
words such as "Wait", which needs a model that says them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.config.signatures import reads_logprobs
from ttc.config.values import above, at_least, at_most
from ttc.core import Answer, Candidate, Problem, Prompt
from ttc.errors import ConfigError
from ttc.session.growing import Draw, check_pieces, grow, room_after
from ttc.session.meter import Cost
from ttc.session.session import Session
from ttc.session.thinking import handover_of, split_prompt
from ttc.strategies.adaptive import unanimous

Rule: TypeAlias = Literal["confidence", "stable"]


@reads_logprobs
async def early_exit(
    problem: Problem,
    session: Session,
    *,
    rule: Rule = "stable",
    threshold: float = 0.95,
    repeats: int = 3,
    chunk: int = 64,
    probe: str = "The answer is \\boxed{",
    probe_tokens: int = 32,
) -> Answer:
    """Return one completion that was ended as soon as its answer was clear.

    Args:
        problem: the question.
        session: the metered engine.
        rule: confidence looks at one probe's probability, stable at the agreement of several.
        threshold: geometric mean probability at which confidence exits.
        repeats: equal answers in a row at which stable exits.
        chunk: tokens between two probes.
        probe: words that begin the answer.
        probe_tokens: most tokens of a probe; one that does not end within them has no answer.

    Raises:
        ConfigError: a parameter outside its range, an engine without token ids, or, for confidence, without
            log-probabilities.
    """
    check_pieces("early_exit", session, chunk)
    at_least("early_exit", 1, repeats=repeats, probe_tokens=probe_tokens)
    above("early_exit", 0, threshold=threshold)
    at_most("early_exit", 1, threshold=threshold)
    _check_probe(session, rule, probe)
    draw, probes, stop_cause = Draw(session.render(), 0), list[_Probe](), "done"
    while not (draw := await grow(session, draw, _piece(session, draw.prompt, chunk, probe_tokens))).ended:
        closing = _closing(session, draw.prompt)
        if closing is None:  # the answer has begun by itself
            draw = await grow(session, draw, session.sampling.max_tokens)
            break
        latest = await _ask(session, draw.prompt, closing, probe, probe_tokens, len(probes))
        if latest is None:  # the rest leaves no room for an answer after the probe's words
            draw = await grow(session, draw, session.sampling.max_tokens)
            break
        probes.append(latest)
        if _DECIDED[rule](probes, threshold, repeats):
            words = closing if closing != _PLAIN else closing + probe
            prompt = draw.prompt.extend(session.encode(words), words)
            draw, stop_cause = await grow(session, replace(draw, prompt=prompt), session.sampling.max_tokens), rule
            break
    candidate = draw.candidate(session)
    if session.limited and candidate.final is None:  # a budget may leave one probe, but no room for another piece
        closing = _closing(session, draw.prompt)
        if closing is not None:
            last = await _ask(session, draw.prompt, closing, probe, probe_tokens, len(probes))
            probes += [] if last is None else [last]
    candidates = [candidate, *(p.candidate for p in probes[-1:] if candidate.final is None)]
    return session.answer(candidates[-1] if candidates[-1].final is not None else candidate, candidates, stop_cause)


def _check_probe(session: Session, rule: Rule, probe: str) -> None:
    if not probe:
        raise ConfigError("early_exit: probe must not be empty: its words begin the answer")
    if rule == "confidence" and not session.capabilities.logprobs:
        raise ConfigError(f"early_exit: {session.capabilities.model} reports no log-probabilities; set rule=stable")


_PLAIN = "\n\n"
"""Before the probe of a model that does not think in a block."""


@dataclass(frozen=True, slots=True)
class _Probe:
    """What the model would answer now: the closed path, the answer's class, and its mean probability."""

    candidate: Candidate
    key: str | None
    confidence: float


_DECIDED: Mapping[Rule, Callable[[Sequence[_Probe], float, int], bool]] = MappingProxyType(
    {
        "confidence": lambda probes, threshold, _: probes[-1].key is not None and probes[-1].confidence >= threshold,
        "stable": lambda probes, _, repeats: unanimous([probe.key for probe in probes], repeats),
    }
)


def _closing(session: Session, prompt: Prompt) -> str | None:
    """Words that end the thinking and begin an answer; None if the answer has begun already."""
    state = split_prompt(prompt, session.capabilities)
    if state.inside:
        return handover_of(session.thinking, session.capabilities)
    return None if state.thinking or prompt.think_state == "open" else _PLAIN


def _piece(session: Session, prompt: Prompt, chunk: int, probe_tokens: int) -> int:
    """Tokens until the next probe; all of them if the budget may not cover a piece, its probe and the answer."""
    longest = session.sampling.max_tokens
    whole = session.capabilities.flops(len(prompt.token_ids or ()) + longest, 0)
    if session.pays_for(Cost(4 * probe_tokens, 2 * session.thinking.calls_each + 1, 3 * whole)) >= 1:
        return chunk
    session.narrow()
    return longest


async def _ask(
    session: Session, prompt: Prompt, closing: str, probe: str, probe_tokens: int, number: int
) -> _Probe | None:
    """Read the answer that the trace would give now, as draw `number` + 1 beside it; None if no tokens are left."""
    words = closing + probe
    question = prompt.extend(session.encode(words), words)
    room = room_after(session, question)
    if room < 1:
        return None
    sampling = replace(session.sampling, temperature=0.0, max_tokens=min(probe_tokens, room), stop=("\n",))
    completions = await session.generate(
        question, range(number + 1, number + 2), sampling=sampling, piece=True, least=0
    )
    if not completions:
        return None
    (completion,) = completions
    logprobs = [value for value in completion.logprobs or () if value is not None]
    candidate = session.candidate_at(
        question.then(completion), completion.finish_reason, None, completion.usage.generated
    )
    key = None if candidate.final is None else session.key(candidate.final)
    return _Probe(candidate, key, math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else 0.0)
