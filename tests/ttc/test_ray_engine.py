"""One evaluation over engines on several Ray nodes: shards, losses, options. All nodes are on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ttc.questions import ask
from tests.ttc.stepping_engine import stepping
from ttc.config.choices import PartChoice
from ttc.config.registry import ENGINES
from ttc.core import Answer, Engine, Sampling, Usage
from ttc.errors import ConfigError
from ttc.session.solve import solve_all
from ttc.strategies.majority import majority

ROOT = Path(__file__).parents[2]
INNER = f"{ROOT / 'tests' / 'ttc' / 'stepping_engine.py'}:stepping"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"inner": "vllm", "tensor_paralel_size": "2"}, "did you mean 'tensor_parallel_size'"),
        ({"inner": "vllm", "gpu_memory_utilization": "much"}, "gpu_memory_utilization must be float"),
        ({"inner": "vllm", "tensor_parallel_size": "4", "gpus": "1"}, "set gpus=4"),
        ({"inner": "embedded", "tensor_parallel_size": "2"}, "embedded has no parameter 'tensor_parallel_size'"),
        ({"workers": "0"}, "workers must be at least 1"),
    ],
)
def test_options_of_the_engine_in_each_actor_are_checked_before_anything_starts(
    params: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        PartChoice.of(ENGINES, "ray_workers", params)


def test_tensor_parallel_memory_share_and_context_reach_the_engine_in_the_actor() -> None:
    options = {"tensor_parallel_size": "2", "gpu_memory_utilization": "0.8", "max_context": "4096"}
    choice = PartChoice.of(ENGINES, "ray_workers", {"inner": "vllm", "gpus": "2", **options})
    assert {name: choice.params[name] for name in options} == options


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one processor each, on this machine."""
    pytest.importorskip("ray", reason="needs ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(**node)
    before, os.environ["RAY_ADDRESS"] = os.environ.get("RAY_ADDRESS"), nodes.address
    yield nodes
    os.environ.pop("RAY_ADDRESS")
    if before is not None:
        os.environ["RAY_ADDRESS"] = before
    nodes.shutdown()


async def answers_of(engine: Engine, number: int) -> tuple[dict[str, Answer], float]:
    """Votes over four draws of so many problems, and the seconds they took."""
    problems, began = [ask(f"{i}+1") for i in range(number)], time.perf_counter()
    run = solve_all(
        problems,
        engine=engine,
        strategy=partial(majority, n=4),
        seed=5,
        sampling=Sampling(max_tokens=64),
        concurrency=64,
    )
    answers = {problem.id: answer async for problem, answer in run}
    return answers, time.perf_counter() - began  # type: ignore[return-value]


def essence(answers: dict[str, Answer]) -> dict[str, Any]:
    return {name: (a.final, a.text, a.candidates, a.usage) for name, a in sorted(answers.items())}


async def over(workers: int, number: int, delay: float) -> tuple[dict[str, Answer], float, Usage]:
    from ttc.engines.ray_workers.engine import ray_workers

    engine = ray_workers(None, inner=INNER, workers=workers, delay=str(delay))
    try:
        await answers_of(engine, 2)
        return *(await answers_of(engine, number)), engine.counters()
    finally:
        await engine.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_actors_on_two_nodes_do_nearly_twice_the_work_of_one_with_the_same_answers_and_ledger(cluster: Any) -> None:
    alone, _ = asyncio.run(answers_of(stepping(), 16))
    one, one_s, one_total = asyncio.run(over(1, 16, 0.05))
    two, two_s, two_total = asyncio.run(over(2, 16, 0.05))
    sys.stderr.write(f"one actor {one_s:.2f} s, two {two_s:.2f} s: {one_s / two_s:.2f}\n")
    assert essence(alone) == essence(one) == essence(two)
    assert one_total == two_total
    assert one_s / two_s >= 1.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_is_lost_changes_no_answer_and_no_ledger_of_a_run(cluster: Any, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ttc",
        "eval",
        "--limit",
        "24",
        "--strategy",
        "majority",
        "--n",
        "4",
        "--seed",
        "3",
    ]
    command += ["--baseline", "none", "--concurrency", "4", "--max-tokens", "64"]
    subprocess.run([*command, "--engine", INNER, "--out", str(tmp_path / "alone")], cwd=ROOT, check=True)
    actors = ["--engine", "ray_workers", "--set", f"engine.inner={INNER}", "--set", "engine.workers=2"]
    actors += ["--set", "engine.delay=0.1", "--out", str(tmp_path / "actors")]
    running = subprocess.Popen([*command, *actors], cwd=ROOT)
    file = tmp_path / "actors" / "records.jsonl"
    while running.poll() is None and len(lines(file)) < 4:
        time.sleep(0.1)
    assert 4 <= len(lines(file)) < 24
    cluster.remove_node(busy(cluster))
    assert running.wait(timeout=300) == 0
    assert outcomes(tmp_path / "actors") == outcomes(tmp_path / "alone")


def busy(cluster: Any) -> Any:
    """A node, not the first, on which an actor runs."""
    import ray
    from ray._private.state import available_resources_per_node

    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        free = available_resources_per_node()
    finally:
        ray.shutdown()
    return next(node for node in cluster.list_all_nodes()[1:] if free[node.node_id].get("CPU", 0) < 1)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def outcomes(folder: Path) -> dict[str, Any]:
    """What each problem came to, without seconds."""
    records = [json.loads(line) for line in lines(folder / "records.jsonl")]
    answers = {record["problem"]["id"]: record["answer"] for record in records}
    for answer in answers.values():
        answer.pop("seconds")
    return answers
