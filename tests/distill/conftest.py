"""Models that the tests of this package share, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distill.models import make_model
from tests.once import made_once


@pytest.fixture(scope="session")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher that always walks, and mostly rightly."""
    return made_once(tmp_path_factory, "walker", lambda folder: make_model(folder, share=1.0, steps=200, hidden=48))


@pytest.fixture(scope="session")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student that walks now and then."""
    return made_once(tmp_path_factory, "guesser", lambda folder: make_model(folder, share=0.4, steps=100, seed=1))
