"""Test-time compute: spend it, measure exactly what it bought, distil the gain into a smaller model.

    import ttc

    answer = ttc.run("12+30*2", strategy="majority", n=8)
    print(answer.final, answer.usage.tokens)

`await ttc.arun(...)` is the asynchronous form, `ttc.solve_all` runs many problems at once.

Names are resolved on first use: `import ttc` itself loads neither torch nor anything else that is heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS
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
    from ttc.session.session import Session
    from ttc.session.solve import arun, run, solve_all
    from ttc.session.thinking import Thinking

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
    "arun",
    "run",
    "solve_all",
]

_HOMES = {
    "ttc.errors": ("TTCError",),
    "ttc.config.registry": ("ENGINES", "SCORERS", "STRATEGIES", "VERIFIERS"),
    "ttc.session.session": ("Session",),
    "ttc.session.solve": ("arun", "run", "solve_all"),
    "ttc.session.thinking": ("Thinking",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ttc' has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "ttc.core")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
