"""Procedural problems of reasoning-gym, `reasoning-gym:NAME`: endless, fresh, 97 kinds (Stojanovski et al. 2025).

The package is optional (`pip install 'ttckit[procedural]'`). Its questions are asked as they are, plus where to put the
answer. Answers are judged by the verifier `procedural`, which is stricter than the package and never runs them as code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from evals.task import Item, Task, VerifierSpec
from ttc import seeds
from ttc.core import Message, Problem, Sampling
from ttc.errors import ConfigError
from ttc.verifiers.procedural.verifier import problems

DEFAULT_LIMIT = 100
WHERE = "Put your final answer, and nothing else, between <answer> and </answer>."
_MAX_SEED = 1 << 31


def reasoning_gym(name: str, *, config: str = "{}") -> Task:
    """Procedural problems of one kind, reasoning-gym:NAME.

    Args:
        name: the task of reasoning-gym.
        config: its parameters, as a JSON object: {"min_terms": 3}.
    """
    plain, options = name.replace("-", "_"), _object(config)
    return Task(
        name=f"reasoning-gym:{plain}",
        kind="exact",
        load=lambda limit, seed: _items(plain, options, DEFAULT_LIMIT if limit is None else limit, seed),
        sampling=Sampling(max_tokens=1024),
        params={"name": plain, "config": options},
        verifier=VerifierSpec("procedural"),
        procedural=True,
    )


def _items(name: str, config: dict[str, Any], limit: int, seed: int) -> Iterator[Item]:
    # Problem i of the package's seed s is problem 0 of seed s + i, so our seeds are spread first.
    spread = seeds.derive(seed, "reasoning-gym", name) % _MAX_SEED
    for i, drill in enumerate(problems(name, seed=spread, count=limit, config=config)):
        messages = (Message("user", f"{drill.question.strip()}\n\n{WHERE}"),)
        yield Item(Problem(f"reasoning-gym-{name}-s{seed}-{i}", messages, "exact"), drill.target)


def _object(config: str) -> dict[str, Any]:
    try:
        value = json.loads(config)
    except ValueError as exc:
        raise ConfigError(f"reasoning-gym: config is not JSON ({exc}): {config!r}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"reasoning-gym: config must be a JSON object, got {config!r}")
    return value
