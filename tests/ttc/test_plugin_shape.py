"""What is registered has the shape of its registry; what has not is refused when it is named, or when it is made."""

from __future__ import annotations

import functools
import pathlib
import re

import pytest

from tests.ttc import bad_plugins
from ttc.commands.list import REGISTRIES, find_registry
from ttc.config.choices import PartChoice
from ttc.config.plugins import PluginShape, is_async
from ttc.config.registry import ENGINES, POLICIES, SCORERS, STRATEGIES, VERIFIERS, Registry, plugins
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, MissingExtra
from ttc.search.tree import make_policy

FILE = str(pathlib.Path(bad_plugins.__file__))


@pytest.mark.parametrize("what", sorted(plugins(REGISTRIES)))
def test_every_function_that_comes_with_the_toolkit_has_the_shape_of_its_registry(what: str) -> None:
    registry = find_registry(what)
    for name in registry.names():
        try:
            function = registry.load(name)
        except MissingExtra:
            continue
        registry.shape.check_function(f"{registry.kind} {name}", function)


@pytest.mark.parametrize(
    ("registry", "names"),
    [
        (POLICIES, POLICIES.names()),
        (VERIFIERS, ("math", "exact", "choice", "regex", "format")),
        (SCORERS, ("constant", "simulated", "judge", "ensemble")),
        (ENGINES, ("simulated",)),
    ],
    ids=lambda value: value.kind if isinstance(value, Registry) else "",
)
def test_what_the_toolkits_own_factories_make_has_the_shape_too(registry: Registry, names: tuple[str, ...]) -> None:
    for name in names:
        params = {"members": ("constant",)} if name == "ensemble" else {}
        supply = {"beam_width": 2, "engine": ScriptedEngine(lambda prompt, path, key: "")}
        assert registry.create(name, params, supply=supply) is not None


@pytest.mark.parametrize(
    ("registry", "function", "message"),
    [
        (STRATEGIES, "not_async", "is not an async function: write async def not_async(problem, session, *, ...) -> A"),
        (STRATEGIES, "yields", "is not an async function"),
        (STRATEGIES, "no_arguments", "takes nothing, and is given problem, session: write async def no_arguments("),
        (STRATEGIES, "one_too_many", "takes extra, which nothing gives it: write async def one_too_many(problem, sess"),
        (STRATEGIES, "Constant", "is not an async function"),
        (
            SCORERS,
            "plain",
            "takes text, which nothing gives it: write def plain(model=None, *, ...) -> Scorer; a Scorer",
        ),
        (SCORERS, "asynchronous", "is an async function, which a factory is not: write def asynchronous(model=None"),
        (SCORERS, "good", "is an async function, which a factory is not"),
        (POLICIES, "plain", "takes text, which nothing gives it: write def plain(*, ...) -> Policy | Resampler | Sea"),
    ],
)
def test_a_function_of_another_shape_is_refused_when_it_is_named(
    registry: Registry, function: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{registry.kind} {FILE}:{function} {message}")):
        registry.load(f"{FILE}:{function}")


def test_a_name_that_is_no_function_is_unknown_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown strategy in .*'a_number'.*good"):
        STRATEGIES.load(f"{FILE}:a_number")


@pytest.mark.parametrize("strategy", ["good", "raises", "returns_text"])
def test_a_function_of_the_right_shape_is_loaded_whatever_it_does(strategy: str) -> None:
    assert STRATEGIES.load(f"{FILE}:{strategy}").__name__ == strategy


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "unreleased",
            "made a value of type Unreleased, not a Scorer: it lacks async def score(self, prompts, on_usage) and def ",
        ),
        ("nothing", "made nothing, not a Scorer: it lacks async def score(self, prompts, on_usage) and def release"),
    ],
)
def test_a_scorer_that_lacks_a_method_is_refused_when_it_is_made_by_the_method_and_how_it_is_written(
    function: str, message: str
) -> None:
    name = f"{FILE}:{function}"
    choice = PartChoice("scorer", name, None, SCORERS.load(name), {})
    with pytest.raises(ConfigError, match=re.escape(f"scorer {name} {message}")):
        choice.create_scorer(ScriptedEngine(lambda prompt, path, key: ""))


def test_of_several_protocols_the_nearest_says_what_is_missing() -> None:
    with pytest.raises(
        ConfigError, match=r"made a value of type Half, not a Policy: it lacks def allocate\(self, scores, width\)"
    ):
        make_policy(f"{FILE}:half", 4)


def test_a_product_may_be_described_by_a_class_or_by_a_callable() -> None:
    by_class = PluginShape(("ttc.core:Score",))
    with pytest.raises(ConfigError, match=r"x made a value of type int, not a Score: return Score\(...\)"):
        by_class.check_product("x", 1)
    by_call = PluginShape(("ttc.search.tree:Dice",))
    by_call.check_product("x", lambda index: 0.5)
    with pytest.raises(ConfigError, match=r"x made a value of type function, not a Dice: return a function of \(int\)"):
        by_call.check_product("x", lambda: 0.5)


def test_a_partial_a_wrapper_and_an_object_are_seen_through() -> None:
    class Strategy:
        async def __call__(self, problem, session):  # type: ignore[no-untyped-def]
            return None

    @functools.wraps(bad_plugins.good)
    def wrapped(*args: object, **kwargs: object) -> object:
        return bad_plugins.good(*args, **kwargs)

    for function in (functools.partial(bad_plugins.good, n=2), Strategy(), wrapped):
        assert is_async(function)
        STRATEGIES.shape.check_function("x", function)
    assert not is_async(Strategy)
