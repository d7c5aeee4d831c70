"""Think blocks and their control: on / off / auto, a maximum and a minimum of thinking tokens, exact on token ids.

Muennighoff et al. 2025, "s1: Simple test-time scaling" (cap and "Wait"); Qwen3 technical report 2025 (hand-over).

It stands between a session and an engine, so it composes with every strategy and works on every engine that takes token
ids, by stop-and-continue: generate up to the cap, inject the hand-over, continue the same draw. A natural end of
thinking at or below the cap is untouched: the tokens equal those of the uncapped run. Cost: one extra request per cut
or suppressed end, whose context is cached; one token beyond the cap is sampled to see whether it was the end (charged
as `overrun`); injected tokens are charged as prompt, not as generated.

Without ids (chat-only endpoints) thinking is separated from the answer by its markers in the text; budgets are refused.
An engine that has proven its own cap exact (`thinking_cap` in its extras) is asked to hold it if the hand-over is the
bare marker, which is all that engines can force; the result is still counted here, and cut if it is too long. A thought
that such a cap ends, or that ends by itself at its last token, counts as cut.

Markers are matched only in generated text, so a marker in a user's words is inert. A single token is matched by id. A
marker of several tokens is matched as text (`ttc.core.TextMarker`), since a model merges its ends with neighbouring
text: the tokens that spell it belong to neither side, and are not counted as thinking. If a draw grows in pieces, a
piece may end within such a marker: its part of the marker stays in the thought if that continues.

A caller's stop strings and grammar apply to the answer: a thought is drawn without them, and so is the white space
between it and the answer's first word. Cost: one more request for a draw that thinks under either. Under a grammar, a
turn that ends within its thought goes on with its answer: a model that calls from its thought calls once more, held.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from ttc.core import (
    MAX_TOKENS,
    Capabilities,
    Completion,
    Enforced,
    Engine,
    ExtraSampling,
    Logprobs,
    Prompt,
    Sampling,
    TextMarker,
    Usage,
    UsageSink,
    extras_of,
    join_logprobs,
)
from ttc.errors import ConfigError

Piece = TypeVar("Piece")
Ids: TypeAlias = tuple[int, ...]
Generate: TypeAlias = Callable[[Prompt, Sampling, range, UsageSink], Awaitable[list[Completion]]]
"""`Engine.generate` of one engine."""

OPEN, CLOSE = "<think>", "</think>"
"""The markers as text; engines with ids know them by their ids."""


@dataclass(frozen=True, slots=True)
class Split(Generic[Piece]):
    """Generated ids, or a text, split at the markers, which are left out."""

    thinking: Piece
    answer: Piece
    inside: bool
    """Whether it ends inside an open think block."""


def split(ids: Sequence[int], starts_inside: bool, capabilities: Capabilities) -> Split[Ids]:
    """Separate thinking from answer on ids; `starts_inside` when the rendered prompt left the block open.

    Several blocks are joined; text outside a block belongs to the answer. A marker is matched as a whole id sequence.
    """
    runs, inside = _runs(tuple(ids), starts_inside, capabilities)
    thinking = chain.from_iterable(ids[start:end] for start, end, within in runs if within)
    answer = chain.from_iterable(ids[start:end] for start, end, within in runs if not within)
    return Split(tuple(thinking), tuple(answer), inside)


def split_text(text: str, starts_inside: bool) -> Split[str]:
    """Separate thinking from answer on generated text, for engines without ids.

    An end marker before any opening one closes a block that the prompt had opened, even if that was not known.
    """
    first, closing = text.find(OPEN), text.find(CLOSE)
    return cut_text(text, starts_inside or (closing >= 0 and not 0 <= first < closing), (OPEN,), (CLOSE,))


def cut_text(text: str, inside: bool, openings: Sequence[str], closings: Sequence[str]) -> Split[str]:
    """Separate thinking from answer at these markers; `inside` is whether the text begins in a thought."""
    thinking: list[str] = []
    answer: list[str] = []
    while True:
        places = [(at, marker) for marker in (closings if inside else openings) if (at := text.find(marker)) >= 0]
        end, marker = min(places, default=(len(text), ""))
        (thinking if inside else answer).append(text[:end])
        if not marker:
            return Split("".join(thinking), "".join(answer), inside)
        text, inside = text[end + len(marker) :], not inside


def _runs(
    ids: tuple[int, ...], starts_inside: bool, capabilities: Capabilities
) -> tuple[list[tuple[int, int, bool]], bool]:
    """Half-open runs of ids between markers, each inside or outside the block; and whether the end is inside."""
    runs: list[tuple[int, int, bool]] = []
    inside, start = starts_inside, 0
    while True:
        span = find_marker(ids, capabilities, inside, start)
        end = len(ids) if span is None else span[0]
        if end > start:
            runs.append((start, end, inside))
        if span is None:
            return runs, inside
        start, inside = span[1], not inside


def find_marker(ids: Ids, capabilities: Capabilities, inside: bool, start: int = 0) -> tuple[int, int] | None:
    """The first marker at or after `start` that ends a thought (`inside`) or opens one, as a half-open span of ids.

    A turn's end ends its thought, too: a model may call a function from within one, and its result follows.
    """
    span = _spelled_marker(ids, capabilities, inside, start)
    for token in capabilities.eos_ids if inside else ():
        limit = len(ids) if span is None else span[0]
        if token in ids[start:limit]:
            at = ids.index(token, start)
            span = at, at + 1
    return span


def _spelled_marker(ids: Ids, capabilities: Capabilities, inside: bool, start: int) -> tuple[int, int] | None:
    if capabilities.think_texts is not None:
        return capabilities.think_texts[inside].find(ids, start)
    marker = capabilities.think_close if inside else capabilities.think_open
    while marker:
        try:
            at = ids.index(marker[0], start)
        except ValueError:
            return None
        if ids[at : at + len(marker)] == marker:
            return at, at + len(marker)
        start = at + 1
    return None


def count_sampled_thinking(prompt: Prompt, completions: Sequence[Completion], capabilities: Capabilities) -> list[int]:
    """Number of sampled ids of each completion (draws of `prompt`) that lie inside the think block.

    A piece that completes a marker of several tokens subtracts its tokens that were counted with the piece before.
    """
    marks = {*capabilities.think_open, *capabilities.think_close}
    opened, before = prompt.think_state == "open", len(prompt.generated_ids)
    begun, inside = _runs(prompt.generated_ids, opened, capabilities)
    counts: list[int] = []
    for completion in completions:
        if not completion.token_ids:  # an engine without ids charges what its server counted
            counts.append(0)
            continue
        num_ids = len(completion.token_ids) - completion.num_eos
        if capabilities.think_texts is None and marks.isdisjoint(completion.token_ids):
            # Without any marker id, a draw stays on the side where the prompt ends.
            counts.append((num_ids - sum(end - start for start, end in completion.injected)) if inside else 0)
            continue
        runs, _ = _runs(prompt.generated_ids + completion.token_ids[:num_ids], opened, capabilities)
        injected = sum(_thought(runs, before + start, before + end) for start, end in completion.injected)
        counts.append(_thought(runs) - _thought(begun) - injected)
    return counts


def _thought(runs: Sequence[tuple[int, int, bool]], low: int = 0, high: int = sys.maxsize) -> int:
    """How many ids between two places of the runs lie inside the block."""
    return sum(max(0, min(end, high) - max(start, low)) for start, end, within in runs if within)


def split_prompt(prompt: Prompt, capabilities: Capabilities) -> Split[Ids]:
    """`split` of everything generated after the rendered part of `prompt`."""
    return split(prompt.generated_ids, prompt.think_state == "open", capabilities)


def split_whole(whole: Prompt, engine: Engine) -> Split[str]:
    """What was generated after the rendered part of `whole`, as text, split at the markers of the engine's model."""
    opened = whole.think_state == "open"
    if whole.token_ids is None:
        return split_text(whole.generated_text, opened)
    texts = engine.capabilities.think_texts
    if texts is not None:
        return _split_turns(whole.generated_ids, opened, engine, texts)
    parts = split_prompt(whole, engine.capabilities)
    return Split(engine.decode(parts.thinking), engine.decode(parts.answer), parts.inside)


