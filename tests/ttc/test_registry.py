from __future__ import annotations

import functools
import importlib
import pathlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest

from ttc.cli.cli import main
from ttc.config.choices import PartChoice
from ttc.config.plugins import PluginShape
from ttc.config.registry import ENGINES, POLICIES, SCORERS, STRATEGIES, VERIFIERS, Registry, plugins
from ttc.config.signatures import bind, describe
from ttc.errors import ConfigError, PluginError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Sized as Unknown

ALL = [STRATEGIES, ENGINES, SCORERS, VERIFIERS, POLICIES]


async def example(
    problem: str, session: str, *, scorer: Unknown, n: int = 4, how: Literal["a", "b"] = "a", t: float | None = None
) -> None:
    """Do something.

    Args:
        n: how many,
            at least one.
        t: temperature; see `x: y`.
        how (str): which way.

    Raises:
        ConfigError: n < 1.
    """


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    folder = tmp_path / "shapes_for_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('listing must not import')\n")
    (folder / "circle.py").write_text('"""Round."""\ndef circle(model=None, *, radius: int = 1): return radius\n')
    (folder / "helpers.py").write_text("def helper(): ...\n")
    (folder / "_hidden.py").write_text("def _hidden(): ...\n")
    (folder / "boxes").mkdir()
    (folder / "boxes" / "__init__.py").write_text("from shapes_for_tests.boxes.core import boxes\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return Registry("shape", "shapes_for_tests", "no.such.group", PluginShape(("builtins:int",), supplied=("model",)))


def test_a_file_is_registered_by_a_function_of_its_own_name_and_listing_imports_nothing(package: Registry) -> None:
    assert package.names() == ("boxes", "circle")
    assert "shapes_for_tests" not in sys.modules


@pytest.mark.parametrize("registry", ALL, ids=lambda registry: registry.kind)
def test_every_registered_name_loads_and_describes_itself(registry: Registry) -> None:
    for name in registry.names():
        assert callable(registry.load(name))
        description = registry.describe(name)
        assert description.doc, f"{name} has no documentation"
        undocumented = [parameter.name for parameter in description.parameters if not parameter.doc]
        assert not undocumented, f"{registry.kind} {name}: document {undocumented} in its Args section"


def test_hyphens_count_as_underscores() -> None:
    assert STRATEGIES.load("best-of-n") is STRATEGIES.load("best_of_n")


def test_an_unknown_name_carries_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown strategy 'majorty'; did you mean 'majority'") as caught:
        STRATEGIES.load("majorty")
    assert caught.value.nearest == "majority"


def test_a_function_in_a_file_is_loaded_by_path(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def my_strategy(problem, session, *, n: int = 2):\n    'Mine.'\n")
    found = STRATEGIES.load(f"{file}:my_strategy")
    assert found.__name__ == "my_strategy"
    assert STRATEGIES.describe(f"{file}:my_strategy").parameters[0].default == 2


@pytest.mark.parametrize(
    ("source", "function", "error", "message"),
    [
        (None, "f", ConfigError, "does not exist"),
        ("1/0", "f", ConfigError, "failed to import: ZeroDivisionError"),
        ("def good(): ...", "god", UnknownName, "unknown strategy in .*'god'; did you mean 'good'"),
    ],
)
def test_a_bad_file_is_named(
    tmp_path: pathlib.Path, source: str | None, function: str, error: type[Exception], message: str
) -> None:
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(error, match=message):
        STRATEGIES.load(f"{file}:{function}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "scorer file '.*mine.py' does not exist"),
        ("1/0", "scorer file '.*' is named without its function: .*mine.py:FUNCTION$"),
        ("def _a(): ...\ndef b(): ...\nasync def c(): ...\n1/0", r"function: \S*mine.py:b or \S*mine.py:c$"),
    ],
)
def test_a_file_without_its_function_is_told_which_there_are(
    tmp_path: pathlib.Path, source: str | None, message: str
) -> None:
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source)
    for spec in (str(file), f"{file}:"):
        with pytest.raises(ConfigError, match=message):
            SCORERS.load(spec)
        with pytest.raises(ConfigError, match=message):
            PartChoice.of(SCORERS, spec, {})


def test_a_description_reads_the_signature_and_the_docstring() -> None:
    description = describe("strategy", "example", example)
    assert description.doc == "Do something."
    assert not description.takes_model
    assert [p.to_json() for p in description.parameters] == [
        {"name": "scorer", "type": "Unknown", "required": True, "default": None, "doc": ""},
        {"name": "n", "type": "int", "required": False, "default": 4, "doc": "how many, at least one."},
        {"name": "how", "type": "'a' | 'b'", "required": False, "default": "a", "doc": "which way."},
        {"name": "t", "type": "float | None", "required": False, "default": None, "doc": "temperature; see `x: y`."},
    ]


