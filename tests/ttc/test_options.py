from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from ttc.cli.options import add_options, add_recipe_option, read_options
from ttc.cli.parts import (
    SEVERAL,
    EngineOptions,
    SamplingOptions,
    StrategyOptions,
    ThinkingOptions,
    resolve_budget,
    resolve_engine,
    resolve_sampling,
    resolve_scorer,
    resolve_strategies,
    resolve_thinking,
    strategies,
)
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.registry import ENGINES, SCORERS, Registry
from ttc.core import Budget, Message, Problem, Sampling
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.shape import read_config
from ttc.errors import ConfigError, PromptTooLong
from ttc.session.solve import fit_to_context
from ttc.session.thinking import Thinking


@dataclass(frozen=True, kw_only=True)
class Shared(SamplingOptions, ThinkingOptions, StrategyOptions, EngineOptions):
    strategy: tuple[str, ...] = strategies("majority", SEVERAL)


def parsed(*arguments: str) -> Shared:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser, Shared)
    add_recipe_option(parser)
    return read_options(Shared, parser.parse_args(arguments))


def engine_of(options: Shared) -> PartChoice:
    return resolve_engine(options, options.settings)


def scorer_of(options: Shared, choices: Sequence[StrategyChoice]) -> PartChoice | None:
    return resolve_scorer(options.scorer, options.settings, choices, is_packaged=options.is_packaged)


def test_help_says_each_default_once() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Shared)
    text = " ".join(parser.format_help().split())
    assert "see: ttc list strategies (default: majority)" in text
    assert text.count("(default: embedded, or openai with --base-url)") == 1
    assert "0 is greedy --top-p" in text


@pytest.mark.parametrize("arguments", [("--scorer", "none"), ("--config", "recipe.toml")])
def test_none_is_a_text_where_an_option_is_one(
    arguments: tuple[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("recipe.toml").write_text('scorer = "none"\nn = 3\n')
    assert parsed(*arguments).scorer == "none"


def test_n_reaches_the_strategies_that_have_it() -> None:
    direct, majority = resolve_strategies(parsed("--strategy", "direct,majority", "--n", "5"))
    assert (direct.params, majority.params) == ({}, {"n": 5})


def test_the_most_specific_parameter_wins() -> None:
    args = parsed(
        "--strategy", "majority,majority:n=64,best-of-n:n=3,select=weighted", "--n", "5", "--set", "best_of_n.n=4"
    )
    choices = resolve_strategies(args)
    assert [choice.params["n"] for choice in choices] == [5, 64, 3]
    assert [choice.label for choice in choices] == ["majority", "majority-n64", "best_of_n-n3-selectweighted"]
    assert choices[2].params["select"] == "weighted"


def test_without_a_strategy_the_default_runs() -> None:
    assert [choice.name for choice in resolve_strategies(parsed())] == ["majority"]


def test_the_same_strategy_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="same strategy twice"):
        resolve_strategies(parsed("--strategy", "direct", "--strategy", "direct"))


def test_a_strategy_of_the_user_is_loaded_from_its_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def guess(problem, session, *, n: int = 1): ...\n")
    (choice,) = resolve_strategies(parsed("--strategy", f"{file}:guess:n=7"))
    assert (choice.label, choice.params) == ("guess-n7", {"n": 7})


def test_set_reaches_one_strategy_the_engine_the_scorer_and_thinking() -> None:
    args = parsed(
        "--strategy", "best_of_n,majority", "--engine", "simulated", "--scorer", "simulated",
        "--set", "majority.n=9", "--set", "engine.steps=3", "--set", "scorer.noise=0.5", "--set", "thinking.wait=Hmm",
    )  # fmt: skip
    best, majority = resolve_strategies(args)
    assert (best.params, majority.params) == ({}, {"n": 9})
    assert engine_of(args).params == {"steps": 3}
    scorer = scorer_of(args, [best, majority])
    assert scorer is not None
    assert scorer.params == {"noise": 0.5}
    assert resolve_thinking(args, args.settings).wait == "Hmm"


def test_an_address_runs_on_the_engine_of_endpoints_unless_another_one_is_named() -> None:
    address = {"base_url": "http://h:8000/v1"}
    options = parsed("--base-url", address["base_url"], "--model", "m", "--set", "engine.attempts=2")
    choice = engine_of(options)
    assert (choice.label, choice.params) == ("openai:m", {**address, "attempts": 2})
    assert not options.is_packaged and parsed().is_packaged and engine_of(parsed()).label == "embedded"
    same = engine_of(parsed("--engine", "openai:m", "--set", f"engine.base_url={address['base_url']}"))
    assert (same.label, same.params) == ("openai:m", address)
    assert engine_of(parsed("--engine", "vllm", "--base-url", address["base_url"])).params == address


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--base-url http://a/v1 --set engine.base_url=http://b/v1", "twice: leave one out"),
        ("--set engine.base_url=http://a/v1", "needs --engine openai; or write --base-url http://a/v1"),
        ("--engine embedded --base-url http://a/v1", "engine embedded has no parameter 'base_url'"),
    ],
)
def test_an_address_that_no_engine_takes_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of(parsed(*arguments.split()))


