"""Training problems that are not worth a rollout: those that a stage before has already solved too often.

Kimi k1.5 (arXiv:2501.12599, section 2.1) lets a model guess without reasoning, eight times, and drops what it guesses:
such a problem rewards guessing. Sampled with thinking, the same filter drops what is already easy.
"""

from __future__ import annotations

from collections.abc import Sequence

from evals.task import Item
from train.base.rollout_file import read_rollouts
from train.base.stage import Setting
from train.examples.sources import rollouts_path
from ttc.errors import ConfigError

__all__ = ["remaining"]


def remaining(items: Sequence[Item], name: str, most: int, setting: Setting) -> list[Item]:
    """The items with at most `most` right rollouts in the stage or file `name`.

    Raises:
        ConfigError: the rollouts are not there, or no item is left.
    """
    solved: dict[str, int] = {}
    for rollout in read_rollouts(rollouts_path(name, setting)):
        if rollout.verdict is not None and rollout.verdict.correct:
            solved[rollout.problem_id] = solved.get(rollout.problem_id, 0) + 1
    kept = [item for item in items if solved.get(item.problem.id, 0) <= most]
    if not kept:
        raise ConfigError(f"leave_out {name!r}: every training problem was solved more than {most} times")
    setting.log(f"{len(items) - len(kept)} of {len(items)} problems left out: solved more than {most} times in {name}")
    return kept
