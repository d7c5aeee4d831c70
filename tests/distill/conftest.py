"""Models that the tests of this package share, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distill.models import make_model


@pytest.fixture(scope="session")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher that always walks, and mostly rightly."""
    return make_model(tmp_path_factory.mktemp("walker"), share=1.0, steps=200, hidden=48)


@pytest.fixture(scope="session")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student that walks now and then."""
    return make_model(tmp_path_factory.mktemp("guesser"), share=0.4, steps=100, seed=1)
