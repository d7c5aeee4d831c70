"""Our losses equal those of TRL's own trainers, value and gradient, on a tiny model and fixed tensors.

TRL pads prompts on the left and scores with an attention mask; we pad on the right without one. Both must give the same
number to 1e-6, or one of the two is wrong.
"""

import copy
import importlib.util
import os
from dataclasses import replace

import pytest
import torch

from train.advantages.group import group
from train.base.models import Shape, load_model, new_model, save_model
from train.base.optimiser import Optimiser, Schedule
from train.corpora.cipher import cipher
from train.examples.pairs import LabelledBatch, Pairs
from train.losses.cispo import cispo
from train.losses.gspo import gspo
from train.losses.ppo import ppo
from train.preferences.dpo import dpo
from train.preferences.ipo import ipo
from train.preferences.kto import kto
from train.preferences.orpo import orpo
from train.preferences.simpo import simpo
from train.update.batch import TokenBatch, pad, token_weights
from train.update.logprobs import token_logprobs
from train.update.terms import Correction, k3
from train.update.update import Objective, Updater, _Tally

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: ttckit[train]"),
    pytest.mark.filterwarnings("default"),  # what TRL warns of is not ours
]
MOST = 9
PROMPTS = ((5, 6), (7, 8, 9, 10), (11,), (12, 13, 14))
COMPLETIONS = ((20, 21, 22, 1), (23, 1), (24, 25, 26, 27, 28, 1), (29, 30, 31))
ADVANTAGES = torch.tensor([1.0, -0.7, 0.4, -1.3])
ROWS = [
    {"prompt": "s1n2=", "chosen": "<think>s3n1s4n0</think>s4", "rejected": "<think></think>s5"},
    {"prompt": "s2n1=", "chosen": "<think>s3n0</think>s3", "rejected": "<think>s5n1s6n0</think>s6"},
]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    before = os.environ.get("TRL_EXPERIMENTAL_SILENCE")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    yield
    os.environ.pop("TRL_EXPERIMENTAL_SILENCE")
    if before is not None:
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = before


@pytest.fixture(scope="module")
def tokenizer():
    return cipher(symbols=24, max_steps=4).tokenizer()


@pytest.fixture
def model(tokenizer, tmp_path):
    folder = tmp_path / "model"  # TRL makes its reference from the folder that a model came from
    made = new_model(Shape(hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=24), tokenizer, 3)
    save_model(made, tokenizer, folder)
    loaded = load_model(folder, "cpu").eval()
    loaded.set_attn_implementation("eager")  # losses are compared: padding must not round differently
    return loaded


def plain(tmp_path, **more):
    """Settings that every TRL trainer needs to run here."""
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none"}
    return {**common, "per_device_train_batch_size": 4, "gradient_checkpointing": False, **more}


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def same(ours, theirs, model):
    """Value and gradient equal to 1e-6; leaves the model without gradients."""
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    first, second = gradient(model, ours).clone(), gradient(model, theirs)
    assert first.abs().max() > 1e-4
    assert torch.allclose(first, second, atol=1e-6)


