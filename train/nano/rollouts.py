"""The teacher's own attempts, in every way it will be used: what the reward model learns from.

Ways: thinking, thinking lengthened once by `Wait`, thinking cut by the hand-over sentence, and no
thinking. Cost: that of sampling. Left out: search (its paths are prefixes of these).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from evals.arithmetic import Expression, Split, sample_expression
from train.nano.sample import Draw, Sampler
from train.nano.traces import HANDOVER

Way = Literal["think", "wait", "handover", "no_think"]
MAX_TOKENS = 320


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt: `prompt` ends where the model began, `ids` is what followed, forced tokens included."""

    problem: Expression
    way: Way
    prompt: list[int]
    ids: list[int]


def problems(seed: int, count: int, levels: Sequence[float], split: Split) -> list[Expression]:
    """Draw problems of a split; `levels` weighs levels 1, 2, ..."""
    rng = random.Random(f"nano-problems:{seed}:{split}")
    drawn = rng.choices(range(1, len(levels) + 1), levels, k=count)
    return [sample_expression(rng, level, split) for level in drawn]


def prompt_ids(tokenizer: Any, problem: Expression, thinking: bool) -> list[int]:
    """Render the question with the chat template."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem.prompt}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def think(
    sampler: Sampler, tokenizer: Any, asked: Sequence[Expression], draw: Draw, thinking: bool = True
) -> list[Rollout]:
    """Answer each problem once, with or without thinking."""
    prompts = [prompt_ids(tokenizer, problem, thinking) for problem in asked]
    way: Way = "think" if thinking else "no_think"
    found = sampler(prompts, draw)
    return [
        Rollout(problem, way, prompt, ids)
        for problem, prompt, ids in zip(asked, prompts, found, strict=True)
    ]


def lengthen(
    sampler: Sampler, tokenizer: Any, first: Sequence[Rollout], draw: Draw
) -> list[Rollout]:
    """Replace the end of each finished thinking by `Wait`, and go on from there."""
    wait = tokenizer.encode("Wait", add_special_tokens=False)
    return _go_on(
        sampler, first, [_thoughts(tokenizer, item) + wait for item in first], draw, "wait"
    )


def cut(
    sampler: Sampler, tokenizer: Any, first: Sequence[Rollout], budgets: Sequence[int], draw: Draw
) -> list[Rollout]:
    """Keep at most `budgets[i]` tokens of thinking, add the hand-over sentence, and go on from there."""
    handover = tokenizer.encode(HANDOVER, add_special_tokens=False)
    kept = [
        _thoughts(tokenizer, item)[:budget] + handover
        for item, budget in zip(first, budgets, strict=True)
    ]
    return _go_on(sampler, first, kept, draw, "handover")


def answer_of(tokenizer: Any, rollout: Rollout) -> str | None:
    """Return the text in the box of the answer; None when there is none."""
    text = tokenizer.decode(rollout.ids)
    if rollout.way != "no_think":
        text = text.partition("</think>")[2]
    _, found, rest = text.rpartition("\\boxed{")
    return rest.partition("}")[0] if found and "}" in rest else None


def _go_on(
    sampler: Sampler, first: Sequence[Rollout], kept: list[list[int]], draw: Draw, way: Way
) -> list[Rollout]:
    prompts = [item.prompt + ids for item, ids in zip(first, kept, strict=True)]
    found = sampler(prompts, replace(draw, seed=draw.seed + 1))
    return [
        replace(item, way=way, ids=ids + more)
        for item, ids, more in zip(first, kept, found, strict=True)
    ]


def _thoughts(tokenizer: Any, rollout: Rollout) -> list[int]:
    """Return the ids of the thinking, without its end marker."""
    end = tokenizer.convert_tokens_to_ids("</think>")
    return rollout.ids[: rollout.ids.index(end)] if end in rollout.ids else rollout.ids
