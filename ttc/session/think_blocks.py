"""Think blocks: where thinking ends and the answer begins, on token ids, or on text where there are none.

A marker is matched as a whole id sequence, in what was generated only, so a marker in a user's words is inert. Linear
in the number of ids. Left out: other spellings of a marker of several tokens (its characters, merged with what stands
before them, are other ids).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ttc.core import Capabilities, Completion, Prompt

__all__ = ["CLOSE", "OPEN", "Split", "TextSplit", "count_sampled_thinking", "split", "split_prompt", "split_text"]

OPEN, CLOSE = "<think>", "</think>"
"""The markers as text; engines with ids know them by their ids."""


@dataclass(frozen=True, slots=True)
class Split:
    """Generated ids cut at the markers: before + open + thinking + close + answer is the whole, loss-less."""

    thinking: tuple[int, ...]
    answer: tuple[int, ...]
    inside: bool
    """Whether the ids end inside an open think block."""


def split(ids: Sequence[int], starts_inside: bool, capabilities: Capabilities) -> Split:
    """Separate thinking from answer on ids; `starts_inside` when the rendered prompt left the block open.

    Several blocks are joined; text outside a block belongs to the answer. A marker is matched as a whole id sequence.
    """
    runs, inside = _runs(tuple(ids), starts_inside, capabilities)
    thinking = chain.from_iterable(ids[start:end] for start, end, within in runs if within)
    answer = chain.from_iterable(ids[start:end] for start, end, within in runs if not within)
    return Split(tuple(thinking), tuple(answer), inside)


@dataclass(frozen=True, slots=True)
class TextSplit:
    """`Split` on text, the markers left out."""

    thinking: str
    answer: str
    inside: bool


def split_text(text: str, starts_inside: bool) -> TextSplit:
    """Separate thinking from answer on generated text, for engines without ids.

    An end marker before any opening one closes a block that the prompt had opened, whether that was known or not.
    """
    first, closing = text.find(OPEN), text.find(CLOSE)
    inside = starts_inside or (closing >= 0 and not 0 <= first < closing)
    thinking: list[str] = []
    answer: list[str] = []
    while True:
        run, marker, text = text.partition(CLOSE if inside else OPEN)
        (thinking if inside else answer).append(run)
        if not marker:
            return TextSplit("".join(thinking), "".join(answer), inside)
        inside = not inside


def _runs(
    ids: tuple[int, ...], starts_inside: bool, capabilities: Capabilities
) -> tuple[list[tuple[int, int, bool]], bool]:
    """Half-open runs of ids between markers, each inside or outside the block; and whether the end is inside."""
    runs: list[tuple[int, int, bool]] = []
    inside, start = starts_inside, 0
    while True:
        marker = capabilities.think_close if inside else capabilities.think_open
        place = _find(ids, marker, start)
        end = len(ids) if place is None else place
        if end > start:
            runs.append((start, end, inside))
        if place is None:
            return runs, inside
        start, inside = end + len(marker), not inside


def _find(ids: tuple[int, ...], marker: tuple[int, ...], start: int) -> int | None:
    """Index of the first whole `marker` at or after `start`."""
    while marker:
        try:
            at = ids.index(marker[0], start)
        except ValueError:
            return None
        if ids[at : at + len(marker)] == marker:
            return at
        start = at + 1
    return None


def count_sampled_thinking(prompt: Prompt, completions: Sequence[Completion], capabilities: Capabilities) -> list[int]:
    """Sampled ids of each completion (draws of `prompt`) that lie inside the think block."""
    marks = {*capabilities.think_open, *capabilities.think_close}
    _, inside = _runs(prompt.generated_ids, prompt.think_state == "open", capabilities)
    counts: list[int] = []
    for completion in completions:
        if not completion.token_ids:  # an engine without ids charges what its server counted
            counts.append(0)
            continue
        num_ids = len(completion.token_ids) - completion.num_eos
        if not marks.isdisjoint(completion.token_ids):
            runs = _inside(prompt, completion.token_ids[:num_ids], capabilities)
        else:  # without any id of a marker a draw stays where the prompt ends
            runs = [(0, num_ids)] if inside else []
        injected = sum(max(0, min(b, d) - max(a, c)) for a, b in runs for c, d in completion.injected)
        counts.append(sum(end - start for start, end in runs) - injected)
    return counts


def _inside(prompt: Prompt, ids: tuple[int, ...], capabilities: Capabilities) -> list[tuple[int, int]]:
    """Half-open runs of `ids`, which follow `prompt`, that lie inside the think block."""
    before = len(prompt.generated_ids)
    runs, _ = _runs(prompt.generated_ids + ids, prompt.think_state == "open", capabilities)
    return [(max(start - before, 0), end - before) for start, end, within in runs if within and end > before]


def split_prompt(prompt: Prompt, capabilities: Capabilities) -> Split:
    """`split` of everything generated after the rendered part of `prompt`."""
    return split(prompt.generated_ids, prompt.think_state == "open", capabilities)
