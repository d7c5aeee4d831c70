"""What a strategy or a policy does unless told otherwise: a default that moves changes every result without a word."""

from __future__ import annotations

import inspect

import pytest

from ttc.config.registry import POLICIES, STRATEGIES

STRATEGY_DEFAULTS = {
    "adaptive": {"n": 40, "threshold": 0.95, "window": 5, "wave": 1},
    "aggregate": {"n": 8, "k": 3, "rounds": 2},
    "auto": {},
    "best_of_n": {"n": 16, "beta": 0.1},
    "budget_forcing": {},
    "confidence": {"n": 32, "warmup": 8, "keep": 0.5, "group": 64, "consensus": 0.95, "chunk": 64, "wave": 8},
    "direct": {},
    "early_exit": {"threshold": 0.95, "repeats": 3, "chunk": 64, "probe_tokens": 32},
    "first_finished": {"n": 8, "m": 3, "chunk": 64},
    "genselect": {"n": 8, "k": 4, "group": 8, "trust": 2.0},
    "knockout": {"n": 8, "k": 2, "trust": 2.0},
    "majority": {"n": 16},
    "no_think_then_think": {"n": 4, "m": 4, "agreement": 0.75},
    "refine": {"rounds": 2, "threshold": 0.5},
    "tools": {"n": 1, "max_calls": 8, "max_result": 2000, "tool_s": 10.0},
    "tree": {"n": 16, "beam_width": 4, "islands": 1, "max_step_tokens": 256, "max_depth": 40, "verify_every": 1},
}
POLICY_DEFAULTS = {
    "beam": {"beam_width": 4},
    "dvts": {"beam_width": 4},
    "entropic": {"ess": 1.0, "temperature": 1.0, "floor": 0.9, "horizon": 8},
    "gibbs": {"rounds": 4, "temperature": 1.0},
    "particle": {"ess": 1.0, "temperature": 1.0},
    "puct": {"beam_width": 4, "c": 0.25},
    "rebase": {"temperature": 0.2},
}


@pytest.mark.parametrize(("registry", "known"), [(STRATEGIES, STRATEGY_DEFAULTS), (POLICIES, POLICY_DEFAULTS)])
def test_numbers_that_nobody_asked_to_change_stay_as_they_are(registry, known) -> None:
    for name, expected in known.items():
        parameters = inspect.signature(registry.load(name)).parameters.values()
        numbers = {p.name: p.default for p in parameters if type(p.default) in (int, float)}
        assert numbers == expected, name
