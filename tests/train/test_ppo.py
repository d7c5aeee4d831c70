"""PPO: values, returns and their loss by hand; what a reference, a critic and earlier data add to an update."""

from dataclasses import replace

import pytest
import torch

from tests.train.cipher_base import STEPS, SYMBOLS
from tests.train.stages import make_stage, metrics_of, setting
from train.advantages.gae import gae
from train.advantages.group import group
from train.base.models import load_model
from train.base.optimiser import Optimiser, Schedule
from train.examples.examples import Example
from train.examples.imitation import imitation_batch
from train.losses.ppo import ppo as clipped
from train.stages.sample import sample
from train.update.batch import TokenBatch, pad
from train.update.critic import Critic, ValueFit, ValueHead, explained_variance, value_loss
from train.update.logprobs import token_logprobs
from train.update.terms import RewardBatch
from train.update.update import Objective, Updater, whitened
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"
PPO = {"task": f"{TASK},split=train", "held_out": TASK, "lr": 6e-4, "prompts": 24, "held_out_limit": 8}
ROWS = [(5, 18, 21, 3, 9, 1), (6, 19, 21, 10, 1), (7, 17, 21, 3, 12, 4, 12, 1)]


def batch():
    ids = pad(ROWS, 0)
    mask = torch.zeros(len(ROWS), ids.shape[1] - 1, dtype=torch.bool)
    for number, row in enumerate(ROWS):
        mask[number, 2 : len(row) - 1] = True
    zero = torch.zeros(mask.shape)
    return TokenBatch(ids, mask, zero, zero, zero, zero, zero + float("nan"), zero)


def outcome(mask, rewards=(1.0, 0.0, 0.5)):
    return RewardBatch(torch.tensor(rewards), torch.arange(len(rewards)), mask)


def moved(base, by):
    model = load_model(base, "cpu").eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(by)
    return model


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_the_value_loss_is_the_larger_of_the_plain_and_the_clipped_one():
    values, old = torch.tensor([1.0, 0.0, 0.3]), torch.tensor([0.0, 0.0, 0.2])
    returns = torch.tensor([1.0, 1.0, 0.2])
    loss, clipped_here = value_loss(values, old, returns, 0.2)
    assert torch.allclose(loss, torch.tensor([0.5 * 0.8**2, 0.5, 0.5 * 0.1**2]))
    assert clipped_here.tolist() == [True, False, False]
    assert torch.allclose(value_loss(values, old, returns, None)[0], 0.5 * (values - returns) ** 2)


def test_explained_variance_is_one_for_returns_zero_for_their_mean_and_unknown_without_spread():
    returns, mask = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.full((1, 3), 2.0), returns, mask) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones(1, 3), mask) != explained_variance(returns, returns, mask)


