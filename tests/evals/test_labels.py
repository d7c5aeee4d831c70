"""One rule for what a run is called."""

from __future__ import annotations

from typing import Any

from evals.experiment import settings_of
from evals.report.runs import labels
from ttc.config.choices import StrategyChoice
from ttc.config.registry import STRATEGIES


def entry(strategy: str, n: int = 1, **more: Any) -> dict[str, Any]:
    return {"strategy": strategy, "n": n, "task": "arithmetic", "level": 4, "params": {"n": n}, **more}


def choice(name: str, **params: Any) -> StrategyChoice:
    return StrategyChoice(name, name, STRATEGIES.load(name), params)


def test_settings_are_what_differs_from_the_defaults_with_the_temperature_first():
    assert settings_of(choice("direct"), 0.8, 0.8) == {}
    assert settings_of(choice("direct", temperature=0.0), 0.8, 0.8) == {"temperature": 0.0}
    assert settings_of(choice("direct", temperature=0.8), 0.0, 0.8) == {}
    assert settings_of(choice("direct"), 0.0, 0.8) == {"temperature": 0.0}
    assert settings_of(choice("direct"), 0.8, None) == {"temperature": 0.8}
    tree = settings_of(choice("tree", n=4, beam_width=2, policy="dvts"), 0.5, 0.8)
    assert list(tree.items())[:2] == [("temperature", 0.5), ("beam_width", 2)] and "n" not in tree


def test_a_name_is_the_strategy_its_samples_and_its_settings():
    settings = {"temperature": 0.5, "beam_width": 2, "tools": ["python", "calculator"]}
    assert labels([entry("tree", 4, settings=settings)]) == ["tree N=4, t=0.5, beam_width=2, tools=python,calculator"]
    assert labels([entry("direct", settings={"temperature": 0.0}), entry("direct", settings={})]) == [
        "direct, greedy",
        "direct",
    ]


def test_how_many_samples_a_strategy_without_an_n_came_to_is_no_part_of_its_name():
    runs = [entry("auto", most, settings={"tokens": 900.0}, params={"tokens": 900.0}, seed=most) for most in (24, 32)]
    assert labels(runs[:1]) == ["auto, tokens=900"]
    assert labels(runs) == ["auto, tokens=900, seed=24", "auto, tokens=900, seed=32"]


def test_runs_of_one_name_say_what_else_differs():
    pair = [entry("direct", settings={}, model=model, seed=seed) for model, seed in (("a", 1), ("b", 1))]
    assert labels(pair) == ["direct, model=a", "direct, model=b"]
    assert labels([pair[0], {**pair[0], "problems_seed": 7}]) == ["direct", "direct, problems_seed=7"]
    cut = {**pair[0], "sampling": {"max_tokens": 64}, "budget": {"tokens": 900}, "engine_params": {"dtype": "bfloat16"}}
    assert labels([pair[0], cut])[1] == "direct, max_tokens=64, budget.tokens=900, engine.dtype=bfloat16"
    assert labels([pair[0], pair[0]]) == ["direct #1", "direct #2"]


def test_runs_recorded_before_settings_were_kept_show_that_they_were_greedy():
    old = [
        entry("direct", params={"temperature": 0.0}, temperature=0.8),
        entry("direct", params={"temperature": None}, temperature=0.8),
        entry("direct", params={"temperature": None}, temperature=0.0),
    ]
    assert labels(old[:2]) == ["direct, greedy", "direct"]
    assert labels(old[1:]) == ["direct", "direct, greedy"]
