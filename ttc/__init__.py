"""Test-time compute: spend it, measure exactly what it bought, distil the gain into a smaller model.

    import asyncio, ttc

    engine = ttc.ENGINES.load("embedded")()
    direct = ttc.STRATEGIES.load("direct")
    problem = ttc.Problem("p1", (ttc.Message("user", "12+30*2"),))
    answer = asyncio.run(ttc.solve(problem, engine=engine, strategy=direct, seed=1))
    print(answer.final, answer.usage.tokens)

Names are resolved on first use: `import ttc` itself loads neither torch nor anything else that is heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttc.core import (
        Answer,
        Budget,
        Candidate,
        Completion,
        Engine,
        Message,
        Problem,
        Prompt,
        Record,
        Sampling,
        Score,
        Scorer,
        Submission,
        Usage,
        Verdict,
        Verifier,
    )
    from ttc.errors import TTCError
    from ttc.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS
    from ttc.session import Session
    from ttc.solve import solve
    from ttc.thinking import Thinking

__version__ = "0.1.0"

__all__ = [
    "ENGINES",
    "SCORERS",
    "STRATEGIES",
    "VERIFIERS",
    "Answer",
    "Budget",
    "Candidate",
    "Completion",
    "Engine",
    "Message",
    "Problem",
    "Prompt",
    "Record",
    "Sampling",
    "Score",
    "Scorer",
    "Session",
    "Submission",
    "TTCError",
    "Thinking",
    "Usage",
    "Verdict",
    "Verifier",
    "solve",
]

_HOMES = {
    "ttc.errors": ("TTCError",),
    "ttc.registry": ("ENGINES", "SCORERS", "STRATEGIES", "VERIFIERS"),
    "ttc.session": ("Session",),
    "ttc.solve": ("solve",),
    "ttc.thinking": ("Thinking",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ttc' has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "ttc.core")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