def test_whitening_leaves_mean_zero_and_spread_one_over_the_mask_alone():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    found = whitened(torch.tensor([[1.0, 2.0, 50.0], [6.0, 9.0, 9.0]]), mask)
    assert found[~mask].abs().max() == 0
    assert float(found[mask].mean()) == pytest.approx(0, abs=1e-6)
    assert float(found[mask].std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_gae_over_per_token_rewards_equals_the_double_sum_of_its_definition():
    rewards, values = torch.tensor([0.1, -0.2, 0.4, 0.0]), torch.tensor([0.5, 0.1, -0.3, 0.8])
    mask = torch.ones(1, 4, dtype=torch.bool)
    given = RewardBatch(torch.tensor([1.0]), torch.tensor([0]), mask, steps=rewards[None], values=values[None])
    total = rewards + torch.tensor([0.0, 0.0, 0.0, 1.0])
    deltas = [total[t] + 0.9 * (values[t + 1] if t < 3 else 0.0) - values[t] for t in range(4)]
    hand = [sum((0.9 * 0.8) ** (k - t) * deltas[k] for k in range(t, 4)) for t in range(4)]
    assert torch.allclose(gae(gamma=0.9, lam=0.8)(given)[0], torch.tensor(hand), atol=1e-6)


class Spy:
    """Remembers what a critic was asked to fit."""

    def __init__(self, values):
        self.given, self.seen = values, None

    def values(self, batch):
        return self.given

    def fit(self, batch, old, returns):
        self.seen = (old, returns)
        return {"value_loss": 0.0}


def test_a_divergence_in_the_reward_is_taken_off_every_token_and_the_returns_follow(cipher_model):
    given, reference = batch(), moved(cipher_model, 1.1)
    critic = Spy(torch.rand(given.mask.shape, generator=torch.Generator().manual_seed(0)) * given.mask)
    model = load_model(cipher_model, "cpu")
    with torch.no_grad():
        ours = token_logprobs(model, given.ids, given.mask).logprobs
        theirs = token_logprobs(reference, given.ids, given.mask).logprobs
    objective = Objective(clipped(), gae(gamma=1.0, lam=1.0), kl_weight=0.3, kl_in="reward", whiten=True)
    updater = Updater(model, Optimiser(model, Schedule(1e-4, 1)), objective, reference=reference, critic=critic)
    told = updater.learn(given, outcome(given.mask))
    penalty = -0.3 * (ours - theirs) * given.mask
    later = penalty.flip(1).cumsum(1).flip(1) + torch.tensor([[1.0], [0.0], [0.5]])
    assert torch.allclose(critic.seen[1], later * given.mask, atol=1e-5)  # lambda 1: the return is what is to come
    assert told["kl"] == pytest.approx(float(((ours - theirs) * given.mask).sum() / given.mask.sum()), abs=1e-6)


def test_a_divergence_in_the_loss_pulls_back_to_the_reference_when_rewards_say_nothing(cipher_model):
    given, reference, model = batch(), load_model(cipher_model, "cpu").eval(), moved(cipher_model, 1.3)
    objective = Objective(clipped(), group(), kl_weight=1.0, kl_estimator="k2")
    updater = Updater(model, Optimiser(model, Schedule(1e-3, 1)), objective, reference=reference)
    found = [updater.learn(given, outcome(given.mask, (1.0, 1.0, 1.0)))["kl"] for _ in range(25)]
    assert found[-1] < 0.2 * found[0]


def test_a_divergence_without_a_reference_is_refused(cipher_model):
    model = load_model(cipher_model, "cpu")
    updater = Updater(model, Optimiser(model, Schedule(1e-3, 1)), Objective(clipped(), group(), kl_weight=0.1))
    with pytest.raises(ConfigError, match="no reference"):
        updater.learn(batch(), outcome(batch().mask))


def test_earlier_data_add_exactly_the_gradient_of_their_cross_entropy(cipher_model):
    examples = [Example("a", (5, 18, 21), (9, 1)), Example("b", (6, 17, 21), (3, 8, 4, 8, 1))]
    earlier = replace(found := imitation_batch(examples, 0, "token", 1), ce=found.ce * 0.7)
    kept = []
    for replayed in (None, lambda number: earlier):
        model = load_model(cipher_model, "cpu")
        optimiser = Optimiser(model, Schedule(1e-9, 1))
        optimiser.step = lambda model=model: kept.append(gradients(model)) or 0.0
        Updater(model, optimiser, Objective(clipped(), group()), replayed=replayed).learn(
            batch(), RewardBatch(torch.tensor([1.0, 0.0, 0.5]), torch.zeros(3, dtype=torch.long), batch().mask)
        )
    model = load_model(cipher_model, "cpu").train()
    (-(token_logprobs(model, earlier.ids, earlier.mask).logprobs * earlier.ce).sum()).backward()
    assert torch.allclose(kept[1] - kept[0], gradients(model), atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_a_critic_learns_what_to_expect_and_a_head_on_the_policy_leaves_the_policy_alone(cipher_model, shared):
    policy, given = load_model(cipher_model, "cpu"), batch()
    before = [p.detach().clone() for p in policy.parameters()]
    body = policy.base_model if shared else load_model(cipher_model, "cpu").base_model
    module = ValueHead(body, policy.config.hidden_size, shared=shared)
    assert sum(p.numel() for p in module.parameters()) == (49 if shared else 49 + sum(p.numel() for p in before))
    critic = Critic(module, Optimiser(module, Schedule(3e-2 if shared else 3e-3, 1)), ValueFit(clip=None))
    returns = torch.tensor([[1.0], [-1.0], [0.5]]).expand_as(given.mask) * given.mask
    assert critic.values(given).abs().max() == 0
    told = [critic.fit(given, critic.values(given), returns)["explained_variance"] for _ in range(60)]
    assert told[0] == pytest.approx(0.0) and told[-1] > 0.8
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_critic_on_the_policy_is_refused_where_the_policys_weights_are_split():
    with pytest.raises(ConfigError, match="critic head reads hidden states that shard splits; take copy"):
        make_stage("ppo", **PPO, steps=1, critic="head", shard=True)


def test_the_passes_of_a_critic_are_bounded_as_those_of_the_policy():
    assert make_stage("ppo", **PPO, steps=1, micro_tokens=64).critic.fit.micro_tokens == 64
    with pytest.raises(ConfigError, match="critic: micro_tokens must be at least 1"):
        ValueFit(micro_tokens=0)


@pytest.fixture(scope="module")
def rewards(cipher_model, tmp_path_factory):
    """A run with samples of the base and two reward models trained on them."""
    root = tmp_path_factory.mktemp("run")
    sample(task=f"{TASK},split=train", n=6).run(setting(root / "1-sample", cipher_model))
    stage = make_stage("reward_model", rollouts="1-sample", members=2, steps=30, rows=16, lr=1e-3, eval_every=30)
    stage.run(setting(root / "2-reward_model", cipher_model))
    return root


def test_a_run_on_reward_models_alone_is_rewarded_by_their_worst_case_and_starts_its_critic_from_one(
    cipher_model, rewards
):
    place = setting(rewards / "3-ppo", cipher_model)
    stage = make_stage(
        "ppo",
        **PPO, steps=3, reward_model=("2-reward_model",), reward_how="worst", verifier_weight=0.0,
        critic="2-reward_model", eval_every=3, ptx="rollouts:1-sample", ptx_rows=4,
    )  # fmt: skip
    stage.check(True)
    result = stage.run(place)
    for row in metrics_of(place.folder)[1:]:
        assert row["reward"] == pytest.approx(row["part/reward_model"], abs=1e-6)
        assert row["part/reward_model_spread"] > 0 and "part/verifier" not in row
        assert {"explained_variance", "value_loss", "kl", "ptx_loss"} <= row.keys()
    assert {"held_out_gain_low", "held_out_sampled_gain"} <= result.metrics.keys()


def test_two_halves_with_a_resume_are_bit_for_bit_the_whole_run_with_its_critic(cipher_model, tmp_path):
    whole, halves = (setting(tmp_path / name, cipher_model) for name in ("whole", "halves"))
    make_stage("ppo", **PPO, steps=4, save_every=2).run(whole)
    make_stage("ppo", **PPO, steps=2, save_every=2).run(halves)
    make_stage("ppo", **PPO, steps=4, save_every=2).run(halves)
    keys = ("loss", "value_loss", "explained_variance", "kl", "reward")
    first, second = ([[row[key] for key in keys] for row in metrics_of(place.folder)] for place in (whole, halves))
    assert first == second
    a, b = (load_model(place.folder / "model", "cpu").parameters() for place in (whole, halves))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verifier_weight": 0.0}, "verifier_weight"),
        ({"kl_weight": 0.0, "reference": "1-sft"}, "kl_weight"),
        ({"prompts": 0}, "prompts"),
        ({"value_clip": 0.0}, "value_clip"),
        ({"reward_model": ("x",), "reward_weight": 0.0}, "reward_weight must be > 0"),
        ({"reward_model": ("x",), "reward_weight": -1.0}, "reward_weight must be > 0"),
        ({"ptx": "nowhere"}, "KIND:WHERE"),
        ({"ptx": "corpos:x"}, "corpos"),
        ({"ptx": "corpus:cipher", "ptx_rows": 0}, "ptx_rows"),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        make_stage("ppo", **{**PPO, "steps": 1, **change}).check(True)


def test_a_reference_or_reward_model_with_other_ids_is_refused_before_a_model_is_loaded(cipher_model, tmp_path):
    from ttc import nano

    place = setting(tmp_path / "1-grpo", cipher_model)
    fields = {**PPO, "steps": 1}
    with pytest.raises(ConfigError, match=r"reference .*tokenizer"):
        make_stage("grpo", **fields, kl_weight=0.1, reference=str(nano.path("teacher"))).run(place)
    with pytest.raises(ConfigError, match="holds no model"):
        make_stage("grpo", **fields, kl_weight=0.1, reference="7-sft").run(place)
    with pytest.raises(ConfigError, match="has none"):
        make_stage("ppo", **fields, reward_model=("7-reward_model",)).run(place)
    with pytest.raises(ConfigError, match="tokenizer"):
        make_stage("ppo", **fields, critic=str(nano.path("teacher"))).run(place)
