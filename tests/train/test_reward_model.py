"""Reward models: the Bradley-Terry loss by hand, reading by length, ensembles, and a stage that ranks unseen ones."""

import asyncio
import json
import math
import shutil

import pytest
import torch

from tests import qwen_like
from tests.train.cipher_base import STEPS, SYMBOLS
from tests.train.stages import make_stage, setting
from train.base.adapters import merge_adapter
from train.base.models import load_model
from train.base.rollout import Rollout
from train.examples.examples import Example
from train.examples.pairs import pairs_of_rollouts
from train.reward_models.reward_models import (
    RewardEnsemble,
    RewardSource,
    last_hidden,
    load_reward_model,
    new_reward_model,
    rewards_of,
)
from train.reward_models.step_model import new_step_model
from train.stages.sample import sample
from ttc.config.registry import SCORERS
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.verifiers.steps import prefixes

pytestmark = pytest.mark.numeric

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"
ONE, TWO = Example("a", (5, 6), (8, 9, 1)), Example("b", (7,), (11, 1))


@pytest.fixture(scope="module")
def run(cipher_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    sample(task=f"{TASK},split=train", n=12).run(setting(root / "1-sample", cipher_model))
    return root


def test_only_a_head_may_be_new_and_it_is_no_news(cipher_model, tmp_path, capfd):
    from safetensors.torch import load_file, save_file

    new_reward_model(cipher_model, 3, "cpu")
    new_step_model(cipher_model, "label", "\n", None, 3, "cpu")
    assert "LOAD REPORT" not in "".join(capfd.readouterr())
    torn = shutil.copytree(cipher_model, tmp_path / "torn")
    weights = load_file(torn / "model.safetensors")
    lost = next(name for name in sorted(weights) if name.endswith("q_proj.weight"))
    save_file({name: weight for name, weight in weights.items() if name != lost}, torn / "model.safetensors")
    for load in (lambda: new_reward_model(torn, 3, "cpu"), lambda: load_model(torn, "cpu")):
        with pytest.raises(ConfigError, match=rf"torn has no weights for {lost}, which would be random"):
            load()
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_reward_is_read_at_the_last_token_whatever_stands_beside_or_is_sampled(cipher_model):
    model = new_reward_model(cipher_model, 3, "cpu")
    alone = rewards_of(model, [TWO], 0)
    assert torch.allclose(rewards_of(model, [ONE, TWO], 0)[1:], alone, atol=1e-6)
    ends_in_padding = Example("c", (7,), (11, 0))
    assert not torch.allclose(
        rewards_of(model, [ends_in_padding], 0), rewards_of(model, [Example("c", (7,), (11,))], 0)
    )
    whole = model(input_ids=torch.tensor([[7, 11, 1]])).logits[0, 0]
    assert torch.allclose(alone[0], whole, atol=1e-6)


def test_members_differ_by_their_seed_alone(cipher_model):
    first, again, other = (rewards_of(new_reward_model(cipher_model, seed, "cpu"), [ONE], 0) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_the_worst_case_is_the_lowest_member_and_the_mean_their_mean(cipher_model):
    models = [new_reward_model(cipher_model, seed, "cpu") for seed in (1, 2, 3)]
    columns = torch.stack([rewards_of(model, [ONE, TWO], 0) for model in models])
    assert torch.allclose(RewardEnsemble(models, 0, "mean").score([ONE, TWO]), columns.mean(0), atol=1e-6)
    assert torch.allclose(RewardEnsemble(models, 0, "worst").score([ONE, TWO]), columns.amin(0), atol=1e-6)
    with pytest.raises(ConfigError, match="at least one"):
        RewardEnsemble([], 0)


@pytest.mark.slow
def test_an_ensemble_ranks_pairs_of_prompts_that_it_never_saw(cipher_model, run):
    # At twice the rate one member in a few learns nothing for some order of adding, and the worst case is that member.
    stage = make_stage(
        "reward_model", rollouts="1-sample", members=2, steps=150, lr=1e-3, rows=24, held_out_share=0.5, centre=0.01
    )
    stage.check(True)
    folder = run / "2-reward_model"
    found = stage.run(setting(folder, cipher_model)).metrics
    assert found["ranked_mean_after_low"] > 0.5 and found["ranked_worst_after"] > 0.6
    assert (folder / "model").resolve() == cipher_model.resolve()
    for number in (1, 2):
        assert load_reward_model(folder / f"reward_model-{number}", "cpu") is not None


def test_the_first_loss_is_that_of_bradley_and_terry_by_hand(cipher_model, run):
    stage = make_stage("reward_model", rollouts="1-sample", steps=1, lr=1e-3, rows=4, per_problem=1)
    stage.run(setting(run / "3-reward_model", cipher_model))
    import json

    from train.examples.examples import held_apart
    from train.update.batch import rows_at
    from ttc import seeds

    rows = [json.loads(line) for line in (run / "3-reward_model/member-1/metrics.jsonl").read_text().splitlines()]
    pairs = pairs_of_rollouts(run / "1-sample" / "rollouts.jsonl", per_problem=1)
    out = held_apart([pair.key for pair in pairs], 0.1)
    train = [pair for pair, held in zip(pairs, out, strict=True) if not held]
    seed = seeds.derive(1, "reward model", 1) % (1 << 31)
    model = new_reward_model(cipher_model, seed, "cpu")
    losses = []
    for row in rows_at(0, 4, len(train), seed):
        gap = rewards_of(model, [train[row].chosen], 0) - rewards_of(model, [train[row].rejected], 0)
        losses.append(math.log1p(math.exp(-gap.item())))
    assert rows[1]["loss"] == pytest.approx(sum(losses) / 4, abs=1e-5)


def test_the_scorer_of_outcome_reward_models_reads_the_folder(cipher_model, run):
    stage = make_stage("reward_model", rollouts="1-sample", steps=1, lr=1e-3, rows=4)
    stage.run(setting(run / "4-reward_model", cipher_model))
    folder = run / "4-reward_model" / "reward_model-1"
    scorer = SCORERS.load("orm")(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    assert scorer is not None


def test_what_cannot_work_is_refused_by_field(cipher_model):
    for fields, message in [
        ({}, "exactly one of data, rollouts"),
        ({"rollouts": "x", "members": 0}, "members must be at least 1"),
        ({"rollouts": "x", "held_out_share": 1.0}, "held_out_share"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_stage("reward_model", **{"steps": 2, "lr": 1e-3, **fields})
    with pytest.raises(ConfigError, match="not a reward model"):
        load_reward_model(cipher_model, "cpu")


def judging(folder, base, family="qwen2", **settings):
    """The folder of a classifier that transformers made, with the tokenizer of `base`."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    fields = {name: getattr(AutoConfig.from_pretrained(base), name) for name in ("vocab_size", "pad_token_id")}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(family, **fields, **sizes, num_key_value_heads=2, **settings)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    Text(base).tokenizer.save_pretrained(folder)
    return folder


def test_a_classifier_that_is_no_reward_by_its_last_token_is_refused_by_what_its_head_is(tmp_path):
    base = qwen_like.model(tmp_path / "base")
    two = judging(tmp_path / "two", base, num_labels=2)
    with pytest.raises(ConfigError, match="its head gives 2 labels, and a reward is one number"):
        load_reward_model(two, "cpu")
    encoder = judging(tmp_path / "encoder", base, "bert", num_labels=1)
    with pytest.raises(ConfigError, match="the head of BertForSequenceClassification is not called score"):
        load_reward_model(encoder, "cpu")


def test_a_reward_model_whose_noise_acts_when_it_reads_is_refused(tmp_path):
    base, rates = qwen_like.model(tmp_path / "base"), {"router_jitter_noise": 0.5, "input_jitter_noise": 0.5}
    experts = {"num_local_experts": 4, "num_labels": 1}
    with pytest.raises(ConfigError, match="'phimoe' reads with its rates of noise, too"):
        load_reward_model(judging(tmp_path / "noisy", base, "phimoe", **rates, **experts), "cpu")


def test_a_reward_model_may_start_from_a_classifier_of_any_number_of_labels(tmp_path):
    base = qwen_like.model(tmp_path / "base")
    two, one = (judging(tmp_path / str(labels), base, num_labels=labels) for labels in (2, 1))
    assert new_reward_model(two, 1, "cpu").score.weight.shape[0] == 1
    assert new_reward_model(one, 1, "cpu").score.weight.equal(load_reward_model(one, "cpu").score.weight)


def test_the_scorer_reads_a_reward_model_at_the_token_that_it_was_trained_and_rewards_at(tmp_path):
    base = qwen_like.model(tmp_path / "base")  # its template writes a line break behind the end of a turn
    text, words = Text(base), ("one", "two", "three")
    rows = [{"prompt": word, "chosen": f"{word} is it", "rejected": "no"} for word in words]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = setting(tmp_path / "1-reward_model", base)
    seen = []
    stage = make_stage("reward_model", data=str(tmp_path / "pairs.jsonl"), steps=1, rows=2, lr=1e-3)
    with pytest.MonkeyPatch.context() as patch:
        spy = lambda model, rows, pad_id: seen.extend(rows) or last_hidden(model, rows, pad_id)  # noqa: E731
        patch.setattr("train.reward_models.reward_models.last_hidden", spy)
        stage.run(place)
    folder = place.folder / "reward_model-1"
    prompt = text.render([Message("user", "one")], None)
    ids = (*prompt.token_ids, *text.encode("one is it<|im_end|>\n"))
    assert ids in seen
    scorer = SCORERS.load("orm")(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    path = prefixes(prompt, text.encode, ["one is it"], "\n\n")[-1]
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    hand = rewards_of(load_reward_model(folder, "cpu"), [Example("", ids, ())], 0)
    assert score.value == pytest.approx(torch.sigmoid(hand).item(), abs=1e-5)
    learnt = RewardSource((str(folder),), "mean", 1.0).load(place, base)
    sampled = text.encode("one is it<|im_end|>")
    rollout = Rollout(
        0, 0, "p", "", "", (), prompt.token_ids, sampled, (True,) * len(sampled), (0.0,) * len(sampled), "one is it",
        "", None, "stop", 0, 1, None, None,
    )  # fmt: skip
    (reward,) = learnt([rollout])["reward_model"]
    assert reward == pytest.approx(hand.item(), abs=1e-5)


@pytest.mark.parametrize("family", ["Gemma", "Phi3", "GPT2", "GptOss"])
def test_the_scorer_reads_reward_models_of_families_that_only_transformers_runs(tmp_path, family):
    import transformers
    from transformers import AutoModelForCausalLM

    base = qwen_like.model(tmp_path / "base")
    text = Text(base)
    sizes = {
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    (*_, end) = text.encode("<|im_end|>\n")  # the last token of a conversation may be the one that pads
    config = getattr(transformers, f"{family}Config")(**sizes, pad_token_id=end, bos_token_id=1, eos_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    model, folder = new_reward_model(base, 1, "cpu"), tmp_path / "rewards"
    model.save_pretrained(folder)
    text.tokenizer.save_pretrained(folder)
    scorer = SCORERS.load("orm")(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    prompt = text.render([Message("user", "one")], None)
    (score,) = asyncio.run(scorer.score([prefixes(prompt, text.encode, ["two"], ".")[-1]], lambda usage: None))
    ids = (*prompt.token_ids, *text.encode("two.<|im_end|>\n"))
    hand = rewards_of(load_reward_model(folder, "cpu"), [Example("", ids, ())], 0)
    assert score.value == pytest.approx(torch.sigmoid(hand).item(), abs=1e-5)


def test_adapters_reward_as_the_folder_that_they_are_merged_into_and_come_back_from_their_own_files(tmp_path):
    base = qwen_like.model(tmp_path / "base")
    stored = load_model(base, "cpu").to(torch.bfloat16)  # so that the body stays in it under autocast
    stored.save_pretrained(base)
    rows = [{"prompt": word, "chosen": f"{word} is it", "rejected": "no"} for word in ("one", "two", "three")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = setting(tmp_path / "1-reward_model", base)
    fields = {"data": str(tmp_path / "pairs.jsonl"), "steps": 8, "rows": 2, "lr": 3e-2, "eval_every": 8}
    make_stage("reward_model", **fields, lora=2, autocast=True, checkpointing=True, members=2).run(place)
    folders = [place.folder / f"reward_model-{number}" for number in (1, 2)]
    first, second = (load_reward_model(folder, "cpu") for folder in folders)
    start = dict(stored.named_parameters())
    moved = {name for name, weight in first.named_parameters() if not weight.equal(start.get(name, weight).float())}
    assert moved and all(name.endswith("_proj.weight") for name in moved)
    assert any(not first.get_parameter(name).equal(second.get_parameter(name)) for name in moved)
    assert first.config.dtype == torch.float32
    merge_adapter(base, folders[0], tmp_path / "merged")
    merged = load_reward_model(tmp_path / "merged", "cpu")
    hand, again = (rewards_of(model, [ONE, TWO], 0) for model in (first, merged))
    assert torch.allclose(hand, again, rtol=0.02, atol=0.02)  # merged ones are stored in bf16, as the base is
    assert not torch.allclose(hand, rewards_of(second, [ONE, TWO], 0), rtol=0.02, atol=0.02)
    config = json.loads((folders[0] / "adapter" / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", ["score"])
