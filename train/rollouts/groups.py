"""Groups of rollouts, the completions of one prompt: what may stand in one, and what every step measures of them.

Group advantages, shaping over a group and rankings are differences between answers to one question; over two questions
they would teach which question is easier. So a group that mixes prompts is refused by name, at the cost of one
comparison of ids per row. A group has a signal when its rewards differ; without one it teaches nothing, and whether it
is all-pass or all-fail says which way the difficulty is off. Shares are in [0, 1], lengths in tokens, times in seconds;
the update and the engine add their own numbers.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TypeAlias

from train.base.rollout import Rollout
from ttc.errors import ConfigError

__all__ = ["Decode", "by_group", "check_groups", "has_signal", "mixed", "rollout_metrics"]


MAX_SHOWN = 60
Decode: TypeAlias = Callable[[Sequence[int]], str]


def check_groups(rollouts: Iterable[Rollout], decode: Decode) -> None:
    """Refuse rollouts whose group ids mix prompts.

    Raises:
        ConfigError: names the group, both problems, and the words at which their prompts part.
    """
    first: dict[tuple[int, int], Rollout] = {}
    for rollout in rollouts:
        other = first.setdefault((rollout.step, rollout.group), rollout)
        if other.prompt_ids != rollout.prompt_ids:
            name = f"group {rollout.group} of step {rollout.step}"
            prompts = [(each.problem_id, decode(each.prompt_ids)) for each in (other, rollout)]
            fix = (
                "give each prompt a group id of its own; a strategy that puts other prompts, such as refine or "
                "aggregate, cannot draw a group"
            )
            raise mixed(name, prompts, fix)


def mixed(name: str, prompts: Sequence[tuple[str, str]], fix: str) -> ConfigError:
    """The refusal of `name`, which holds two (problem, prompt text)."""
    texts = [text for _, text in prompts]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))
    openings = " and ".join(f"{_words(text, shared)!r} (problem {problem})" for problem, text in prompts)
    return ConfigError(f"{name} mixes prompts, whose completions must not be compared: {openings}; {fix}")


def _words(text: str, shared: int) -> str:
    """The first words of a prompt, from the word at which it parts from the other one."""
    start = len(text[:shared].rstrip().rpartition(" ")[0]) if shared > MAX_SHOWN // 2 else 0
    words = text[start : start + MAX_SHOWN].strip()
    return ("..." if start else "") + words + ("..." if start + MAX_SHOWN < len(text) else "")


_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def by_group(rollouts: Sequence[Rollout]) -> dict[int, list[Rollout]]:
    """Rollouts by group, in order."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


def has_signal(group: Sequence[Rollout]) -> bool:
    """Whether the rewards of a group, those of steps among them, differ by more than rounding."""
    rewards = [r.reward + sum(value for _, value in r.step_rewards) for r in group if r.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > 1e-6


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of one step's rollouts, zero-signal groups included."""
    groups = list(by_group(rollouts).values())
    with_verdict = [rollout for rollout in rollouts if rollout.verdict is not None]
    right = [rollout.verdict is not None and rollout.verdict.correct for rollout in rollouts]
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    statuses = [rollout.verdict.status for rollout in with_verdict if rollout.verdict is not None]
    passed = [[r.verdict is not None and r.verdict.correct for r in group] for group in groups]
    metrics = {
        "accuracy": _mean(right),
        "reward": _mean(rewards),
        "reward_std": statistics.pstdev(rewards) if rewards else math.nan,
        "signal_share": _mean([has_signal(group) for group in groups if len(group) > 1]),
        "all_pass": _mean([all(group) for group in passed]),
        "all_fail": _mean([not any(group) for group in passed]),
        "length": _mean(lengths),
        "length_max": float(max(lengths, default=0)),
        "truncated": _mean([rollout.truncated for rollout in rollouts]),
        "thinking_share": _mean([bool(rollout.thinking.strip()) for rollout in rollouts]),
        "no_answer": _mean([status in ("no_answer", "unparseable") for status in statuses]),
        "formed": _mean([rollout.final is not None for rollout in rollouts]),
        "unique_share": _mean([len({r.token_ids for r in group}) / len(group) for group in groups]),
        "repetition": _mean([repeated_share(rollout.token_ids, 4) for rollout in rollouts]),
        "other_script": _mean([bool(_OTHER_SCRIPT.search(rollout.thinking)) for rollout in rollouts]),
        "verifier_errors": _mean([status == "error" for status in statuses]),
        "verifier_timeouts": _mean([status in ("timeout", "limit") for status in statuses]),
    }
    names = {name for rollout in rollouts for name in rollout.parts}
    parts = {f"part/{name}": _mean([r.parts[name] for r in rollouts if name in r.parts]) for name in sorted(names)}
    return {**metrics, **parts}


def repeated_share(ids: Sequence[int], n: int) -> float:
    """Share of the n-grams of `ids` that are not the first of their kind; 0 when there is none."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
