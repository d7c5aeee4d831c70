"""What every test stands on: one compute thread, no network, and the local data folder where there is one."""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# Servers of tests speak plain HTTP: a client need not read the certificates of this machine, 30 ms of a core each time.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(pathlib.Path(__file__).parent)

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


@pytest.fixture(scope="session")
def sandboxed() -> None:
    """Skips the test where no sandbox works."""
    from ttc.errors import ConfigError
    from ttc.sandbox.probe import probe

    try:
        probe()
    except ConfigError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def without_matplotlib() -> Iterator[None]:
    """As where it is not installed: figures cost most of a short run, and such tests look at none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        yield


def pytest_collection_finish() -> None:
    """Collected tests and imported modules live to the end: Python's collector need not walk them again and again.

    Its default thresholds, at which it runs often, are for programs that are short of memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@functools.cache
def rows_are_alike() -> bool:
    """Whether torch alone, on this machine as it is set, gives a row of a product the same bits in any padded batch."""
    import torch

    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(128, 128, generator=draw), torch.randn(128, 128, generator=draw)
    whole, same = x @ w.T, (x[:1].repeat(32, 1)) @ w.T
    if not torch.equal(same, same[:1].repeat(32, 1)):
        return False
    return all(torch.equal(x[:rows] @ w.T, whole[:rows]) for rows in range(16, 129, 16))


def _skip_without_alike_rows() -> Iterator[None]:
    from ttc.errors import EngineError

    try:
        yield
    except EngineError as error:
        # The mode is refused for what the kernels do, measured here without the engine's code: a defect of ours fails.
        if "batch_invariant=True cannot be honoured" in str(error) and not rows_are_alike():
            pytest.skip(f"the matrix kernels of this machine, as it is set: {error}")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip what the machine refuses."""
    yield from _skip_without_alike_rows()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip what the machine refuses."""
    yield from _skip_without_alike_rows()
