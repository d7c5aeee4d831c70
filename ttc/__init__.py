"""Test-time compute: spend it, measure exactly what it bought, distil the gain into a smaller model.

    import ttc

    answer = ttc.run("12+30*2", strategy="majority", n=8)
    print(answer.final, answer.usage.tokens)

    result = ttc.evaluate([{"question": "What is 2+2?", "answer": "4"}], strategy="majority", n=8)
    print(result)                                       accuracy with its interval, tokens, seconds

`await ttc.arun(...)` and `await ttc.aevaluate(...)` are the asynchronous forms; both kinds work in a notebook.
`ttc.solve_all` runs many problems at once. Strategy, scorer and verifier may be names, objects or functions.

Names are resolved on first use: `import ttc` itself loads no torch or other heavy package.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing takes a while, and Ctrl-C would show a traceback

if TYPE_CHECKING:
    from evals.door import aevaluate, evaluate
    from evals.evaluation import EvaluatedProblem, Evaluation
    from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS
    from ttc.core import (
        Answer,
        Budget,
        Candidate,
        Completion,
        Engine,
        Message,
        Prices,
        Problem,
        Prompt,
        Record,
        Sampling,
        Score,
        Scorer,
        Strategy,
        Submission,
        Usage,
        Verdict,
        Verifier,
    )
    from ttc.errors import TTCError
    from ttc.session.door import arun, run
    from ttc.session.session import Session
    from ttc.session.solve import solve_all
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
    "EvaluatedProblem",
    "Evaluation",
    "Message",
    "Prices",
    "Problem",
    "Prompt",
    "Record",
    "Sampling",
    "Score",
    "Scorer",
    "Session",
    "Strategy",
    "Submission",
    "TTCError",
    "Thinking",
    "Usage",
    "Verdict",
    "Verifier",
    "aevaluate",
    "arun",
    "evaluate",
    "run",
    "solve_all",
]

_HOMES = {
    "evals.door": ("aevaluate", "evaluate"),
    "evals.evaluation": ("EvaluatedProblem", "Evaluation"),
    "ttc.errors": ("TTCError",),
    "ttc.config.registry": ("ENGINES", "SCORERS", "STRATEGIES", "VERIFIERS"),
    "ttc.session.session": ("Session",),
    "ttc.session.door": ("arun", "run"),
    "ttc.session.solve": ("solve_all",),
    "ttc.session.thinking": ("Thinking",),
}

if not TYPE_CHECKING:  # to a type checker, a name that is not listed does not exist

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'ttc' has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "ttc.core")
        try:
            return getattr(importlib.import_module(home), name)
        except ImportError as exc:
            from ttc.cli.own import hiding

            raise hiding(home.partition(".")[0], exc) from exc


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