def _split_turns(ids: Ids, opened: bool, engine: Engine, marks: tuple[TextMarker, TextMarker]) -> Split[str]:
    """`split_whole` for markers of several tokens, turn by turn: an end of sequence outside of them ends a thought."""
    eos = {token for token in engine.capabilities.eos_ids if engine.decode((token,)) not in "".join(marks[1].texts)}
    ends = [at for at, token in enumerate(ids) if token in eos]
    turns = [ids[start:end] for start, end in zip((0, *(at + 1 for at in ends)), (*ends, len(ids)), strict=True)]
    texts = [engine.decode(turn) for turn in turns]
    parts = [cut_text(text, opened and not n, marks[0].texts, marks[1].texts) for n, text in enumerate(texts)]
    return Split("".join(p.thinking for p in parts), "".join(p.answer for p in parts), parts[-1].inside)


QWEN3_HANDOVER = (
    "Considering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
    "</think>\n\n"
)


MINIMUM_CALLS = 4
"""Where a budget of calls or FLOPs may end, so many ends of thinking may be suppressed for the sake of `min_tokens`."""
OUT_OF_CALLS = "calls"
"""`stop_reason` of a draw that its budget of calls cut."""
OUT_OF_ROOM = "room"
"""`stop_reason` of a draw that sampled and injected tokens together cut, before the sampled ones alone would have."""


