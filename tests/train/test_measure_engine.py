"""Where a stage measures and rolls out: the engine that its spec names, beside a model that is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from train.base.stage import Setting
from train.measure.measure import EXACT, held_out_gains, open_engine
from ttc.config.registry import ENGINES


def _supplied(monkeypatch: pytest.MonkeyPatch, device: str, engine: str) -> Mapping[str, Any]:
    """What the engine is given beside its spec, on a machine with 40 GB free on its GPU."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 << 30, 80 << 30))

    def create(self: Any, name: str, options: Mapping[str, Any], *, supply: Mapping[str, Any]) -> None:
        given.update(supply, **options)

    monkeypatch.setattr(type(ENGINES), "create", create)
    open_engine(Path("model"), Setting(Path("out"), None, 1, device, 1, print), engine)
    return given


def test_on_a_gpu_an_engine_leaves_the_trainer_three_quarters_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _supplied(monkeypatch, "cuda", EXACT)["kv_bytes"] == 10 << 30
    assert _supplied(monkeypatch, "cuda:1", "embedded:kv_bytes=3000")["kv_bytes"] == "3000"


def test_on_a_cpu_it_keeps_to_its_own_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "kv_bytes" not in _supplied(monkeypatch, "cpu", EXACT)


def test_gains_are_up_to_where_the_run_ended_and_not_up_to_where_a_lost_attempt_was(tmp_path: Path) -> None:
    path = tmp_path / "held_out.jsonl"
    steps = {0: [0, 0], 10: [1, 0], 20: [1, 1]}  # killed behind 20, resumed at 10, stopped by a health rule at 15
    lines = [json.dumps({"step": step, "right": right, "sampled": right}) for step, right in steps.items()]
    path.write_text("\n".join(lines) + "\n")
    assert held_out_gains(path, 1, 15)["held_out_after"] == 0.5
    assert held_out_gains(path, 1, 20)["held_out_after"] == 1.0


def test_variants_of_one_problem_weigh_as_one_in_gains(tmp_path: Path) -> None:
    path, lows = tmp_path / "held_out.jsonl", []
    for more in ({}, {"groups": [f"c{i // 25}" for i in range(100)]}):
        rows = [{"step": step, "right": [int(i < 60 * step) for i in range(100)], **more} for step in (0, 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        numbers = held_out_gains(path, 1, 1)
        assert numbers["held_out_gain"] == pytest.approx(0.6)
        lows.append(numbers["held_out_gain_low"])
    assert lows[0] > 0.4 > 0.2 > lows[1]
