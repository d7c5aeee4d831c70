"""Generative verifiers: a model that is told what is right says so, and the scorer reads the same probability."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.train.cipher_base import STEPS, SYMBOLS
from tests.train.stages import make_stage, setting
from train.base.rollout import RolloutFile, read_rollouts
from train.reward_models.step_model import StepRow, new_step_model
from train.stages.sample import sample
from ttc.config.registry import SCORERS
from ttc.core import Completion, Prompt, Verdict
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.backends import EmbeddedCore

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"
FIELDS = {"rollouts": "1-sample", "ask": "=", "good": "n1", "bad": "n2", "lr": 2e-3, "held_out_share": 0.3}


@pytest.fixture(scope="module")
def trained(cipher_model, tmp_path_factory):
    """A verifier of a rule that is learnt in seconds: an answer is right when it thought."""
    root = tmp_path_factory.mktemp("run")
    sample(task=f"{TASK},split=train", n=8).run(setting(root / "0-sample", cipher_model))
    (root / "1-sample").mkdir()
    relabelled = RolloutFile(root / "1-sample" / "rollouts.jsonl")
    relabelled.append(
        replace(rollout, verdict=Verdict("correct" if rollout.thinking else "incorrect"), reward=0.0)
        for rollout in read_rollouts(root / "0-sample" / "rollouts.jsonl")
    )
    relabelled.close()
    place = setting(root / "2-verifier_lm", cipher_model)
    stage = make_stage("verifier_lm", **FIELDS, steps=40, imitation=0.1, eval_every=40)
    stage.check(True)
    return place, stage.run(place)


def test_it_learns_to_tell_right_from_wrong_on_unseen_problems(trained):
    _, result = trained
    assert result.metrics["judged_right_gain_low"] > 0.2
    assert result.metrics["ranking"] > 0.95


def test_the_rules_that_watch_the_entropy_of_a_policy_do_not_slow_it_down(trained):
    place, result = trained
    assert "loss" in result.metrics and "entropy" not in result.metrics
    assert (place.folder / "alarms.jsonl").read_text() == ""


def test_the_scorer_reads_the_probability_of_the_good_word_behind_the_question(trained, cipher_model):
    place, _ = trained
    stated = json.loads((place.folder / "verifier" / "config.json").read_text())["ttc_prm"]
    assert stated == {"kind": "token", "step_delimiter": "\0", "good": "n1", "bad": "n2", "step_tag": "="}
    scorer = SCORERS.load("prm")(str(place.folder / "verifier"), EmbeddedCore(dtype="float32", device="cpu"))
    text = Text(cipher_model)
    ids = text.encode("s3n2=")
    root = Prompt("s3n2=", ids, rendered_len=len(ids), rendered_chars=5, problem_id="p")
    answer = text.encode("<think></think>s4")
    path = root.then(Completion((0,), text.decode(answer), (*answer, 1), "stop", "eos"))
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    model = new_step_model(place.folder / "verifier", "token", "\0", ("n1", "n2"), 0, "cpu")
    whole = (*ids, *answer, *text.encode("="))
    ours = model.scores([StepRow("p", whole, (len(whole) - 1,), (1.0,))], 0)[0]
    assert score.steps == pytest.approx(ours, abs=1e-5) and score.value < 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"good": "="}, "three different"),
        ({"imitation": -1.0}, "imitation"),
        ({"held_out_share": 1.0}, "below 1"),
        ({"held_out_share": 0}, "> 0"),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        make_stage("verifier_lm", **{**FIELDS, "steps": 1, **change})


def test_a_word_that_is_several_tokens_and_answers_of_one_kind_are_refused(trained, cipher_model):
    place, _ = trained
    with pytest.raises(ConfigError, match="one token"):
        make_stage("verifier_lm", **{**FIELDS, "good": "s1n1"}, steps=1).run(place)
    alone = place.folder.parent / "one-kind.jsonl"
    file = RolloutFile(alone)
    rollouts = read_rollouts(place.folder.parent / "0-sample" / "rollouts.jsonl")
    file.append(replace(rollout, verdict=Verdict("incorrect"), reward=0.0) for rollout in rollouts)
    file.close()
    with pytest.raises(ConfigError, match="both right and wrong"):
        make_stage("verifier_lm", **{**FIELDS, "rollouts": str(alone)}, steps=1).run(place)