MAX_WAITS = 1000
"""More waits than fill any context."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How much to think. `mode` picks the chat template's switch; `auto` leaves the template's default.

    `max_tokens` caps the ids inside the think block (0 is the no-think template, without a hand-over); `min_tokens` and
    `num_waits` suppress the end of thinking until this many ids, or this many times, and inject `wait` in its place.
    `at_cap` says what follows a cut: the hand-over and an answer, or nothing (hard truncation, for comparison).
    `handover` None is the model's own sentence, else Qwen3's; it must contain the end-of-thinking marker. `open` and
    `close` are markers for a model that has none: any text, of any number of tokens.
    """

    mode: Literal["auto", "on", "off"] = "auto"
    max_tokens: int | None = None
    min_tokens: int = 0
    num_waits: int = 0
    wait: str = "Wait"
    at_cap: Literal["handover", "stop"] = "handover"
    handover: str | None = None
    open: str | None = None
    close: str | None = None

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        if self.mode not in ("auto", "on", "off"):
            raise ConfigError(f"thinking.mode must be auto, on or off, got {self.mode!r}")
        if self.at_cap not in ("handover", "stop"):
            raise ConfigError(f"thinking.at_cap must be handover or stop, got {self.at_cap!r}")
        if self.max_tokens is not None and not 0 <= self.max_tokens <= MAX_TOKENS:
            raise ConfigError(f"thinking.max_tokens must be >= 0 and <= {MAX_TOKENS}, or absent, got {self.max_tokens}")
        counts = (("min_tokens", self.min_tokens, MAX_TOKENS), ("num_waits", self.num_waits, MAX_WAITS))
        for name, value, most in counts:
            if not 0 <= value <= most:
                raise ConfigError(f"thinking.{name} must be >= 0 and <= {most}, got {value}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"thinking.min_tokens {self.min_tokens} exceeds thinking.max_tokens {self.max_tokens}")
        if self.extends and (self.mode == "off" or self.max_tokens == 0):
            raise ConfigError("thinking is off, so thinking.min_tokens and thinking.num_waits must be 0")
        if self.extends and not self.wait:
            raise ConfigError("thinking.wait must not be empty")
        check_markers("thinking", self.open, self.close)

    @property
    def template(self) -> bool | None:
        """What to ask of the chat template: True, False, or None for its default."""
        if self.mode == "off" or self.max_tokens == 0:
            return False
        return True if self.mode == "on" or self.max_tokens is not None or self.extends else None

    @property
    def extends(self) -> bool:
        """Whether an end of thinking may be suppressed."""
        return self.min_tokens > 0 or self.num_waits > 0

    @property
    def active(self) -> bool:
        """Whether tokens must be counted at all."""
        return bool(self.max_tokens) or self.extends

    @property
    def calls_each(self) -> int:
        """Requests that one draw may take: the thinking, the answer, one for each wait, and some for a minimum."""
        if not self.active or self.template is False:
            return 1
        return 2 + self.num_waits + MINIMUM_CALLS * (self.min_tokens > 0)

    def most_calls(self, engine: Engine) -> int:
        """The most requests that one draw takes, if each end of its thinking is suppressed by its own injection.

        This includes a few further thoughts in its answer.
        """
        waits = -(-self.min_tokens // max(len(engine.encode(self.wait)), 1))
        return self.calls_each + max(waits - MINIMUM_CALLS, 0) + MINIMUM_CALLS

    def count_injected(self, engine: Engine) -> int:
        """Most tokens that are injected into one draw (under a minimum: as many waits as `calls_each` allows)."""
        if not self.active or self.template is False:
            return 0
        waits = self.num_waits + MINIMUM_CALLS * (self.min_tokens > 0)
        handover = 0 if self.max_tokens is None else len(engine.encode(handover_of(self, engine.capabilities)))
        return handover + (waits * len(engine.encode(self.wait)) if waits else 0)

    def check_length(self, max_tokens: int) -> None:
        """Refuse a minimum that leaves no token for an answer in a draw of at most `max_tokens`."""
        if self.template is not False and self.min_tokens >= max_tokens:
            raise ConfigError(
                f"thinking.min_tokens = {self.min_tokens} (--min-thinking) leaves nothing of sampling.max_tokens = "
                f"{max_tokens} (--max-tokens) for an answer: raise max_tokens or think less"
            )

    def check(self, capabilities: Capabilities) -> None:
        """Refuse, before any work, what the engine cannot honour."""
        if not self.active:
            return
        if not capabilities.token_ids:
            raise ConfigError(
                f"thinking budgets need token ids, which {capabilities.model} does not take; with engine openai, serve "
                "it with vLLM and set engine.tokenizer=PATH to its folder"
            )
        if not capabilities.think_close:
            raise ConfigError(
                f"{capabilities.model} has no end-of-thinking marker, so thinking cannot be budgeted; name two with "
                "--set thinking.open=... --set thinking.close=..., or write them into a copy of the model: "
                "ttc train adapt MODEL --out DIR"
            )


def check_markers(owner: str, opening: str | None, closing: str | None) -> None:
    """Raise ConfigError for one marker without the other, an empty one, or twice the same."""
    if (opening is None) != (closing is None) or "" in (opening, closing):
        raise ConfigError(f"{owner}.open and {owner}.close go together, and neither is empty")
    if opening is not None and opening == closing:
        raise ConfigError(f"{owner}.open and {owner}.close must differ")


def handover_of(thinking: Thinking, capabilities: Capabilities) -> str:
    """The words that end the thinking: the requested ones, else the model's own, else Qwen3's."""
    return thinking.handover or capabilities.handover or QWEN3_HANDOVER


def check_handover(engine: Engine, thinking: Thinking) -> None:
    """Refuse a hand-over that leaves a cut thought open: it would repeat until the context is full."""
    capabilities = engine.capabilities
    if not capabilities.think_close or thinking.at_cap == "stop":
        return
    words = handover_of(thinking, capabilities)
    if split(engine.encode(words), True, capabilities).inside:
        closing = marker_text(capabilities, True) or engine.decode(capabilities.think_close)
        raise ConfigError(f"thinking.handover must end the thought, with {closing} in it, got {words!r}")


def default_handover(closing: str, gap: str = "\n\n") -> str:
    """Qwen3's hand-over with another end-of-thinking marker; without a `gap` no line ends beside it."""
    return QWEN3_HANDOVER.replace(CLOSE if gap else f"\n{CLOSE}\n\n", closing)


def answer_reserve(num_tokens: int) -> int:
    """Tokens that a draw of at most `num_tokens` keeps for the answer after its thinking: a quarter, 16 to 512."""
    return min(max(num_tokens // 4, 16), 512, num_tokens // 2)


async def controlled(
    engine: Engine,
    prompt: Prompt,
    sampling: Sampling,
    draw: int,
    thinking: Thinking,
    on_usage: UsageSink,
    max_calls: int | None = None,
    on_held: Callable[[Enforced], None] | None = None,
    answer_stops: Collection[str] = (),
    room: int | None = None,
    generate: Generate | None = None,
) -> Completion:
    """Generate one draw under `thinking`; the result is one completion, its injected spans marked.

    `sampling.max_tokens` caps the kept sampled tokens over all segments, `max_calls` their number, `room` the ids
    including injected ones (None: no such cap). Stops apply in every segment, but `answer_stops` only in the answer.
    `on_held` receives whether the engine's own cap or counting ids held the budget. `generate` draws a segment (None:
    the engine does).
    """
    capabilities = engine.capabilities
    sample: Generate = engine.generate if generate is None else generate
    assembly, wait_len, calls = Assembly(prompt, draw), len(engine.encode(thinking.wait)), 0
    thinking = _within(engine, prompt, thinking, room)
    native = None if answer_stops or _is_guided(sampling) else _native(engine, prompt, sampling, thinking)
    if native is None and on_held is not None:
        on_held("ids")
    while True:
        left, cause = _left(assembly, sampling.max_tokens, room, capabilities.max_context)
        if left < 1 or calls == max_calls:
            return assembly.finish(engine, "length", cause if left < 1 else OUT_OF_CALLS)
        calls += 1
        state, waits = split_prompt(assembly.prompt, capabilities), assembly.prompt.num_waits
        part = native or _segment_sampling(sampling, thinking, state, left, capabilities, answer_stops)
        rests = () if native else _rests(assembly.prompt, state, capabilities)
        if rests:
            part = replace(part, stop=(*part.stop, *rests))
        segment, reports = await _sampled(sample, assembly, part, draw, on_usage)
        forced: tuple[int, int] | None = None
        if native is None:
            # A wait takes a request, and the answer another.
            earlier = waits if max_calls is None or max_calls - calls > 1 else None
            num_kept, action = _judge(segment, state, thinking, earlier, sampling, wait_len, capabilities)
        else:
            num_kept, action, forced = judge_native(segment, native.thinking_cap or 0, capabilities)
            if on_held is not None:
                on_held("native" if action == "done" else "ids")
            native = None
        for report in reports:
            on_usage(recount(report, len(segment.token_ids) - num_kept))
        assembly.append(engine, segment, num_kept, forced)
        if action == "done" and not _goes_on(engine, assembly, segment, sampling, answer_stops, rests):
            left, cause = _left(assembly, sampling.max_tokens, room, capabilities.max_context)
            is_full = segment.finish_reason == "length" and segment.stop_reason is None and left < 1
            return assembly.finish(engine, segment.finish_reason, cause if is_full else segment.stop_reason)
        if action in ("done", "continue"):
            continue
        if action == "handover" and thinking.at_cap == "stop":
            return assembly.finish(engine, "length", None)
        words = _words(engine, action, thinking, room, assembly.ids)
        if room is not None and len(assembly.ids) + len(words) > room:
            return assembly.finish(engine, "length", OUT_OF_ROOM)
        assembly.inject(engine, words, waits=int(action == "wait"))


def _left(assembly: Assembly, max_tokens: int, room: int | None, max_context: int) -> tuple[int, str | None]:
    """The most tokens that the next segment may sample, and what ends the draw if there are none."""
    left = max_tokens - assembly.num_sampled
    if left < 1:
        return 0, None
    if room is not None:
        left = min(left, room - len(assembly.ids))
    if assembly.ids:  # injected text may have filled the context; a first request is refused by the engine itself
        left = min(left, max_context - len(assembly.prompt.token_ids or ()))
    return left, OUT_OF_ROOM


async def _sampled(
    generate: Generate, assembly: Assembly, sampling: Sampling, draw: int, on_usage: UsageSink
) -> tuple[Completion, list[Usage]]:
    """One segment and its cost, which is still to be reported; if it fails, the cost is reported first.

    Then the draw is lost, with what earlier segments have kept.
    """
    reports: list[Usage] = []
    try:
        (segment,) = await generate(assembly.prompt, sampling, range(draw, draw + 1), reports.append)
    except BaseException:
        for report in [*reports, recount(Usage(), assembly.num_sampled)]:
            on_usage(report)
        raise
    return segment, reports


def _within(engine: Engine, prompt: Prompt, thinking: Thinking, room: int | None) -> Thinking:
    """`thinking`, capped so that its end and a first word of the answer fit into `room` ids."""
    if room is None or thinking.max_tokens is None or thinking.at_cap == "stop":
        return thinking
    cap = room + len(prompt.generated_ids) - len(_ending(engine, thinking, room, ())) - 1
    if cap < 1 or cap >= thinking.max_tokens:
        return thinking
    return replace(thinking, max_tokens=cap, min_tokens=min(thinking.min_tokens, cap))


def _words(engine: Engine, action: Action, thinking: Thinking, room: int | None, before: Sequence[int]) -> Ids:
    """What is injected after a segment."""
    if action == "wait":
        return engine.encode(thinking.wait)
    return engine.capabilities.think_close if action == "close" else _ending(engine, thinking, room, before)


def _ending(engine: Engine, thinking: Thinking, room: int | None, before: Sequence[int]) -> Ids:
    """What ends a cut thought: the hand-over, or the bare marker if that does not fit after `before`."""
    words = engine.encode(handover_of(thinking, engine.capabilities))
    fits = room is None or len(before) + len(words) < room
    return words if fits else engine.capabilities.think_close


def _goes_on(
    engine: Engine,
    assembly: Assembly,
    segment: Completion,
    sampling: Sampling,
    answer_stops: Collection[str],
    rests: Collection[str],
) -> bool:
    """Whether the draw continues after a segment: it ended at a stop before the answer, or at our own stop."""
    if segment.stop_reason in answer_stops:
        return not _in_answer(engine, assembly, answer_stops)
    return segment.stop_reason in rests and segment.stop_reason not in sampling.stop


def _in_answer(engine: Engine, assembly: Assembly, stops: Collection[str]) -> bool:
    """Whether the answer itself contains one of `stops`, apart from the white space that follows the thought."""
    parts = split_prompt(assembly.prompt, engine.capabilities)
    if len(parts.answer) == len(assembly.prompt.generated_ids):  # there was no block, not even an empty one
        return True
    answer = engine.decode(parts.answer).lstrip()
    return any(stop in answer for stop in stops)


def _native(engine: Engine, prompt: Prompt, sampling: Sampling, thinking: Thinking) -> ExtraSampling | None:
    """The sampling for an engine that can hold this cap itself; None if the toolkit must hold it."""
    capabilities = engine.capabilities
    if thinking.max_tokens is None or thinking.extends or thinking.at_cap == "stop":
        return None
    fresh = prompt.think_state == "open" and not prompt.generated_ids
    handover = engine.encode(handover_of(thinking, capabilities))
    if "thinking_cap" not in extras_of(capabilities) or not fresh or handover != capabilities.think_close:
        return None
    options = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return ExtraSampling(**{**options, "thinking_cap": thinking.max_tokens})


def _segment_sampling(
    sampling: Sampling,
    thinking: Thinking,
    state: Split[Ids],
    left: int,
    capabilities: Capabilities,
    answer_stops: Collection[str],
) -> Sampling:
    """Stop at the next think marker, and one marker's length past the cap, to see whether the end was natural.

    An answer under a grammar is one request: continuing it would start the grammar again.
    """
    marker = capabilities.think_close if state.inside else () if _is_guided(sampling) else capabilities.think_open
    texts = _marker_texts(capabilities, state.inside)
    limit = left
    if state.inside and thinking.max_tokens is not None:
        limit = min(left, max(thinking.max_tokens - len(state.thinking), 0) + len(marker))
    stop = tuple(text for text in sampling.stop if text not in answer_stops) if state.inside else sampling.stop
    ours: dict[str, Any] = {"grammar": None} if state.inside and _is_guided(sampling) else {}
    if marker and texts:
        return replace(sampling, max_tokens=limit, stop=(*stop, *texts), **ours)
    stop_ids = (*sampling.stop_token_ids, *marker[-1:])
    return replace(sampling, max_tokens=limit, stop=stop, stop_token_ids=stop_ids, **ours)


def _rests(prompt: Prompt, state: Split[Ids], capabilities: Capabilities) -> tuple[str, ...]:
    """The strings that would complete a text marker already begun: engines miss one that begins in the prompt."""
    if capabilities.think_texts is None:
        return ()
    marker = capabilities.think_texts[state.inside]
    text = marker.decode(prompt.generated_ids[-max(map(len, marker.texts)) :])
    ends = (mark[size:] for mark in marker.texts for size in range(1, len(mark)) if text.endswith(mark[:size]))
    return tuple(dict.fromkeys(ends))


def marker_text(capabilities: Capabilities, inside: bool) -> str | None:
    """The marker that ends a thought (`inside`) or opens one, if it is matched as text; None for single tokens."""
    return None if capabilities.think_texts is None else capabilities.think_texts[inside].text


def _marker_texts(capabilities: Capabilities, inside: bool) -> tuple[str, ...]:
    """All texts that spell that marker."""
    return () if capabilities.think_texts is None else capabilities.think_texts[inside].texts


def _is_guided(sampling: Sampling) -> bool:
    """Whether the answer follows a grammar, which a thought does not."""
    return isinstance(sampling, ExtraSampling) and sampling.grammar is not None


def _judge(
    segment: Completion,
    state: Split[Ids],
    thinking: Thinking,
    waits: int | None,
    sampling: Sampling,
    wait_len: int,
    capabilities: Capabilities,
) -> tuple[int, Action]:
    """Decide how many ids of a segment to keep and what comes next; `waits` None: ends are not suppressed."""
    # A thought of c ids is within a cap of c. One marker's length is sampled past the cap, so a natural end at
    # exactly c ids is seen whole and kept as it is; a thought that is longer is cut to c, also where it ended within
    # the look past the cap: by end-of-text, or by a marker of fewer ids than the usual one.
    ids = segment.token_ids
    last = (capabilities.think_close if state.inside else capabilities.think_open)[-1:]
    texts = _marker_texts(capabilities, state.inside)
    longest = max(map(len, texts), default=0)
    begun = state.thinking[-longest:] if state.inside and texts else ()  # an earlier piece may end in it
    span = find_marker((*begun, *ids), capabilities, state.inside)
    at_marker = span is not None and span[1] == len(begun) + len(ids)
    # The stop at the marker (its last id) was ours, unless the caller had asked for it, too.
    by_id = not texts and segment.stop_reason in last and segment.stop_reason not in sampling.stop_token_ids
    by_text = segment.stop_reason in texts and segment.stop_reason not in sampling.stop
    resume: Action = "continue" if by_id or by_text else "done"
    if not state.inside:
        return len(ids), resume
    num_terminator = span[1] - span[0] if span is not None and at_marker else segment.num_eos
    num_thinking = len(state.thinking) + len(ids) - num_terminator
    num_before = len(ids) - min(num_terminator, len(ids))
    if num_terminator and waits is not None and _wants_more(thinking, num_thinking, waits, wait_len):
        return num_before, "wait"
    excess = 0 if thinking.max_tokens is None else num_thinking - thinking.max_tokens
    if excess > 0:
        return max(num_before - excess, 0), "handover"
    if segment.num_eos and _is_guided(sampling):
        return num_before, "close"
    return len(ids), resume


def _wants_more(thinking: Thinking, num_thinking: int, waits: int, wait_len: int) -> bool:
    room = thinking.max_tokens is None or num_thinking + wait_len < thinking.max_tokens
    return room and (waits < thinking.num_waits or num_thinking < thinking.min_tokens)


Action: TypeAlias = Literal["done", "continue", "handover", "wait", "close"]
"""What comes after a segment of a draw under thinking control."""


def judge_native(
    segment: Completion, cap: int, capabilities: Capabilities
) -> tuple[int, Action, tuple[int, int] | None]:
    """How many ids to keep of a draw whose thought the engine was to cap, what comes next, and the span it forced."""
    close, ids = capabilities.think_close, segment.token_ids[: len(segment.token_ids) - segment.num_eos]
    parts = split(ids, True, capabilities)
    first = next((at for at in range(len(ids)) if ids[at : at + len(close)] == close), len(ids))
    if first > cap:
        return cap, "handover", None
    forced = (cap, cap + len(close)) if first == cap < len(ids) else None
    if len(parts.thinking) > cap:
        return min(first + len(close), len(ids)), "continue", forced
    return len(segment.token_ids), "done", forced


def recount(usage: Usage, dropped: int) -> Usage:
    """Move sampled tokens that were not kept from `generated` to `overrun`."""
    return replace(usage, generated=usage.generated - dropped, overrun=usage.overrun + dropped)


class Assembly:
    """A draw being assembled from segments and injections; mutable and private to one call."""

    def __init__(self, prompt: Prompt, draw: int) -> None:
        self.start, self.prompt, self.path = prompt, prompt, (*prompt.path, draw)
        self.ids: list[int] = []
        self.logprobs: Logprobs | None = ()
        self.certainty: Logprobs | None = ()
        self.injected: list[tuple[int, int]] = []
        self.usage = Usage()
        self.num_sampled = self.num_waits = 0

    def append(self, engine: Engine, segment: Completion, kept: int, forced: tuple[int, int] | None = None) -> None:
        """Add the first `kept` ids of a segment; of those, the engine itself has injected the span `forced`."""
        ids = segment.token_ids[:kept]
        logprobs = segment.logprobs
        if forced is not None:  # only a first segment has such a span, so it counts from the start of the draw
            self.injected.append(forced)
            logprobs = logprobs and tuple(
                None if forced[0] <= at < forced[1] else value for at, value in enumerate(logprobs)
            )
        self.ids += ids
        self.logprobs = join_logprobs(self.logprobs, logprobs, kept)
        self.certainty = join_logprobs(self.certainty, segment.certainty, kept)
        self.num_sampled += kept
        self.usage += recount(segment.usage, len(segment.token_ids) - kept)
        self.prompt = self.prompt.extend(ids, engine.decode(ids))

    def inject(self, engine: Engine, ids: Ids, waits: int = 0) -> None:
        """Insert words that were not sampled; `waits` is how many ends of thinking they replace."""
        self.injected.append((len(self.ids), len(self.ids) + len(ids)))
        self.ids += ids
        unknown: Logprobs = (None,) * len(ids)
        self.logprobs = join_logprobs(self.logprobs, unknown, len(ids))
        self.certainty = join_logprobs(self.certainty, unknown, len(ids))
        self.num_waits += waits
        self.prompt = replace(self.prompt.extend(ids, engine.decode(ids)), num_waits=self.prompt.num_waits + waits)

    def finish(self, engine: Engine, reason: str, stop: str | int | None) -> Completion:
        """The whole draw as one completion."""
        ids = tuple(self.ids)
        return Completion(
            path=self.path,
            text=engine.decode(ids[:-1] if stop == "eos" else ids),
            token_ids=ids,
            finish_reason="stop" if reason == "stop" else "length",
            stop_reason=stop,
            logprobs=self.logprobs,
            certainty=self.certainty,
            injected=tuple(self.injected),
            num_waits=self.num_waits,
            usage=self.usage,
        )
