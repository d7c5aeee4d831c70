"""What finishing a path takes, learned from the first path that ended, and how a search narrows by it.

A search under a budget compares, level by level, what is left with what its live paths need to their end: it goes on
with all of them, or with fewer, or it stops scoring and finishes the best as they are. The length of the first path
stands for all. Cost: none. Left out: lengths by depth, and learning from later paths.
"""

from __future__ import annotations

from dataclasses import dataclass

from ttc.core import Completion, Price, Prompt
from ttc.session.meter import Cost
from ttc.session.session import Session

__all__ = ["Course", "FirstPath", "Pace"]


@dataclass(frozen=True, slots=True)
class FirstPath:
    """The first path: its tokens, its steps, those of its prompt, and what scoring one like it takes."""

    num_tokens: int
    num_steps: int
    num_prompt: int
    price: Price

    def unscored(self, session: Session, num_sampled: int) -> Cost:
        """What finishing a path takes after `num_sampled` of its tokens, in one request."""
        tokens = self._rest(num_sampled)
        return Cost(tokens, session.thinking.calls_each, self._flops(session, tokens, num_sampled))

    def scored(self, session: Session, num_sampled: int, depth: int) -> Cost:
        """What finishing a path takes step by step after `depth` steps, all of them scored."""
        tokens = self._rest(num_sampled)
        steps = max(self.num_steps - depth, 1)
        scoring = self.price.fixed * (not depth) + self.price.per_token * tokens + self.price.per_draw * steps
        flops = self._flops(session, tokens, num_sampled)
        shape = self.price.shape
        if shape is not None:
            flops += shape.flops(scoring, self.num_prompt + num_sampled)
        return Cost(tokens + scoring, session.thinking.calls_each * steps, flops)

    def _rest(self, num_sampled: int) -> int:
        """Tokens to the end; a path that is longer than the first one has a step to go."""
        return max(self.num_tokens - num_sampled, -(-self.num_tokens // self.num_steps), 1)

    def _flops(self, session: Session, num_tokens: int, num_sampled: int) -> float:
        shape, before = session.capabilities.shape, self.num_prompt + num_sampled
        if shape is None:
            return 0.0
        return shape.flops(num_tokens, before) if num_sampled else shape.flops(before + num_tokens, 0)


@dataclass(frozen=True, slots=True)
class Course:
    """How a level goes on: with `width` paths, guided by the scorer or finished as they are."""

    width: int
    guided: bool = True


class Pace:
    """The estimate of one search; its first path is not known at once, so it may change."""

    def __init__(self) -> None:
        self.path: FirstPath | None = None

    def learn(
        self, prompt: Prompt, completion: Completion, stop: tuple[str, ...], max_step_tokens: int, price: Price
    ) -> None:
        """Take the first path as the measure of all; `stop` and `max_step_tokens` end a step."""
        num_tokens = max(completion.usage.generated, 1)
        ends = sum(completion.text.count(mark) for mark in stop)
        self.path = FirstPath(
            num_tokens=num_tokens,
            num_steps=max(ends + 1, -(-num_tokens // max_step_tokens)),
            num_prompt=len(prompt.token_ids or ()),
            price=price,
        )

    def course(self, session: Session, num_sampled: int, depth: int, width: int, level_s: float) -> Course:
        """Choose how `width` live paths go on after `depth` levels that took `level_s` seconds each on average."""
        path = self.path
        if path is None:
            return Course(width)
        guided = session.pays_for(path.scored(session, num_sampled, depth))
        in_time = session.seconds_left >= level_s * (max(path.num_steps - depth, 1) + 1)
        if in_time and guided >= width:
            return Course(width)
        # Guidance is worth more than width, until it would leave less than half of the paths.
        if in_time and guided >= max(width / 2, 1):
            return Course(int(guided))
        finished = session.pays_for(path.unscored(session, num_sampled))
        return Course(max(int(min(finished, width)), 1), guided=False)
