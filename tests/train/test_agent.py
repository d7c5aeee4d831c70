"""Agents in training: what a tool returned is not learnt, calls are counted and priced, the recipe learns to call."""

from __future__ import annotations

import asyncio
import json

import pytest

from evals.tasks.calculation import calculation as task
from tests.train.stages import make_stage, metrics_of
from train.base.rollout import Collector, Rollout, RolloutFile, read_rollouts
from train.environments.calculation import calculation
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_verifier
from train.rollouts.rewards import Rewarder, shaping_part
from train.update.batch import rollout_batch
from ttc.core import Sampling
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, UnknownName

SAMPLING = Sampling(temperature=1.0, max_tokens=80)


def caller(wrong_first: bool = False) -> ScriptedEngine:
    """Calls the calculator with what it was asked, says what it returned; `wrong_first` makes a bad call before."""

    def script(prompt, path, key):
        asked = prompt.messages[-1].content.rstrip("=")
        seen = prompt.generated_text
        if wrong_first and "<result>" not in seen:
            return "<calculator>?</calculator>"
        if not seen.endswith("</result>") or seen.count("<result>") < 1 + wrong_first:
            return f"<calculator>{asked}</calculator>"
        return seen.rpartition("<result>")[2].removesuffix("</result>")

    return ScriptedEngine(script)


def collect(engine: ScriptedEngine) -> list[Rollout]:
    world = calculation()
    collector = Collector(engine, strategy=world.strategy(3), sampling=SAMPLING, thinking=None, seed=1)
    rewarder = Rewarder(make_verifier(task()), [shaping_part(spec) for spec in world.shaping])

    async def go() -> list[Rollout]:
        return await rewarder.judge(await collector.collect(task(split="train").items(2, 0), 0), 0)

    return asyncio.run(go())


def test_only_what_the_model_said_is_trained() -> None:
    engine = caller()
    for rollout in collect(engine):
        masked = [token for token, sampled in zip(rollout.token_ids, rollout.sampled, strict=True) if not sampled]
        assert engine.decode(masked) == f"<result>{rollout.target}</result>"
        assert rollout.verdict.correct and rollout.text == rollout.target and not rollout.truncated
    rollouts = collect(engine)
    trained = rollout_batch(rollouts, pad_id=0).mask.sum(1).tolist()
    assert trained == [sum(rollout.sampled) for rollout in rollouts]


def test_calls_are_counted_and_priced_by_name() -> None:
    for rollout in collect(caller(wrong_first=True)):
        assert (rollout.calls, rollout.failed_calls) == (2, 1)
        assert rollout.parts == {"verifier": 1.0, "calls": 1.0, "failed_calls": 1.0}
        assert rollout.reward == pytest.approx(1 - 0.1 - 0.1)


def test_counts_survive_the_record_and_old_records_are_read(tmp_path) -> None:
    path = tmp_path / "rollouts.jsonl"
    file = RolloutFile(path)
    file.append(collect(caller()))
    file.close()
    assert {rollout.calls for rollout in read_rollouts(path)} == {1}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        del row["calls"], row["failed_calls"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {rollout.calls for rollout in read_rollouts(path)} == {0}


def test_what_cannot_work_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(UnknownName, match="calculation"):
        make_stage("agent", environment="calculaton", steps=1, lr=1e-3)
    with pytest.raises(ConfigError, match="n must be at least 2"):
        make_stage("agent", environment="calculation", steps=1, lr=1e-3, n=1)


@pytest.mark.slow
def test_the_recipe_learns_to_call_the_calculator(tmp_path) -> None:
    recipe = read_recipe("async-agentic", overrides={"agent.steps": "30", "agent.eval_every": "30"})
    _, result = run_recipe(recipe, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)
    assert result.metrics["held_out"] >= 0.9
    rows = metrics_of(tmp_path / "run" / "2-agent")
    assert max(row["staleness"] for row in rows) <= 2
    called = [rollout.calls for rollout in read_rollouts(tmp_path / "run" / "2-agent" / "rollouts.jsonl", 29)]
    assert sum(called) / len(called) > 0.9