def test_model_and_name_may_come_together_but_not_twice() -> None:
    assert engine_of(parsed("--engine", "scripted:a:b.json")).model == "a:b.json"
    assert engine_of(parsed("--engine", "scripted", "--model", "x")).label == "scripted:x"
    with pytest.raises(ConfigError, match="the model is given twice"):
        engine_of(parsed("--engine", "scripted:a", "--model", "b"))


@pytest.mark.parametrize(("registry", "spec"), [(ENGINES, "simulated:p=0.5"), (SCORERS, "simulated:preset=good")])
def test_an_option_in_the_place_of_a_model_is_refused_with_how_it_is_set(registry: Registry, spec: str) -> None:
    option = spec.partition(":")[2]
    with pytest.raises(ConfigError, match=f"for an option: --set {registry.kind}.{option}"):
        PartChoice.of(registry, spec, {})


@pytest.mark.parametrize(
    ("registry", "name"),
    [(ENGINES, "simulated"), *((SCORERS, name) for name in ("constant", "ensemble", "likelihood", "simulated"))],
)
def test_a_part_that_takes_no_model_refuses_one_and_is_not_listed_with_one(registry: Registry, name: str) -> None:
    assert not registry.describe(name).takes_model
    with pytest.raises(ConfigError, match=f"{name} takes no model, got 'x': ttc list {registry.kind}s"):
        PartChoice.of(registry, f"{name}:x", {})


def test_a_strategy_that_ranks_needs_a_scorer_that_fits_the_model() -> None:
    args = parsed("--strategy", "best_of_n", "--engine", "simulated")
    choices = resolve_strategies(args)
    with pytest.raises(ConfigError, match="best_of_n needs a scorer for this model"):
        scorer_of(args, choices)
    with pytest.raises(ConfigError, match="best_of_n needs 'scorer'"):
        choices[0].bind()


def test_strategies_that_do_not_rank_have_no_scorer() -> None:
    args = parsed("--strategy", "majority")
    assert scorer_of(args, resolve_strategies(args)) is None
    with pytest.raises(ConfigError, match=r"--set scorer\.KEY needs --scorer"):
        scorer_of(parsed("--strategy", "majority", "--set", "scorer.noise=1"), [])


def test_thinking_sampling_and_budget_are_what_the_options_say() -> None:
    args = parsed(
        "--thinking", "on", "--max-thinking", "64", "--min-thinking", "8", "--waits", "1",
        "--temperature", "0.5", "--top-k", "4", "--max-tokens", "99", "--budget", "tokens=10,seconds=1.5",
    )  # fmt: skip
    assert resolve_thinking(args, args.settings) == Thinking("on", 64, 8, 1)
    assert resolve_sampling(args, Sampling(top_p=0.9)) == Sampling(0.5, 0.9, 4, 99)
    assert resolve_budget(args.budget) == Budget(tokens=10, seconds=1.5)
    assert resolve_budget(parsed().budget) is None
    assert resolve_thinking(parsed(), {}) == Thinking()


def test_a_budget_of_a_bare_number_is_refused_with_its_unit() -> None:
    with pytest.raises(ConfigError, match="write --budget tokens=60, or flops, seconds, calls"):
        resolve_budget("60")
    assert resolve_budget("tokens=60") == Budget(tokens=60)


def test_the_folder_of_a_training_run_is_refused_with_that_of_its_model(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"a tokenizer; name {tmp_path}/model$"):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match=r"a tokenizer$"):
        read_config(tmp_path / "model" / "deeper")


def test_sampling_by_set_is_refused_with_the_option_that_it_has() -> None:
    for name, value in (("max_tokens", "99"), ("temperature", "0.5"), ("top_k", "4"), ("seed", "3")):
        with pytest.raises(ConfigError, match=f"--set sampling.{name}: .*, write --") as refusal:
            resolve_strategies(parsed("--set", f"sampling.{name}={value}"))
        written = str(refusal.value).partition("write ")[2].split()
        assert str(getattr(parsed(*written), name)) == value


@pytest.mark.parametrize(("thinking", "reserve"), [(Thinking(), 0), (Thinking(max_tokens=9), 128)])
def test_a_default_cap_is_lowered_to_what_the_context_leaves(thinking: Thinking, reserve: int) -> None:
    engine = ScriptedEngine(lambda prompt, path, key: "x", max_context=200)
    problem = Problem("p", (Message("user", "q"),))
    used = len(engine.render(problem.messages, thinking.template).token_ids or ())
    assert fit_to_context(Sampling(), engine, problem, thinking).max_tokens == 200 - used - reserve
    assert fit_to_context(Sampling(max_tokens=7), engine, problem, thinking).max_tokens == 7
    long = Problem("p", (Message("user", "q" * 300),))
    assert fit_to_context(Sampling(), engine, long, thinking).max_tokens == 1
    if thinking.active:
        with pytest.raises(PromptTooLong, match=r"128 kept free .*, and 199 of thought fill the context of 200"):
            fit_to_context(Sampling(), engine, problem, Thinking(min_tokens=199))