def left(rows):
    """Rows padded on the left, and their mask."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
    return ids, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])


def noise(like, seed):
    return 0.2 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def their_inputs(model):
    """The inputs of TRL's loss: old and reference log-probabilities differ from the policy's by fixed noise."""
    prompt_ids, prompt_mask = left(PROMPTS)
    completion_ids = pad(COMPLETIONS, 0)
    lengths = torch.tensor([len(row) for row in COMPLETIONS])
    mask = (torch.arange(completion_ids.shape[1])[None] < lengths[:, None]).long()
    ours = our_batch()
    with torch.no_grad():
        logprobs = token_logprobs(model, ours.ids, ours.mask).logprobs
    values = torch.zeros(mask.shape)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        start = len(prompt) - 1
        values[row, : len(completion)] = logprobs[row, start : start + len(completion)]
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": mask,
        "advantages": ADVANTAGES,
        "old_per_token_logps": values + noise(values, 1),
        "ref_per_token_logps": values + noise(values, 2),
        "num_items_in_batch": mask.sum(),
    }


def our_batch():
    rows = [(*prompt, *completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)]
    ids = pad(rows, 0)
    mask = torch.zeros(len(rows), ids.shape[1] - 1, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        mask[row, len(prompt) - 1 : len(prompt) - 1 + len(completion)] = True
    zero = torch.zeros(mask.shape)
    return TokenBatch(ids, mask, ADVANTAGES[:, None] * mask, zero, zero, zero, zero + float("nan"), zero)


def aligned(values, mask):
    """Completion-aligned values (R, C) at the places of our right-padded batch (R, T)."""
    return torch.stack([torch.zeros(mask.shape[1]).masked_scatter(mask[i], values[i]) for i in range(len(mask))])


def our_loss(model, inputs, loss, normaliser, kl_weight=0.0):
    objective = Objective(loss, group(), normaliser, MOST, Correction(level="none"), kl_weight)
    updater = Updater(model, Optimiser(model, Schedule(1e-3, 1)), objective)
    batch = our_batch()
    weights = token_weights(batch.mask, normaliser, MOST)
    reference = aligned(inputs["ref_per_token_logps"], batch.mask)
    ready = replace(batch, pg=weights, kl=weights * kl_weight, reference=reference)
    return updater._loss(ready, aligned(inputs["old_per_token_logps"], batch.mask), _Tally())


@pytest.mark.parametrize(
    ("kind", "loss", "normaliser", "settings"),
    [
        ("grpo", ppo(clip_low=0.1, clip_high=0.15), "sequence", {}),
        ("dr_grpo", ppo(clip_low=0.1, clip_high=0.15), "constant", {}),
        ("dapo", ppo(clip_low=0.1, clip_high=0.15), "token", {}),
        ("bnpo", ppo(clip_low=0.1, clip_high=0.15), "token", {}),
        ("cispo", cispo(cap=1.15), "token", {"epsilon_high": 1.15}),
        ("grpo", gspo(clip_low=0.02, clip_high=0.03), "sequence",
         {"importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03}),
    ],
    ids=["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo"],
)  # fmt: skip
def test_policy_losses_equal_those_of_trl(tmp_path, model, tokenizer, kind, loss, normaliser, settings):
    settings = {"epsilon": 0.1, "epsilon_high": 0.15, **settings}
    trainer = grpo_trainer(tmp_path, model, tokenizer, loss_type=kind, **settings)
    inputs = their_inputs(model)
    ours = our_loss(model, inputs, loss, normaliser)
    same(ours, trainer._compute_loss(model, inputs), model)


def grpo_trainer(tmp_path, model, tokenizer, **settings):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(**plain(tmp_path, max_completion_length=MOST, num_generations=2, **settings))
    return GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "s1n2="}] * 4),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("kind", ["grpo", "dapo"])
@pytest.mark.parametrize("ratio", [True, False], ids=["with_ratio", "plain"])
def test_the_pull_of_a_reference_equals_that_of_trl(tmp_path, model, tokenizer, kind, ratio):
    trainer = grpo_trainer(
        tmp_path, model, tokenizer, loss_type=kind, epsilon=0.1, epsilon_high=0.15, beta=0.3,
        use_bias_correction_kl=ratio,
    )  # fmt: skip
    normaliser = "sequence" if kind == "grpo" else "token"
    inputs = their_inputs(model)
    loss = ppo(clip_low=0.1, clip_high=0.15)
    if ratio:
        ours = our_loss(model, inputs, loss, normaliser, kl_weight=0.3)
    else:
        batch = our_batch()
        logprobs = token_logprobs(model, batch.ids, batch.mask).logprobs
        estimate = k3(logprobs, aligned(inputs["ref_per_token_logps"], batch.mask))
        pull = 0.3 * (estimate * token_weights(batch.mask, normaliser, MOST)).sum()
        ours = our_loss(model, inputs, loss, normaliser) + pull
    same(ours, trainer._compute_loss(model, inputs), model)


def sums(model, ids, completion_mask):
    """Log-probability of each row's completion, and its length, by our own forward pass: both (R,)."""
    wanted = completion_mask[:, 1:].bool()
    return token_logprobs(model, ids, wanted).logprobs.sum(1), wanted.sum(1).float()


