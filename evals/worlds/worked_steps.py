"""The exact step checker of arithmetic: a worked solution is held to the truth line by line.

A path is right while each line is a legal step with the right value from what remains of the expression. A line that
begins with `Wait, ` goes back: it must be a right step from any state that the path had reached before, so it may mend
a path that had gone wrong. A step with a final answer is right when that is the expression's value. Text that is
neither (thinking marks, a hand-over) has no label.

Cost: microseconds per step. Left out: steps that are written in another way than the packaged family writes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evals.worlds.arithmetic import ArithmeticProblem
from evals.worlds.expressions import MAX_TEXT, Node, Reduction, Sum, parse, reductions
from ttc import answers
from ttc.core import Problem, Target
from ttc.errors import ConfigError
from ttc.verifiers.steps import StepLabels

_STEP = re.compile(r"(Wait, )?(-?\d+[+*-]-?\d+)=(-?\d+)")


def evaluate(node: Node) -> int:
    """Return the exact value of a node."""
    if isinstance(node, int):
        return node
    if isinstance(node, Sum):
        return sum(sign * evaluate(term) for sign, term in node.terms)
    value = 1
    for factor in node.factors:
        value *= evaluate(factor)
    return value


def expression(text: str) -> ArithmeticProblem:
    """Parse and evaluate a text; spaces are dropped.

    Raises:
        ValueError: as `parse`.
    """
    return ArithmeticProblem(text.replace(" ", ""), evaluate(parse(text)))


def result(step: Reduction) -> Node:
    """What remains after a step."""
    return step.rebuild(step.value)


def line(step: Reduction) -> str:
    """A step as it is written."""
    return f"{step.left}={step.value}"


@dataclass(frozen=True, slots=True)
class WorkedStep:
    """One parsed line of work."""

    wait: bool
    left: str
    value: int


def parse_step(line: str) -> WorkedStep | None:
    """Read one line of work, without its delimiter; None when it is not a step."""
    match = _STEP.fullmatch(line)
    if match is None or len(line) > MAX_TEXT:
        return None
    return WorkedStep(match[1] is not None, match[2], int(match[3]))


@dataclass(frozen=True, slots=True)
class WorkedPath:
    """How far a path of steps has come, and whether it is still right.

    `states` are the expressions that may remain (several when one line fits two equal pairs);
    `seen` are all the states that the path was in while on track, which `Wait, ` may return to.
    """

    states: frozenset[Node]
    seen: frozenset[Node]
    on_track: bool = True

    @classmethod
    def start(cls, expression: ArithmeticProblem) -> WorkedPath:
        """Return the progress of an empty path."""
        states = frozenset({parse(expression.text)})
        return cls(states, states)

    @property
    def done(self) -> bool:
        """Return whether the path is right and only the value remains."""
        return self.on_track and any(isinstance(state, int) for state in self.states)

    def step(self, line: str) -> WorkedPath:
        """Follow one line; a wrong or illegal one leaves the track until a `Wait, ` mends it."""
        step = parse_step(line)
        if step is None:
            return WorkedPath(self.states, self.seen, on_track=False)
        reached = frozenset(
            result(reduction)
            for state in self._sources(step)
            for reduction in reductions(state)
            if reduction.left == step.left and reduction.value == step.value
        )
        if not reached:
            return WorkedPath(self.states, self.seen, on_track=False)
        return WorkedPath(reached, self.seen | reached)

    def _sources(self, step: WorkedStep) -> frozenset[Node]:
        if step.wait:
            return self.seen
        return self.states if self.on_track else frozenset()


_QUESTION = re.compile(r"[\d(-][\d+*() -]*")
_MARKS = re.compile(r"</?think>")


class ArithmeticSteps:
    """The exact checker as a `StepChecker`: problems of the task `arithmetic`."""

    name = "arithmetic"
    version = "arithmetic-steps-1"

    async def check(self, problem: Problem, target: Target, steps: Sequence[str]) -> StepLabels:
        """Label every step; `target` is not needed, the value is computed. Raises ConfigError for another problem."""
        question = _QUESTION.search(problem.messages[-1].content)
        try:
            truth = expression(question[0].strip() if question else "")
        except ValueError as exc:
            raise ConfigError(f"problem {problem.id!r} asks for no expression of whole numbers: {exc}") from exc
        progress, labels = WorkedPath.start(truth), list[float | None]()
        for step in steps:
            bare = _MARKS.sub("", step).strip()
            if parse_step(bare) is not None:
                progress = progress.step(bare)
                labels.append(float(progress.on_track))
            else:
                final = answers.extract(bare, "math").final
                labels.append(None if final is None else float(final == str(truth.value)))
        return StepLabels(tuple(labels), self.version)
