"""What the tests of the packaged family share."""

from __future__ import annotations

from typing import Any

import pytest

from train.nano import tokenizer


@pytest.fixture(scope="session")
def nano() -> Any:
    """The family's tokenizer."""
    return tokenizer.build()
