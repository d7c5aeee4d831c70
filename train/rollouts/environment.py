"""An environment: problems to solve with tools, the notation of calls, and rewards beside the answer's.

One file of `train/environments/` with a function of its name, or an entry point of `ttc.environments`; the stage
`agent` trains in it. Rewards are composite: the verifier's verdict and the `shaping` parts, each with its weight and
logged under its own name. A tool may keep a state per episode (`ttc.agents.tool`): a game is a tool, its calls moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ttc.agents.markup import MarkupName
from ttc.core import Strategy
from ttc.strategies.tools import tools as play


@dataclass(frozen=True, slots=True)
class Environment:
    """`task` and `held_out` are tasks NAME:KEY=VALUE,...; `tools`, `shaping` likewise; the rest as in `tools`."""

    task: str
    held_out: str
    tools: tuple[str, ...]
    markup: MarkupName = "tags"
    instruct: bool = True
    max_calls: int = 8
    max_result: int = 2000
    tool_s: float = 10.0
    shaping: tuple[str, ...] = ("calls:weight=0", "failed_calls:weight=0")

    def strategy(self, n: int) -> Strategy:
        """Run n episodes on a problem, in training and in evaluation alike."""
        names = ("tools", "markup", "instruct", "max_calls", "max_result", "tool_s")
        return partial(play, n=n, **{name: getattr(self, name) for name in names})
