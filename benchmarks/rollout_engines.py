r"""The same GRPO run with rollouts from the embedded engine, from vLLM in process, and from a vLLM server.

    python -m benchmarks.rollout_engines --out runs/engines --server http://127.0.0.1:8000/v1 [--only server]
    VLLM_SERVER_DEV_MODE=1 vllm serve ttc/nano/teacher --dtype float32 --max-model-len 512 \
        --worker-extension-cls ttc.engines.vllm.weights.WeightLoader      (on a CPU: --block-size 32 --enforce-eager
        --no-enable-chunked-prefill)

A few updates of the packaged teacher on sums that it sometimes gets wrong, from the same seed. A row has the number of
updates with differing rewards, the change of the weights, the difference between engine and trainer right after each
push (`parity`) and over the sampled tokens (`mismatch`), in nats, and the mean reward of each step. `stale` is the
parity without a push: what the probe would have measured. Run again, it adds the missing rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.base.models import load_model
from train.base.stage import Setting
from train.measure.measure import open_engine
from train.registries import STAGES
from train.rollouts.sync import Syncer
from ttc import nano
from ttc.config.signatures import call
from ttc.errors import TrainingError

IN_PROCESS = "dtype=float32,max_context=512,max_num_seqs=32,kv_cache_bytes=268435456"
PROBE = (tuple(range(60, 90)), tuple(range(100, 130)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has no row yet; 1 where a run had no update."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--server", help="base URL of a vLLM server of the packaged teacher, or several")
    parser.add_argument("--only", nargs="*", help="embedded, vllm or server")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save", type=Path, help="rows as JSON lines")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    engines = {"embedded": "embedded:dtype=float32,batch_invariant=true", "vllm": f"vllm:{IN_PROCESS}"}
    if options.server:
        engines["server"] = f"vllm:dtype=float32,base_url={options.server}"
    file = options.save or options.out / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for name, engine in engines.items():
        if name in (options.only or engines) and name not in {row["engine"] for row in rows}:
            rows.append(one(name, engine, options.out / name, options.steps))
            with file.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    return int(any(not row["updates"] for row in rows))


def one(name: str, engine: str, folder: Path, steps: int) -> dict[str, Any]:
    """A row."""
    folder.mkdir(parents=True, exist_ok=True)
    teacher = nano.path("teacher")
    setting = Setting(folder, teacher, 1, "cpu", 1, lambda text: None)
    fields = {
        "task": "arithmetic:level=2,split=train,wording=spaced", "held_out": "arithmetic:level=2,wording=spaced",
        "engine": engine, "steps": steps, "prompts": 4, "n": 6, "lr": 2e-4, "max_tokens": 96, "train_limit": 400,
        "held_out_limit": 8, "eval_every": steps, "save_every": steps,
    }  # fmt: skip
    began = time.process_time()
    stage = call(STAGES.load("grpo"), fields, supply={})
    stage.check(True)
    result = stage.run(setting)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before, after = load_model(teacher, "cpu"), load_model(Path(result.model), "cpu")
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return {
        "engine": name,
        "steps": len(metrics),
        "updates": sum(1 for row in metrics if row.get("grad_norm", 0) > 0),
        "moved": max((a - b).abs().max().item() for a, b in pairs),
        "parity": max(row["parity"] for row in metrics),
        "mismatch": max(row.get("mismatch", 0.0) for row in metrics),
        "stale": asyncio.run(stale(engine, after, setting)),
        "rewards": [round(row["reward"], 3) for row in metrics],
        "reward_std": [round(row["reward_std"], 3) for row in metrics],
        "cpu_s": round(time.process_time() - began),
    }


async def stale(spec: str, model: Any, setting: Setting) -> float:
    """By how many nats an engine that holds the teacher's weights differs from the trained model."""
    engine = open_engine(nano.path("teacher"), setting, spec)
    try:
        await Syncer(engine, load_model(nano.path("teacher"), "cpu"), limit=1e-3).push()
        return await Syncer(engine, model, limit=float("inf")).probe(PROBE)
    except TrainingError as exc:
        raise SystemExit(str(exc)) from exc
    finally:
        await engine.close()


if __name__ == "__main__":
    sys.exit(main())
