"""What a reader must open stays little: closures, rings, names. The measures are those of `benchmarks.house`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import house

ROOT = Path(__file__).parents[1]
MAX_FILES = {"tree": 23, "grpo": 70, "distillation job": 90, "endpoint": 70}
MAX_EXECUTED = 90
MAX_FLAT = 45
MAX_PARTICIPLES = 0.01
SAME_NAME: dict[str, str] = {}
"""Public class name -> why more than one file may define it."""


@pytest.mark.parametrize("entry", house.ENTRIES)
def test_a_reader_of_an_entry_opens_few_files(entry: str) -> None:
    files = house.closure(house.imports(house.modules(ROOT)), house.ENTRIES[entry])
    assert len(files) <= MAX_FILES[entry], sorted(files)


@pytest.mark.long
def test_an_evaluation_of_the_tree_executes_few_files() -> None:
    files = house.executed(ROOT)
    assert len(files) <= MAX_EXECUTED, sorted(files)


def test_no_folder_imports_one_that_imports_it() -> None:
    assert house.rings(house.between_folders(house.modules(ROOT))) == []


def test_few_modules_lie_flat_in_the_roots() -> None:
    assert len(house.flat_modules(house.modules(ROOT))) <= MAX_FLAT


def test_a_public_class_name_means_one_thing() -> None:
    shared = house.shared_class_names(house.modules(ROOT))
    assert shared.keys() == SAME_NAME.keys(), {name: shared[name] for name in shared.keys() - SAME_NAME.keys()}


def test_local_names_are_nouns() -> None:
    counts = house.local_names(house.modules(ROOT))
    participles = {word: counts[word] for word in house.PARTICIPLES if counts[word]}
    assert house.participles(counts) < MAX_PARTICIPLES, f"name a new local variable by a noun, none of {participles}"


@pytest.mark.parametrize(
    ("graph", "rings"),
    [
        ({"a": {"b"}, "b": {"c"}}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
    ],
)
def test_a_ring_is_a_group_in_which_each_reaches_the_others(graph: house.Graph, rings: list[list[str]]) -> None:
    assert house.rings(graph) == rings


_PLURAL = re.compile(r" (?:rows|steps|problems|pairs|updates|rollouts|stages|requests)\b")


def _bare_plurals(package: str) -> Iterator[str]:
    """Where an f-string puts a plural behind a value, which may be 1."""
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            for value, text in pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
                if not isinstance(value, ast.Constant) and isinstance(text, ast.Constant) and _PLURAL.match(text.value):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}"


@pytest.mark.parametrize("package", ["train", "distill", "serve"])
def test_numbers_in_messages_have_their_nouns_from_counted(package: str) -> None:
    assert list(_bare_plurals(package)) == []
