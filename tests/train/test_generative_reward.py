"""A model that writes critiques as the reward, and reward models that read with a tokenizer of their own."""

import asyncio
import dataclasses

import pytest
import torch

from tests.loops import finished
from tests.train.cipher_base import TASK, WALKS, make_parts
from tests.train.stages import make_stage, setting
from train.base.models import Shape, load_tokenizer, new_model, save_model
from train.base.rollout import read_rollouts
from train.corpora.cipher import cipher
from train.examples.examples import Example
from train.registries import make_task
from train.reward_models.reward_models import (
    CritiqueSource,
    RewardSource,
    load_reward_model,
    new_reward_model,
    rewards_of,
)
from train.rollouts.rewards import Rewarder
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.verifiers.exact import exact

pytestmark = pytest.mark.numeric

FIELDS = {"task": WALKS, "held_out": TASK, "steps": 2, "lr": 1e-3, "prompts": 4, "n": 4, "held_out_limit": 4}


@pytest.fixture(scope="module")
def rollouts(cipher_model, tmp_path_factory):
    parts = make_parts(cipher_model, tmp_path_factory.mktemp("parts"))

    return finished(parts.collector.collect(parts.sampler.draw(6, 0), 0), parts, parts.collector.engine)


def judged(source, place, rollouts, **options):
    prompts = {item.problem.id: item.problem.messages[0].content for item in make_task(WALKS).items(None, 0)}

    async def go():
        rewarder = Rewarder(exact(), reviewer=source.load(place, prompts), **options)
        try:
            return await rewarder.judge(rollouts, 0)
        finally:
            await rewarder.close()

    return asyncio.run(go())


def test_the_reward_is_the_share_of_critiques_that_approve_and_they_are_kept(cipher_model, tmp_path, rollouts):
    # the base walks from the answer's symbol on: a "critique" of its own making, of which some end in an even symbol
    source = CritiqueSource(str(cipher_model), "{answer}n2={prompt}", "s[0-9]*[02468]$", 4, 14, 0.5)
    rows = judged(source, setting(tmp_path / "2-grpo", cipher_model), rollouts, verifier_weight=2.0)
    shares = [row.parts["verifier_lm"] for row in rows if row.reward is not None]
    assert len(set(shares)) > 2 and all(0 <= share <= 1 for share in shares)
    for row in rows:
        if row.reward is not None:
            assert row.reward == pytest.approx(2 * row.right + 0.5 * row.parts["verifier_lm"])
        assert row.critique.count("\n---\n") == 3
    again = judged(source, setting(tmp_path / "2-grpo", cipher_model), rollouts, verifier_weight=2.0)
    assert [row.critique for row in again] == [row.critique for row in rows]
    same = {}
    for row in rows:  # equal answers to one problem are criticised once
        assert same.setdefault((row.problem_id, row.text), row.critique) == row.critique


def test_a_rollout_whose_critiques_were_all_cut_has_no_reward(cipher_model, tmp_path, rollouts):
    source = CritiqueSource(str(cipher_model), "{prompt}{answer}", "s", 2, 1, 1.0)
    rows = judged(source, setting(tmp_path / "2-grpo", cipher_model), rollouts)
    # of one token, a critique is whole only where the model says nothing at all; which say nothing is rounding's choice
    cut = [row for row in rows if all(row.critique.split("\n---\n"))]
    assert len(cut) > len(rows) / 2
    assert {row.reward for row in cut} == {None} and all("verifier_lm" not in row.parts for row in cut)


def test_a_policy_learns_from_critiques_alone_and_the_other_verdicts_decide_nothing(cipher_model, tmp_path):
    stage = make_stage(
        "grpo", **FIELDS, verifier_weight=0, verifier_lm=str(cipher_model), critique_ask="{prompt}{answer}",
        critique_approves="s[0-9]*[02468]$", critiques=2, critique_tokens=14,
    )  # fmt: skip
    stage.check(True)
    assert stage.models()["verifier_lm"] == (str(cipher_model),)
    stage.run(setting(tmp_path / "1-grpo", cipher_model))
    rows = list(read_rollouts(tmp_path / "1-grpo" / "rollouts.jsonl"))
    assert all(row.reward == row.parts["verifier_lm"] for row in rows if row.reward is not None)
    assert any(row.critique for row in rows) and all(row.verdict is not None for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"critique_ask": "{prompt}"}, r"critique_ask must hold \{answer\}"),
        ({"critique_ask": '{prompt} {answer} {"right": true}'}, r"critique_ask: its braces are no field .*write \{\{"),
        ({"critique_approves": "("}, "critique_approves is not a valid pattern"),
        ({"critiques": 0}, "critiques"),
        ({"critique_weight": 0}, "critique_weight must be > 0"),
        ({"critique_weight": -0.5}, "critique_weight must be > 0"),
    ],
)
def test_a_question_without_its_parts_or_a_weight_of_nothing_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        make_stage("grpo", **FIELDS, verifier_lm="1-sft", **change)


def test_a_reward_model_with_a_tokenizer_of_its_own_reads_problem_and_answer_in_its_own_ids(
    cipher_model, tmp_path, rollouts
):
    tokenizer = cipher(symbols=20, max_steps=6).tokenizer()
    assert tokenizer.get_vocab() != load_tokenizer(cipher_model).get_vocab()
    save_model(new_model(Shape(32, 1, 2, 1, 16, 64), tokenizer, 3), tokenizer, tmp_path / "body")
    judge = tmp_path / "other"
    new_reward_model(tmp_path / "body", 5, "cpu").save_pretrained(judge)
    tokenizer.save_pretrained(judge)
    messages = {item.problem.id: item.problem.messages for item in make_task(WALKS).items(None, 0)}
    place = setting(tmp_path / "2-grpo", cipher_model)
    own, text = load_reward_model(judge, "cpu"), Text(judge)
    rows = [dataclasses.replace(row, thinking="") for row in rollouts]
    learnt = RewardSource((str(judge),), "mean", 2.0).load(place, cipher_model, messages)
    scores = learnt(rows)["reward_model"]
    for row, score in zip(rows, scores, strict=True):
        prompt = text.render(messages[row.problem_id], None).token_ids
        ids = (*text.encode(row.text), *(() if row.truncated else text.eos_ids[:1]))
        with torch.no_grad():
            hand = rewards_of(own, [Example("x", prompt, ids)], 0)
        assert score == pytest.approx(2 * hand.item(), abs=1e-5)
    assert len({round(score, 6) for score in scores}) > 1
    with pytest.raises(ConfigError, match="both must read the same ids"):
        RewardSource((str(judge),), "mean", 1.0).load(place, cipher_model)
    make_stage("grpo", **FIELDS, reward_model=(str(judge),), verifier_weight=0).run(place)
