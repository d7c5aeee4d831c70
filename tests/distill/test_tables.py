"""The tables of the documentation are those of the saved results."""

import json
from pathlib import Path

import pytest

from benchmarks.distill.table import tables
from benchmarks.pages import placed

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_documentation_are_made_from_the_saved_results():
    rows = json.loads((ROOT / "benchmarks" / "results" / "distill.json").read_text())["rows"]
    page = (ROOT / "docs" / "measured" / "distillation.md").read_text()
    assert page.count("<!-- table ") == len(tables(rows))
    assert placed(page, tables(rows)) == page


def test_a_table_takes_its_own_place_only_and_one_that_the_page_has_no_place_for_is_an_error():
    page = "a\n<!-- table one -->\nold\n<!-- end -->\nb\n<!-- table two -->\n<!-- end -->\n"
    new = "a\n<!-- table one -->\nI\n<!-- end -->\nb\n<!-- table two -->\nII\n<!-- end -->\n"
    assert placed(page, {"one": "I", "two": "II"}) == new
    assert placed(new, {"one": "1"}) == new.replace("\nI\n", "\n1\n")
    with pytest.raises(KeyError, match="three"):
        placed(page, {"three": "III"})
