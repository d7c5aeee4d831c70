"""A trained process reward model gives the steps of rollouts rewards of their own, and GRPO learns from them."""

import asyncio
import json
import math
import shutil

import pytest
import torch

from tests.train.stages import make_stage, setting
from train.base.models import Shape, new_model, save_model
from train.base.rollout import Rollout, has_signal
from train.corpora.chain import chain
from train.reward_models.reward_models import last_hidden
from train.reward_models.step_model import StepRow, load_process, new_step_model
from train.rl.loop import outcome_of
from train.rollouts.rewards import Rewarder
from ttc.core import Verdict
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

FIELDS = {"task": "chain:length=2,split=train,count=20", "held_out": "chain:length=2,count=10", "steps": 1, "lr": 1e-3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a policy that is random, and a process reward model that was trained for a moment."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer = chain(length=2).tokenizer()
    save_model(new_model(Shape(32, 1, 2, 1, 16, 64), tokenizer, 0), tokenizer, folder / "1-base" / "model")
    rows = [
        {
            "id": n,
            "problem": f"{n % 10}a+1b+2=",
            "steps": [f"<think>a{n % 10}+1={n % 7}", "b2+2=4"],
            "labels": [n % 2, 0],
        }
        for n in range(40)
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = make_stage("prm", data=str(folder / "steps.jsonl"), step_delimiter=".", steps=3, lr=1e-3, eval_every=3)
    stage.run(setting(folder / "2-prm", folder / "1-base" / "model"))
    return folder


def rollout(run, answer, *, reward=1.0, finish="stop", group=0):
    """What a policy drew behind 3a+1b+2=; a finished one ends its turn."""
    text = Text(run / "1-base" / "model")
    ids = (*text.encode(answer), *(text.eos_ids[:1] if finish == "stop" else ()))
    known = (0.0,) * len(ids)
    return Rollout(
        0, group, "p", "", "6", (0,), text.encode("3a+1b+2="), tuple(ids), (True,) * len(ids), known, answer, "", None,
        finish, 0, 1, Verdict("correct"), reward,
    )  # fmt: skip


def test_every_step_is_worth_what_the_model_says_of_it_and_the_last_one_counts_to_the_end_of_the_turn(run):
    judge = load_process("2-prm", setting(run / "3-grpo", None), run / "1-base" / "model")
    drawn = rollout(run, "<think>a3+1=4.b4+2=6.</think>6")
    (found,) = judge([drawn])
    whole = (*drawn.prompt_ids, *drawn.token_ids[:-1])
    first = len(drawn.prompt_ids)
    assert [place for place, _ in found] == [7, 14, len(drawn.token_ids) - 1]
    row = StepRow("p", whole, (first + 7, first + 14, len(whole) - 1), (1.0,) * 3)
    model = new_step_model(run / "2-prm" / "prm", "label", ".", None, 0, "cpu")
    assert [value for _, value in found] == pytest.approx(model.scores([row], 0)[0], abs=1e-6)


def test_a_step_that_a_limit_cut_has_no_reward_and_one_that_was_finished_keeps_its_place(run):
    judge = load_process(str(run / "2-prm" / "prm"), setting(run / "3-grpo", None), run / "1-base" / "model")
    cut, none = judge([rollout(run, "<think>a3+1=4.b4", finish="length"), rollout(run, "<think>a3", finish="length")])
    assert [place for place, _ in cut] == [7] and none == ()


def test_step_rewards_reach_the_advantage_at_their_tokens_and_make_a_signal_where_verdicts_are_equal(run):
    class Right:
        name, version = "right", "1"

        async def verify(self, target, submission):
            return Verdict("correct")

    def process(rollouts):
        return [((2, 0.25), (4, 0.75)), ()]

    drawn = [rollout(run, "<think>a3", group=1), rollout(run, "<think>b3", group=1)]
    assert not has_signal(drawn)
    judged = asyncio.run(Rewarder(Right(), process=process).judge(drawn, 0))
    assert [one.parts for one in judged] == [{"verifier": 1.0, "process": 0.5}, {"verifier": 1.0}]
    assert [one.reward for one in judged] == [1.0, 1.0] and has_signal(judged)
    first = len(drawn[0].prompt_ids) - 1
    steps = outcome_of(judged, torch.ones(2, first + 6, dtype=torch.bool)).steps
    assert steps[0, first + 2] == 0.25 and steps[0, first + 4] == 0.75
    assert int((~steps.isnan()).sum()) == 2 and math.isnan(steps[1, first + 2])
    assert outcome_of(drawn, torch.ones(2, first + 6, dtype=torch.bool)).steps is None


def test_grpo_learns_from_step_rewards_alone_and_records_them(run):
    stage = make_stage(
        "grpo",
        **FIELDS,
        process_reward="2-prm",
        advantage="steps",
        prompts=2,
        n=4,
        eval_every=1,
        held_out_limit=4,
        max_tokens=12,
    )
    stage.check(True)
    place = setting(run / "3-grpo", run / "1-base" / "model")
    result = stage.run(place)
    recorded = [json.loads(line) for line in (place.folder / "rollouts.jsonl").read_text().splitlines()]
    assert len(recorded) == 8 and "part/process" in result.metrics
    assert result.metrics["accuracy"] == 0 and result.metrics["grad_norm"] > 0


@pytest.mark.parametrize("change", [{"process_reward": "2-prm"}, {"advantage": "steps"}])
def test_process_rewards_and_the_advantage_that_reads_them_need_each_other(change):
    with pytest.raises(ConfigError, match="need each other"):
        make_stage("grpo", **FIELDS, **change)


def test_a_folder_that_is_no_process_reward_model_is_refused_by_name(run):
    with pytest.raises(ConfigError, match="process_reward '1-base'"):
        load_process("1-base", setting(run / "3-grpo", None), run / "1-base" / "model")


def test_a_turn_may_end_at_any_token_that_the_policy_stops_at(run, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(run / "1-base" / "model", policy)
    config = json.loads((policy / "tokenizer_config.json").read_text())
    other = next(word for word in Text(policy).tokenizer.all_special_tokens if word != config["eos_token"])
    (policy / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": other}))
    drawn = rollout(run, "<think>a3+1=4.b4+2=6.</think>6")
    first, second = (
        load_process("2-prm", setting(run / "3-grpo", None), folder)([drawn])
        for folder in (run / "1-base" / "model", policy)
    )
    assert first == second


def test_rows_beyond_a_pass_are_learnt_in_parts_as_if_in_one(run, tmp_path, monkeypatch):
    passes, found = [], []

    def counted(model, rows, pad_id):
        passes.append(len(rows) if torch.is_grad_enabled() else 0)
        return last_hidden(model, rows, pad_id)

    monkeypatch.setattr("train.reward_models.step_model.last_hidden", counted)
    for micro in (None, 1):
        fields = {"data": str(run / "steps.jsonl"), "step_delimiter": ".", "steps": 1, "lr": 1e-3, "eval_every": 1}
        place = setting(tmp_path / str(micro), run / "1-base" / "model")
        make_stage("prm", **fields, rows=6, micro_tokens=micro).run(place)
        found.append(json.loads((place.folder / "metrics.jsonl").read_text().splitlines()[-1]))
    assert [size for size in passes if size] == [6, 1, 1, 1, 1, 1, 1]
    for name in ("loss", "grad_norm"):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-4)
