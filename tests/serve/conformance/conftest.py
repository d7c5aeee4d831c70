"""Clients of others against a real server: the one at TTC_SERVE_URL, else one that is started here.

`make conformance` runs each file in an environment of its own, where only the client is installed; so nothing of this
repository is imported unless a server must be started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Where the packaged model is served as `nano-teacher`, without /v1."""
    given = os.environ.get("TTC_SERVE_URL")
    if given:
        yield given
        return
    from tests.serve.running import running, served
    from ttc.engines.embedded.engine import embedded
    from ttc.scorers.prm import prm

    with running(served(embedded(), "nano-teacher", scorers={"prm": prm()})) as server:
        yield server.url


@pytest.fixture(scope="session")
def tokenizer() -> str:
    """The folder with the tokenizer of the packaged model."""
    folder = os.environ.get("TTC_SERVE_TOKENIZER")
    if folder:
        return folder
    from ttc import nano

    return str(nano.path("teacher"))
