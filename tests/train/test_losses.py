"""Policy-gradient losses: identities, closed forms, and invariance to how a batch is cut or padded."""

import math

import pytest
import torch

from train.losses.cispo import cispo
from train.losses.gspo import gspo
from train.losses.ppo import ppo
from train.losses.squared import squared
from train.registries import LOSSES
from train.update.batch import NORMALISERS, token_weights
from train.update.terms import KL_ESTIMATORS, Correction, exact_kl, fair_kl, k1
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

ALL = {name: LOSSES.load(name)() for name in LOSSES.names()}


def batch(rows=5, width=7, seed=0):
    maker = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(rows, width, generator=maker) * 3
    old = logprobs + 0.3 * torch.randn(rows, width, generator=maker)
    advantages = torch.randn(rows, 1, generator=maker).expand(rows, width).contiguous()
    lengths = torch.randint(1, width + 1, (rows,), generator=maker)
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    return logprobs, old, advantages * mask, mask


def total(loss, data, how="token"):
    logprobs, old, advantages, mask = data
    leaf = logprobs.clone().requires_grad_()
    value = (loss(leaf, old, advantages, mask).loss * token_weights(mask, how, 7)).sum()
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("name", ALL)
def test_on_the_policy_itself_the_gradient_is_reinforce_and_nothing_is_clipped(name):
    logprobs, _, advantages, mask = batch()
    leaf = logprobs.clone().requires_grad_()
    terms = ALL[name](leaf, logprobs, advantages, mask)
    (terms.loss * token_weights(mask, "token", 7)).sum().backward()
    assert not terms.clipped.any()
    expected = -advantages * mask / mask.sum()
    if name == "gspo":  # one ratio per row: every token carries the row's mean
        expected = expected.sum(1, keepdim=True) / mask.sum(1, keepdim=True) * mask
    assert torch.allclose(leaf.grad, expected, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("how", NORMALISERS)
def test_cutting_a_batch_into_micro_batches_changes_neither_value_nor_gradient(name, how):
    data = batch()
    whole, gradient = total(ALL[name], data, how)
    logprobs, old, advantages, mask = data
    weights, parts, grads = token_weights(mask, how, 7), torch.zeros(()), []
    for rows in (slice(0, 2), slice(2, 3), slice(3, 5)):
        leaf = logprobs[rows].clone().requires_grad_()
        value = (ALL[name](leaf, old[rows], advantages[rows], mask[rows]).loss * weights[rows]).sum()
        value.backward()
        parts = parts + value.detach()
        grads.append(leaf.grad)
    assert torch.allclose(parts, whole, atol=1e-6) and torch.allclose(torch.cat(grads), gradient, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("how", NORMALISERS)
def test_padding_changes_neither_value_nor_gradient(name, how):
    data = batch()
    whole, gradient = total(ALL[name], data, how)
    fill = (-1.0, -9.0, 0.0, 0.0)
    wider = [torch.nn.functional.pad(tensor, (0, 4), value=v) for tensor, v in zip(data, fill, strict=True)]
    value, grad = total(ALL[name], wider, how)
    assert torch.allclose(value, whole, atol=1e-6)
    assert torch.allclose(grad[:, :7], gradient, atol=1e-7) and grad[:, 7:].abs().max() == 0


@pytest.mark.parametrize("name", ALL)
def test_shuffling_rows_changes_nothing(name):
    data = batch()
    order = torch.tensor([3, 1, 4, 0, 2])
    value, gradient = total(ALL[name], data)
    other, mixed = total(ALL[name], [tensor[order] for tensor in data])
    assert torch.allclose(other, value, atol=1e-6) and torch.allclose(mixed, gradient[order], atol=1e-7)


def one_token(loss, ratio, advantage):
    leaf = torch.tensor([[math.log(ratio)]], requires_grad=True)
    terms = loss(leaf, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1))
    terms.loss.sum().backward()
    return terms.loss.item(), leaf.grad.item(), bool(terms.clipped.any())


def test_ppo_stops_the_gradient_only_where_the_ratio_left_the_bounds_in_the_favoured_direction():
    loss = ppo(clip_low=0.2, clip_high=0.28)
    assert one_token(loss, 1.5, 1.0) == (pytest.approx(-1.28), 0.0, True)
    assert one_token(loss, 0.5, -1.0) == (pytest.approx(0.8), 0.0, True)
    assert one_token(loss, 1.5, -1.0) == (pytest.approx(1.5), pytest.approx(1.5), False)
    assert one_token(loss, 1.25, 1.0) == (pytest.approx(-1.25), pytest.approx(-1.25), False)


def test_dual_clip_bounds_the_loss_of_a_negative_advantage():
    assert one_token(ppo(dual_clip=3.0), 10.0, -1.0) == (pytest.approx(3.0), 0.0, True)
    assert one_token(ppo(dual_clip=3.0), 2.0, -1.0)[1] == pytest.approx(2.0)


def test_cispo_keeps_a_capped_gradient_where_ppo_drops_it():
    assert one_token(cispo(cap=2.0), 4.0, 1.0)[1] == pytest.approx(-2.0)
    assert one_token(ppo(), 4.0, 1.0)[1] == 0.0


def test_gspo_clips_whole_rows_by_their_geometric_mean_ratio():
    logprobs = torch.tensor([[0.5, -0.5], [0.1, 0.1]])
    terms = gspo(clip_low=0.05, clip_high=0.05)(logprobs, torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2, 2))
    assert terms.clipped.tolist() == [[False, False], [True, True]]
    assert torch.allclose(terms.loss[0], torch.tensor(-1.0)) and torch.allclose(terms.loss[1], torch.tensor(-1.05))