def perturbed(model):
    """A reference that differs from the policy."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for number, parameter in enumerate(other.parameters()):
            parameter.add_(0.3 * noise(parameter, 50 + number))
    return other


@pytest.mark.parametrize(
    ("kind", "loss", "more"),
    [("sigmoid", dpo(beta=0.3), {}), ("sigmoid_norm", dpo(beta=0.3, per_token=True), {}), ("ipo", ipo(beta=0.3), {})],
    ids=["dpo", "length_normalised", "ipo"],
)
def test_direct_preference_losses_equal_those_of_trl(tmp_path, model, tokenizer, kind, loss, more):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    reference = perturbed(model)
    trainer = DPOTrainer(
        model, ref_model=reference, args=DPOConfig(**plain(tmp_path, beta=0.3, loss_type=[kind], **more)),
        train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer,
    )  # fmt: skip
    batch = next(iter(trainer.get_train_dataloader()))
    theirs = trainer.compute_loss(model, dict(batch))
    policy, lengths = sums(model, batch["input_ids"], batch["completion_mask"])
    with torch.no_grad():
        before, _ = sums(reference, batch["input_ids"], batch["completion_mask"])
    pairs = Pairs(*policy.chunk(2), *lengths.chunk(2), *before.chunk(2))
    same(loss(pairs).mean(), theirs, model)


def test_kto_equals_that_of_trl(tmp_path, model, tokenizer):
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    reference = perturbed(model)
    rows = [{"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
            for row in ROWS for side in ("chosen", "rejected")]  # fmt: skip
    settings = plain(tmp_path, beta=0.3, desirable_weight=1.0, undesirable_weight=1.5)
    trainer = KTOTrainer(
        model, ref_model=reference, args=KTOConfig(**settings), train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )  # fmt: skip
    batch = next(iter(trainer.get_train_dataloader()))
    theirs = trainer.compute_loss(model, dict(batch))
    policy, _ = sums(model, batch["input_ids"], batch["completion_mask"])
    with torch.no_grad():
        before, _ = sums(reference, batch["input_ids"], batch["completion_mask"])
        now, _ = sums(model, batch["KL_input_ids"], batch["KL_completion_mask"])
        then, _ = sums(reference, batch["KL_input_ids"], batch["KL_completion_mask"])
    good = torch.as_tensor(batch["label"], dtype=torch.bool)
    labelled = LabelledBatch(policy, before, good, (now - then).mean())
    same(kto(beta=0.3, good_weight=1.0, bad_weight=1.5)(labelled).mean(), theirs, model)


def concatenated(trainer, batch):
    """Ids and completion masks of chosen rows, then rejected rows, of TRL's older trainers."""
    found = trainer.concatenated_inputs(batch, padding_value=0)
    ids, labels = found["concatenated_input_ids"], found["concatenated_labels"]
    return ids.long(), (labels != -100).long()


def test_simpo_equals_that_of_trl(tmp_path, model, tokenizer):
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    settings = plain(tmp_path, beta=2.0, loss_type="simpo", simpo_gamma=0.7, cpo_alpha=0.0, max_length=40)
    trainer = CPOTrainer(
        model, args=CPOConfig(**settings), train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer
    )
    batch = next(iter(trainer.get_train_dataloader()))
    theirs, _ = trainer.get_batch_loss_metrics(model, batch)
    policy, lengths = sums(model, *concatenated(trainer, batch))
    same(simpo(beta=2.0, gamma=0.7)(Pairs(*policy.chunk(2), *lengths.chunk(2))).mean(), theirs, model)


def test_the_odds_ratio_of_orpo_equals_that_of_trl(tmp_path, model, tokenizer):
    from datasets import Dataset
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    settings = plain(tmp_path, beta=0.4, max_length=40)
    trainer = ORPOTrainer(
        model, args=ORPOConfig(**settings), train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer
    )
    batch = next(iter(trainer.get_train_dataloader()))
    chosen, rejected = trainer.concatenated_forward(model, batch)[:2]
    odds = -trainer.odds_ratio_loss(chosen, rejected)[0].mean()
    policy, lengths = sums(model, *concatenated(trainer, batch))
    pairs = Pairs(*policy.chunk(2), *lengths.chunk(2))
    # TRL's likelihood term counts the prompt's tokens too; ours, as the paper's, the answer's only
    likelihood = -(pairs.chosen / pairs.chosen_length).mean()
    same(orpo(beta=0.4)(pairs).mean() - likelihood, odds, model)
