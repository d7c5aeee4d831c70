"""What every test stands on: one compute thread, no network, and the local data folder where there is one."""

from __future__ import annotations

import os
import pathlib
import signal

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

# How long an example takes on a busy machine says nothing about the code; bounds on time have tests of their own.
hypothesis.settings.register_profile("ttc", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ttc")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with interrupts ignored, and children inherit it: the programs that tests interrupt
    # would never notice. A handler of ours becomes the default action in them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of local datasets; the test is skipped without it."""
    folder = os.environ.get("TTC_DATA")
    if folder is None:
        pytest.skip("set TTC_DATA to the folder of local datasets")
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The root of the checkout."""
    return pathlib.Path(__file__).parents[1]