def test_the_squared_loss_has_the_gradient_of_its_equation():
    logprobs, old, advantages, mask = batch()
    leaf = logprobs.clone().requires_grad_()
    weights = token_weights(mask, "rollout", 7)
    (squared(tau=0.3)(leaf, old, advantages, mask).loss * weights).sum().backward()
    moved = ((logprobs - old) * mask).sum(1, keepdim=True)
    assert torch.allclose(leaf.grad, (0.3 * moved - advantages) * mask / 5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ALL if name != "gspo"])
def test_on_a_three_armed_bandit_the_expected_gradient_is_the_closed_form(name):
    logits = torch.tensor([0.2, -0.4, 1.0], dtype=torch.double, requires_grad=True)
    rewards = torch.tensor([1.0, 0.0, 0.3], dtype=torch.double)
    p = torch.softmax(logits, 0).detach()
    logprobs = torch.log_softmax(logits, 0)[:, None]
    advantages = (rewards - (p * rewards).sum())[:, None]
    terms = ALL[name](logprobs, logprobs.detach(), advantages, torch.ones(3, 1, dtype=torch.double))
    (terms.loss[:, 0] * p).sum().backward()
    closed = -(p * (rewards - (p * rewards).sum()))
    assert torch.allclose(logits.grad, closed, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("token", [[0.25, 0.25, 0.25], [0.25, 0, 0]]),
        ("sequence", [[1 / 6] * 3, [0.5, 0, 0]]),
        ("constant", [[1 / 20] * 3, [1 / 20, 0, 0]]),
        ("rollout", [[0.5] * 3, [0.5, 0, 0]]),
    ],
)
def test_normalisers_weigh_tokens_as_they_say(name, weights):
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert torch.allclose(token_weights(mask, name, 10), torch.tensor(weights))


def test_kl_estimators_average_to_the_exact_divergence_and_only_the_weighted_ones_have_its_gradient():
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0, -1.0], dtype=torch.double, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, 0.1, -0.3, 0.4], dtype=torch.double)
    exact = exact_kl(logits, reference)
    (true,) = torch.autograd.grad(exact, logits)
    logprobs, other = torch.log_softmax(logits, 0), torch.log_softmax(reference, 0)
    p = logprobs.detach().exp()
    for name in ("k1", "k3"):  # k2 has a biased value
        assert torch.allclose((p * KL_ESTIMATORS[name](logprobs, other)).sum(), exact, atol=1e-9)
    moved = torch.tensor([0.8, 0.1, 0.2, -0.4, -0.5], dtype=torch.double).log_softmax(0)
    for sampler in (logprobs.detach(), moved):  # the policy itself, and one that several updates have left behind
        for name in KL_ESTIMATORS:
            _, fair = fair_kl(name, logprobs, other, sampler)
            (gradient,) = torch.autograd.grad((sampler.exp() * fair).sum(), logits, retain_graph=True)
            assert torch.allclose(gradient, true, atol=1e-9), name
    (plain,) = torch.autograd.grad((p * k1(logprobs, other)).sum(), logits, retain_graph=True)
    assert plain.abs().max() < 1e-9


def test_importance_weights_are_truncated_or_masked_as_by_hand():
    trainer = torch.log(torch.tensor([[0.5, 0.5, 0.2, 0.4]]))
    engine = torch.log(torch.tensor([[0.1, 0.5, 0.8, 0.4]]))
    engine[0, 3] = float("nan")
    mask = torch.ones(1, 4)
    assert torch.allclose(Correction(cap=2).weights(trainer, engine, mask), torch.tensor([[2.0, 1.0, 0.25, 1.0]]))
    masked = Correction(how="mask", cap=2).weights(trainer, engine, mask)
    assert torch.allclose(masked, torch.tensor([[0.0, 1.0, 0.0, 1.0]]))
    whole = Correction(level="sequence", cap=2).weights(trainer, engine, mask)
    assert torch.allclose(whole, torch.full((1, 4), 5 * 1 * 0.25).clamp(max=2))
    assert (Correction(level="none").weights(trainer, engine, mask) == 1).all()


def test_parameters_out_of_range_are_refused_by_name():
    for make, field in [
        (lambda: ppo(clip_low=-0.1), "ppo.clip_low"),
        (lambda: ppo(dual_clip=1.0), "ppo.dual_clip"),
        (lambda: cispo(cap=0.5), "cispo.cap"),
        (lambda: squared(tau=0.0), "squared.tau"),
        (lambda: Correction(cap=0.5), "correction.cap"),
    ]:
        with pytest.raises(ConfigError, match=field):
            make()
