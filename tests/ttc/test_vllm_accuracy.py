"""Every strategy is as accurate on vLLM as on the embedded engine."""

from __future__ import annotations

import asyncio

import pytest

from tests.ttc import conformance as suite

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_every_strategy_is_as_accurate_as_on_the_embedded_engine() -> None:
    from benchmarks.vllm_accuracy import measure

    rows = asyncio.run(measure(suite.cases("embedded"), problems=40, level=3, seed=11))
    assert {row["strategy"] for row in rows} == set(suite.cases("embedded"))
    assert max(row["embedded"] for row in rows) > 0.7  # hard enough to differ, easy enough to tell
    for row in rows:
        assert row["p_adjusted"] > 0.05, row
