"""What the tests of training share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.once import made_once
from tests.train.cipher_base import make_base
from train.nano import tokenizer


@pytest.fixture(scope="session")
def nano() -> Any:
    """The family's tokenizer."""
    return tokenizer.build()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a base model after twenty updates, made once; only read."""
    return made_once(tmp_path_factory, "base", lambda folder: make_base(folder, steps=20))


@pytest.fixture(scope="session")
def cipher_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a base model for the cipher walk, made once."""
    return made_once(tmp_path_factory, "cipher", make_base)
