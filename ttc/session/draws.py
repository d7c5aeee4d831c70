"""The draw contract: which draw numbers at which place of the tree are taken or in flight.

The number of a draw decides its randomness, so a number is drawn once. Calls that overlap at one place name their
ranges; a bare count takes the next free numbers there. A cut draw may continue under its own number, from a longer
prompt that begins with its original one. Cost: one hash of the prompt a call. Left out: telling apart two prompts whose
hashes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ttc.config.values import at_least, at_most
from ttc.core import Path, Prompt, Sampling
from ttc.errors import ConfigError

MAX_SAMPLES = 100_000
"""Draws of one problem whose requests still fit into memory, and more than any curve of coverage needs."""


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
    """The draws of one problem; private to its session, so it may change."""

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
