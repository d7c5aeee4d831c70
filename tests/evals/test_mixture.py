"""A mixture of tasks: shares, verifiers and rewards by row, what a file may not say."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.loops import finished
from train.base.rollout import Rollout, rollout_metrics
from train.registries import make_task, make_verifier
from train.rollouts.rewards import Rewarder
from ttc.core import Submission
from ttc.errors import ConfigError


def rows(folder: Path, name: str, count: int, **fields: str) -> str:
    lines = [{"id": f"q{i}", "problem": f"{name} {i}?", "answer": "B", **fields} for i in range(count)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / f"{name}.jsonl")


def mixed(folder: Path, **parts: str) -> str:
    """A mixture of the given tables."""
    text = "".join(f"[parts.{name}]\n{table}\n" for name, table in parts.items())
    (folder / "mix.toml").write_text(text)
    return str(folder / "mix.toml")


def two(folder: Path, more: str = "", **shares: float) -> str:
    sums = rows(folder, "sums", 30, answer="4")
    letters = rows(folder, "letters", 10, kind="choice")
    share = {name: f"share = {value}\n" for name, value in shares.items()}
    return mixed(
        folder,
        sums=f'task = "{sums}"\n{share.get("sums", "")}{more}',
        letters=f'task = "{letters}"\n{share.get("letters", "")}',
    )


def counts(spec: str, limit: int | None) -> Counter[str]:
    return Counter(item.difficulty or "" for item in make_task(spec).items(limit, 0))


def test_without_shares_every_row_is_taken_under_its_parts_name(tmp_path):
    task = make_task(two(tmp_path))
    assert counts(two(tmp_path), None) == {"sums": 30, "letters": 10}
    assert {item.problem.id.split("/")[0] for item in task.items(None, 0)} == {"sums", "letters"}
    assert len(task.items(7, 0)) == 7


def test_shares_are_held_without_taking_a_row_twice(tmp_path):
    assert counts(two(tmp_path, sums=1, letters=1), None) == {"sums": 10, "letters": 10}
    assert counts(two(tmp_path, sums=3, letters=1), None) == {"sums": 30, "letters": 10}
    assert counts(two(tmp_path, sums=3, letters=1), 8) == {"sums": 6, "letters": 2}


def test_each_row_is_judged_by_the_verifier_of_its_part(tmp_path):
    task = make_task(two(tmp_path))
    verifier = make_verifier(task)
    answers = {"sums": "\\boxed{4}", "letters": "The answer is (B)."}

    async def verdicts() -> list[tuple[str, bool, bool]]:
        judged = []
        for item in task.items(None, 0):
            verifier.check_gold(item.target, item.problem.id)
            right = await verifier.verify(item.target, Submission(answers[item.difficulty or ""]))
            wrong = await verifier.verify(item.target, Submission("\\boxed{5}"))
            judged.append((item.difficulty or "", right.correct, wrong.correct))
        await verifier.close()
        return judged

    assert set(asyncio.run(verdicts())) == {("sums", True, False), ("letters", True, False)}


def test_multiple_choice_can_be_left_out(tmp_path):
    letters = rows(tmp_path, "letters", 10, kind="choice")
    sums = rows(tmp_path, "sums", 5, answer="4")
    spec = mixed(tmp_path, all=f'task = "{letters}"\nleave_out = ["choice"]', sums=f'task = "{sums}"')
    with pytest.raises(ConfigError, match=r"parts\.all\.leave_out leaves nothing"):
        make_task(spec).items(None, 0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 'task = "countdown"\nshare = 1.0', "b": 'task = "countdown"'}, "give every part a share, or none"),
        ({"a": 'task = "countdown"\nshare = 0'}, "share must be > 0"),
        ({"a": 'task = "countdown"\nreward = "luck"'}, "reward"),
        ({"a": 'task = "nothing-like-it"'}, "unknown task"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_by_its_field(tmp_path, parts, message):
    with pytest.raises(ConfigError, match=message):
        make_task(mixed(tmp_path, **parts))


class LearntReward:
    """Gives every rollout 0.5."""

    total = "learnt"

    def __call__(self, rollouts):
        return {"learnt": [0.5] * len(rollouts)}


def test_a_part_says_whether_its_verifier_or_the_learnt_reward_counts_and_has_a_curve(tmp_path):
    sums = rows(tmp_path, "sums", 1, answer="4")
    parts = {name: f'task = "{sums}"\nreward = "{name}"' for name in ("verifier", "learnt", "both")}
    task = make_task(mixed(tmp_path, **parts))
    rollouts = [
        Rollout(
            0, group, item.problem.id, item.difficulty or "", item.target, (0,), (1,), (2,), (True,), (-0.1,),
            "\\boxed{4}", "", "4", "stop", 0, 0,
        )
        for group, item in enumerate(task.items(None, 0))
    ]  # fmt: skip
    rewarder = Rewarder(make_verifier(task), learnt=LearntReward())
    results = finished(rewarder.judge(rollouts, 0), rewarder)
    assert {one.difficulty: one.reward for one in results} == {"verifier": 1.0, "learnt": 0.5, "both": 1.5}
    metrics = rollout_metrics(results)
    assert {name: metrics[f"family/{name}"] for name in parts} == {"verifier": 1.0, "learnt": 0.5, "both": 1.5}