def test_a_partial_is_described_and_bound_by_the_annotations_of_what_it_wraps() -> None:
    part = functools.partial(example, "a problem", n=2)
    part.__name__ = "part"  # type: ignore[attr-defined]
    assert bind(part, {"t": "0.5", "how": "b"}, supply={"session": "", "scorer": 1})["t"] == 0.5
    with pytest.raises(ConfigError, match=r"how.*a, b"):
        bind(part, {"how": "c"}, supply={"session": "", "scorer": 1})


def test_binding_parses_text_and_supplies_what_is_asked_for() -> None:
    scorer = object()
    bound = bind(example, {"n": "8", "how": "b", "t": "none"}, supply={"scorer": scorer, "engine": None})
    assert bound == {"n": 8, "how": "b", "t": None, "scorer": scorer}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hw": "a"}, "example has no parameter 'hw'; did you mean 'how'.*it takes: n, how, t"),
        ({"how": "c"}, "example: how must be one of a, b, got 'c'"),
        ({"n": "2.5"}, "example: n must be int, got '2.5'"),
        ({"scorer": "prm"}, "example has no parameter 'scorer'"),
        ({"problem": "p"}, "example has no parameter 'problem'"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bind(example, params, supply={"scorer": None})


def test_a_required_parameter_that_is_not_given_is_named() -> None:
    with pytest.raises(ConfigError, match=r"example needs 'scorer' \(Unknown\)"):
        bind(example, {}, supply={})


def test_a_bare_checkout_finds_its_commands_in_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = plugins("ttc.commands")
    monkeypatch.setattr("ttc.config.registry.DISTRIBUTION", "no-such-distribution")
    monkeypatch.setattr("ttc.config.registry._installed", lambda group, folders: ())
    bare = plugins("ttc.commands")
    assert {name: entry.value for name, entry in bare.items()} == {
        name: entry.value for name, entry in installed.items()
    }


def test_a_distribution_that_is_installed_meanwhile_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = plugins("ttc.strategies")
    info = tmp_path / "acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ttc.strategies]\nacme = acme:acme\n")
    assert plugins("ttc.strategies").keys() - before.keys() == {"acme"}


@pytest.mark.parametrize(
    ("value", "reason"),
    {
        "a module that is not there": ("absent_acme:acme", "No module named 'absent_acme'"),
        "a name that is not there": ("acme_parts:other", "has no attribute 'other'"),
        "a module that fails": ("acme_fails:acme", "name 'nowhere' is not defined"),
    }.values(),
    ids=lambda text: text,
)
def test_a_plug_in_that_cannot_be_imported_is_named_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], value: str, reason: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme_parts.py").write_text("")
    (tmp_path / "acme_fails.py").write_text("nowhere\n")
    (tmp_path / "acme-1.dist-info").mkdir()
    (tmp_path / "acme-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (tmp_path / "acme-1.dist-info" / "entry_points.txt").write_text(f"[ttc.verifiers]\nacme = {value}\n")
    with pytest.raises(PluginError, match=rf"verifier 'acme' of distribution acme .*{reason}.*uninstall acme"):
        VERIFIERS.load("acme")
    assert main(["list", "verifiers"]) == 0
    listing = capsys.readouterr().out
    assert f"unavailable: verifier 'acme' of distribution acme ({value})" in listing and "\nexact\n" in listing


def test_a_parameter_without_annotation_has_the_type_of_its_default() -> None:
    def loose(*, n=4, scorer): ...

    assert bind(loose, {"n": "8"}, supply={"scorer": None})["n"] == 8
    with pytest.raises(ConfigError, match="n must be int, got 'x'"):
        bind(loose, {"n": "x"}, supply={"scorer": None})


def test_a_class_serves_as_a_factory() -> None:
    class Factory:
        """Make something."""

        def __init__(self, model: str | None = None, *, size: int = 3) -> None:
            self.size = size

    assert bind(Factory, {"size": "5"}, supply={}) == {"size": 5}
    assert describe("engine", "Factory", Factory).takes_model


@dataclass(frozen=True)
class _Update:
    clip: float = 0.2
    steps: int = 1


def _stage(*, name: str = "a", update: _Update = _Update()) -> tuple[str, _Update]:
    return name, update


def test_a_dataclass_among_the_parameters_is_read_from_a_table() -> None:
    bound = bind(_stage, {"name": "b", "update": {"clip": "0.1"}}, supply={})
    assert _stage(**bound) == ("b", _Update(0.1))
    with pytest.raises(ConfigError, match=r"unknown key '_stage: update\.clp'; did you mean 'clip'"):
        bind(_stage, {"update": {"clp": 1}}, supply={})
