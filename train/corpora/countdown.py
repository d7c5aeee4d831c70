r"""Worked searches of Countdown (`evals.tasks.countdown`), with dead ends and returns: the cold start of a chat model.

Stream of Search, Gandhi et al. 2024 (arXiv:2404.03683): a model that is shown how to search, mistakes included, learns
to search. A search goes depth first. A line joins two numbers and says what is left; with two numbers left a line is a
try, and `back` undoes the last open line:

    Reach 98 from 44 19 35.        44*19=836,35        dead end: nothing near 98 can be made of 836 and 35
                                   836-35=801
                                   back
                                   44+19=63,35
                                   63-35=28
                                   63+35=98            which ends the thought
                                   (44+19)+35          the answer

The larger number comes first. Wrong ways tend to come near the target, so there is a sense of direction to learn; their
number before the right one is geometric, so that the length of a search says nothing about its end. Problems are of the
part `train`. It is a corpus of turns: prompts go through the chat template of the model that learns it. For a new model
it brings the byte-level tokenizer of the packaged family, whose digits, like those of SmolLM2, are tokens of their own:
a thought has about as many tokens as characters. Cost: 0.2 ms a search of three numbers, 20 ms of four. Left out:
searches that fail, breadth first, errors of arithmetic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from evals.tasks.countdown import MAX_NUMBER, MAX_VALUE, Games, check_size, question
from train.examples.examples import Corpus, ShownTurn
from train.nano import tokenizer
from ttc.config.values import at_least, finite
from ttc.errors import ConfigError

BACK = "back"
_TRIES = 2
"""Most tries of two numbers that do not reach the target."""
_WIDTH = 2
"""Most wrong ways tried below a wrong one."""
_ATTEMPTS = 100
"""Draws of a problem and its search until one is short enough."""
_MARKS = 12
"""Tokens beside a thought: markers, line ends, the end of the turn."""


def countdown(*, numbers: int = 3, largest: int = MAX_NUMBER, dead_ends: float = 1.5, most: int = 150) -> Corpus:
    """The corpus of worked searches.

    Args:
        numbers: how many numbers a problem has, 3 to 6; from five on a search takes seconds.
        largest: the largest of them.
        dead_ends: wrong ways before the right one, on average, at every place of the right path.
        most: most tokens of a search, approximately; longer ones are drawn again.
    """
    check_size(numbers, largest)
    at_least("corpus countdown", 40, most=most)
    at_least("corpus countdown", 0, dead_ends=dead_ends)
    finite("corpus countdown", dead_ends=dead_ends)
    games = Games(numbers, "train", largest)

    def turn(rng: random.Random) -> ShownTurn:
        asked, target, search = _searched(games, dead_ends, most, rng)
        lines = "".join(f"{line}\n" for line in search.lines)
        return ShownTurn(question(asked, target, "brief"), f"\n{lines}", f"\n{search.answer}")

    def sample(rng: random.Random) -> str:
        one = turn(rng)
        prompt = f"<|im_start|>user\n{one.messages[0].content}<|im_end|>\n<|im_start|>assistant\n"
        return f"{prompt}<think>{one.thinking}</think>\n{one.answer}"

    # the question's instruction and markers take the room of about forty tokens more
    return Corpus("countdown", tokenizer.build, sample, most + 8 * numbers + 64, turn=turn)


def _searched(games: Games, dead_ends: float, most: int, rng: random.Random) -> tuple[list[int], int, WorkedSearch]:
    for _ in range(_ATTEMPTS):
        numbers, target, _ = games.draw(rng)
        search = WorkedSearch(target, dead_ends, rng)
        search.walk(tuple(_Part(number, str(number)) for number in numbers))
        if search.size <= most:
            return numbers, target, search
    raise ConfigError(f"corpus countdown: no search of {games.size} numbers in {most} tokens; raise most")


@dataclass(frozen=True, slots=True)
class _Part:
    """A value, and the expression that makes it."""

    value: int
    text: str


State = tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Two parts joined: the written line, the resulting value with its expression, and the remaining parts."""

    line: str
    state: State


@dataclass(slots=True)
class WorkedSearch:
    """One search for a target: its lines and, once found, its answer."""

    target: int
    dead_ends: float
    rng: random.Random
    lines: list[str] = field(default_factory=list)
    answer: str = ""
    _reach: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Tokens of the thought, approximately."""
        return sum(2 if line == BACK else len(line) + 1 for line in self.lines) + _MARKS

    def walk(self, state: State) -> bool:
        """Write the search below a state; returns whether it reached the target."""
        ways = list(moves(state))
        right = [way for way in ways if self._distance(way.state) == 0]
        wrong = self._near_first([way for way in ways if self._distance(way.state) > 0])
        if not right:
            for way in wrong[: _WIDTH if len(state) > 2 else self.rng.randint(1, _TRIES)]:
                self._down(way)
            return False
        for way in wrong[: self._wrong_ways()]:
            self._down(way)
        return self._down(self.rng.choice(right))

    def _down(self, way: Move) -> bool:
        self.lines.append(way.line)
        if len(way.state) == 1:
            reached = way.state[0].value == self.target
            self.answer = way.state[0].text.removeprefix("(").removesuffix(")") if reached else ""
            return reached
        reached = self.walk(way.state)
        if not reached:
            self.lines.append(BACK)
        return reached

    def _wrong_ways(self) -> int:
        """A draw of the geometric distribution with the requested mean."""
        if not self.dead_ends:
            return 0
        return int(math.log(1 - self.rng.random()) / math.log(self.dead_ends / (1 + self.dead_ends)))

    def _near_first(self, ways: list[Move]) -> list[Move]:
        """Moves ordered by how near they come to the target, with guessing errors of a factor or two."""
        return sorted(ways, key=lambda way: self._distance(way.state) * math.exp(self.rng.gauss(0, 1)))

    def _distance(self, state: State) -> float:
        """How near to the target the values of a state can come."""
        key = tuple(sorted(part.value for part in state))
        if key not in self._reach:
            self._reach[key] = (
                abs(key[0] - self.target)
                if len(key) == 1
                else min((self._distance(way.state) for way in moves(state)), default=math.inf)
            )
        return self._reach[key]


def moves(state: State) -> Iterator[Move]:
    """All ways to join two parts whose value is whole, above 0 and small, without repeating existing values."""
    for first in range(len(state)):
        for second in range(first + 1, len(state)):
            big, small = sorted((state[first], state[second]), key=lambda part: -part.value)
            rest = tuple(part for place, part in enumerate(state) if place not in (first, second))
            for sign, value in _values(big.value, small.value):
                made = _Part(value, f"({big.text}{sign}{small.text})")
                left = "".join(f",{part.value}" for part in rest)
                yield Move(f"{big.value}{sign}{small.value}={value}{left}", (made, *rest))


def _values(big: int, small: int) -> Iterator[tuple[str, int]]:
    yield "+", big + small
    if big > small:
        yield "-", big - small
    if small > 1 and big * small <= MAX_VALUE:
        yield "*", big * small
    if small > 1 and big % small == 0:
        yield "/", big // small
