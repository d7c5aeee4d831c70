"""What tests of evaluations share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def without_matplotlib() -> Iterator[None]:
    """As where it is not installed: figures cost most of a short run, and such tests look at none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        yield
