"""The public names of the package."""

from __future__ import annotations

import ast
import asyncio
import functools
import pathlib
import pkgutil
import tomllib

import pytest

import ttc


def test_public_names_are_sorted_constants_then_classes_then_functions() -> None:
    groups = [
        sorted(name for name in ttc.__all__ if name.isupper()),
        sorted(name for name in ttc.__all__ if not name.isupper() and name[0].isupper()),
        sorted(name for name in ttc.__all__ if name[0].islower()),
    ]
    assert ttc.__all__ == [name for group in groups for name in group]


@pytest.mark.parametrize("name", ttc.__all__)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    found = getattr(ttc, name)
    assert found.__doc__


def test_every_public_name_is_known_to_type_checkers() -> None:
    tree = ast.parse(pathlib.Path(ttc.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(ttc.__all__)


def test_dir_shows_the_public_names() -> None:
    assert set(ttc.__all__) <= set(dir(ttc))


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sampler'"):
        _ = ttc.Sampler  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_distribution() -> None:
    pyproject = pathlib.Path(ttc.__file__).parents[1] / "pyproject.toml"
    assert ttc.__version__ == tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["version"]


def test_the_example_of_the_package_runs_with_the_simulated_engine() -> None:
    answer = ttc.run("12+30*2", engine="simulated", strategy="majority", n=8, seed=1)
    assert answer.final
    assert answer.usage.calls == 8
    engine, majority = ttc.ENGINES.load("simulated")(), functools.partial(ttc.STRATEGIES.load("majority"), n=8)
    assert ttc.run("12+30*2", engine=engine, strategy=majority, seed=1).final == answer.final


def test_the_door_opens_in_a_running_loop_as_notebooks_have_one() -> None:
    async def cell() -> tuple[ttc.Answer, ttc.Answer]:
        waited = await ttc.arun("12+30*2", engine="simulated", strategy="majority", n=8, seed=1)
        return waited, ttc.run("12+30*2", engine="simulated", strategy="majority", n=8, seed=1)

    waited, blocked = asyncio.run(cell())
    assert waited.candidates == blocked.candidates and len(waited.candidates) == 8


def test_without_a_seed_every_call_draws_anew() -> None:
    first, second = (ttc.run("12+30*2", engine="simulated", strategy="majority", n=32) for _ in range(2))
    assert first.candidates != second.candidates


def test_the_door_refuses_a_parameter_by_name() -> None:
    with pytest.raises(ttc.TTCError, match="majority has no parameter 'm'"):
        ttc.run("1+1", engine="simulated", strategy="majority", params={"m": 2}, seed=1)
    with pytest.raises(ttc.TTCError, match="best_of_n needs 'scorer'"):
        ttc.run("1+1", engine="simulated", strategy="best_of_n", n=2, seed=1)


def test_no_public_name_is_also_a_module() -> None:
    """Importing the module would replace the name."""
    modules = {info.name for info in pkgutil.iter_modules(ttc.__path__)}
    assert not modules & set(ttc.__all__)
