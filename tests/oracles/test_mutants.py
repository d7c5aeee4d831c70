"""The seeded defects are those of today's code: each still finds the text that it replaces."""

from __future__ import annotations

from tests.oracles.forks import ROOT
from tests.oracles.mutants import load


def test_every_seeded_defect_finds_its_text() -> None:
    stale = [mutant.name for mutant in load() if mutant.old not in (ROOT / mutant.file).read_text(encoding="utf-8")]
    assert load() and stale == []
