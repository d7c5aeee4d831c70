"""Completions are compared within a group, so a group answers one prompt: what mixes prompts is refused by name.

Group advantages, shaping over a group and rankings are differences between answers to one question; over two questions
they would teach which question is easier. Cost: one comparison of ids per row, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TypeAlias

from train.base.rollout import Rollout
from ttc.errors import ConfigError

__all__ = ["Decode", "check_groups", "mixed"]

MAX_SHOWN = 60
Decode: TypeAlias = Callable[[Sequence[int]], str]


def check_groups(rollouts: Iterable[Rollout], decode: Decode) -> None:
    """Refuse rollouts whose group ids mix prompts.

    Raises:
        ConfigError: names the group, both problems, and the words at which their prompts part.
    """
    first: dict[tuple[int, int], Rollout] = {}
    for rollout in rollouts:
        known = first.setdefault((rollout.step, rollout.group), rollout)
        if known.prompt_ids != rollout.prompt_ids:
            name = f"group {rollout.group} of step {rollout.step}"
            prompts = [(each.problem_id, decode(each.prompt_ids)) for each in (known, rollout)]
            fix = (
                "give each prompt a group id of its own; a strategy that puts other prompts, such as refine or "
                "aggregate, cannot draw a group"
            )
            raise mixed(name, prompts, fix)


def mixed(name: str, prompts: Sequence[tuple[str, str]], fix: str) -> ConfigError:
    """The refusal of `name`, which holds two (problem, prompt text)."""
    texts = [text for _, text in prompts]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))
    said = " and ".join(f"{_words(text, shared)!r} (problem {problem})" for problem, text in prompts)
    return ConfigError(f"{name} mixes prompts, whose completions must not be compared: {said}; {fix}")


def _words(text: str, shared: int) -> str:
    """The first words of a prompt, from the word at which it parts from the other one."""
    start = len(text[:shared].rstrip().rpartition(" ")[0]) if shared > MAX_SHOWN // 2 else 0
    shown = text[start : start + MAX_SHOWN].strip()
    return ("..." if start else "") + shown + ("..." if start + MAX_SHOWN < len(text) else "")
