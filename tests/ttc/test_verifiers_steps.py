"""Step labels by rollouts on the scripted engine: shares, hard labels, what is not known, and the ledger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ttc.core import Message, Path, Problem, Prompt, Sampling, Status, Submission, TargetLike, Verdict, Verifier
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError
from ttc.verifiers.exact import exact
from ttc.verifiers.steps import RolloutChecker, StepLabels, prefixes

PROBLEM = Problem("p", (Message("user", "1+2+3?"),), "exact")
STEPS = ("1+2=3", "3+3=7", "so 7")


def engine(say: Any) -> ScriptedEngine:
    return ScriptedEngine(say)


def by_prefix(prompt: Prompt, path: Path, key: int) -> str:
    """Right from behind the first step in draws 0 and 1; wrong once the second step stands."""
    wrong = "3+3=7" in prompt.generated_text or path[-1] > 1
    return f"\\boxed{{{7 if wrong else 6}}}"


def check(checker: RolloutChecker, steps: tuple[str, ...] = STEPS) -> StepLabels:
    return asyncio.run(checker.check(PROBLEM, "6", steps))


def test_a_label_is_the_share_of_rollouts_that_end_well() -> None:
    made = engine(by_prefix)
    found = check(RolloutChecker(made, exact(), seed=1, rollouts=4))
    assert found.labels == (0.5, 0.0, 0.0)
    assert found.first_error == 1
    assert found.usage.generated == made.counters().generated > 0
    assert found.usage.calls == 12
    assert check(RolloutChecker(engine(by_prefix), exact(), seed=1, rollouts=4, hard=True)).labels == (1.0, 0.0, 0.0)
    assert "rollouts-1 4 of scripted, soft, exact-12" in found.version


def test_no_path_without_a_wrong_step_has_a_first_error() -> None:
    right = RolloutChecker(engine(lambda prompt, path, key: r"\boxed{6}"), exact(), seed=1, rollouts=2)
    assert check(right).first_error is None
    assert check(right, ()).labels == ()


def test_a_rollout_without_a_verdict_does_not_count_and_one_that_was_cut_counts_as_not_reached() -> None:
    class Often(Verifier):
        name = version = "often"

        def __init__(self, *statuses: Status) -> None:
            self.left = list(statuses)

        async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
            return Verdict(self.left.pop())

    def labels(*statuses: Status) -> tuple[float | None, ...]:
        checker = RolloutChecker(engine(by_prefix), Often(*statuses), seed=1, rollouts=len(statuses))
        return check(checker, STEPS[:1]).labels

    assert labels("timeout", "correct", "error", "incorrect") == (0.5,)
    assert labels("timeout", "limit", "error") == (None,)
    cut = RolloutChecker(engine(lambda *_: "x" * 50), exact(), seed=1, rollouts=2, sampling=Sampling(max_tokens=9))
    assert check(cut, STEPS[:1]).labels == (0.0,)


def test_every_prefix_is_a_place_of_its_own_with_all_steps_before_it() -> None:
    made = engine(by_prefix)
    root = made.render(PROBLEM.messages, None)
    found = prefixes(root, made.encode, STEPS)
    assert [prompt.path for prompt in found] == [(0,), (1,), (2,)]
    assert [prompt.generated_text for prompt in found] == [
        "1+2=3\n\n",
        "1+2=3\n\n3+3=7\n\n",
        "1+2=3\n\n3+3=7\n\nso 7\n\n",
    ]
    assert all(made.decode(prompt.generated_ids) == prompt.generated_text for prompt in found)


def test_rollouts_that_would_all_be_equal_are_refused() -> None:
    for options in ({"rollouts": 0}, {"rollouts": 2, "sampling": Sampling(temperature=0.0)}):
        with pytest.raises(ConfigError, match="rollouts must be >= 1"):
            RolloutChecker(engine(by_prefix), exact(), seed=1, **options)  # type: ignore[arg-type]
