"""Divergences equal closed forms, TRL's numbers and each other where they must; buckets bound them from below."""

import importlib.util
import math

import pytest
import torch

from distill.supervision.divergence import WORDS, advantage, coarse, forward, jsd, make_divergence, reverse
from train.base.models import Shape, new_model
from train.corpora.cipher import cipher
from train.update.logprobs import token_logprobs
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric


def drawn(rows, size, seed, scale=2.0):
    return scale * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logs(*probabilities):
    return torch.log(torch.tensor([probabilities], dtype=torch.float64))


def test_two_coins_give_the_closed_forms():
    student, teacher = logs(0.25, 0.75), logs(0.5, 0.5)
    assert float(forward(student, teacher)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert float(reverse(student, teacher)) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    m = (0.375, 0.625)
    half = 0.5 * (0.5 * math.log(0.5 / m[0]) + 0.5 * math.log(0.5 / m[1]))
    half += 0.5 * (0.25 * math.log(0.25 / m[0]) + 0.75 * math.log(0.75 / m[1]))
    assert float(jsd(student, teacher, 0.5)) == pytest.approx(half)


def test_equal_models_are_nothing_apart_and_others_always_something():
    student, teacher = torch.log_softmax(drawn(40, 12, 1), -1), torch.log_softmax(drawn(40, 12, 2), -1)
    for kind in ("forward", "reverse", "jsd"):
        divergence = make_divergence(kind, 0.3)
        assert divergence(student, student).abs().max() < 1e-12
        assert divergence(student, teacher).min() > 0
    assert jsd(student, teacher, 0.5).max() <= math.log(2)


def test_jsd_goes_over_into_both_directions():
    student, teacher = torch.log_softmax(drawn(20, 9, 3), -1), torch.log_softmax(drawn(20, 9, 4), -1)
    assert torch.allclose(jsd(student, teacher, 1e-6) / 1e-6, forward(student, teacher), rtol=1e-3)
    assert torch.allclose(jsd(student, teacher, 1 - 1e-6) / 1e-6, reverse(student, teacher), rtol=1e-3)


def test_gradients_are_those_of_the_calculus():
    logits, teacher = drawn(5, 7, 5).requires_grad_(), torch.log_softmax(drawn(5, 7, 6), -1)
    forward(torch.log_softmax(logits, -1), teacher).sum().backward()
    p = torch.softmax(logits.detach(), -1)
    assert torch.allclose(logits.grad, p - teacher.exp(), atol=1e-12)
    logits.grad = None
    values = reverse(torch.log_softmax(logits, -1), teacher)
    values.sum().backward()
    wanted = p * (p.log() - teacher - values.detach()[:, None])
    assert torch.allclose(logits.grad, wanted, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: jsd(torch.log_softmax(x, -1), teacher, 0.3), logits)


def test_the_advantage_of_sampled_tokens_is_the_gradient_of_the_reverse_divergence():
    logits, teacher = drawn(1, 6, 7).requires_grad_(), torch.log_softmax(drawn(1, 6, 8), -1)
    reverse(torch.log_softmax(logits, -1), teacher).sum().backward()
    wanted, logits.grad = logits.grad.clone(), None
    student = torch.log_softmax(logits, -1)
    gain = advantage(student, teacher)
    assert not gain.requires_grad
    (student.detach().exp() * -gain * student).sum().backward()  # the expectation over what is sampled
    assert torch.allclose(logits.grad, wanted, atol=1e-12)


@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_a_bucket_for_the_rest_makes_a_lower_bound_that_is_never_negative(kind):
    divergence = make_divergence(kind, 0.4)
    student, teacher = torch.log_softmax(drawn(200, 30, 9), -1), torch.log_softmax(drawn(200, 30, 10), -1)
    whole, before = divergence(student, teacher), torch.zeros(200, dtype=torch.float64)
    for k in (1, 4, 12, 29):
        known, ids = teacher.topk(k)
        found = divergence(*coarse(student, ids, known))
        assert (found >= -1e-12).all() and (found <= whole + 1e-6).all()
        assert (found >= before - 1e-6).all()  # more tokens told, nearer to the whole
        before = found


@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_rounding_to_float32_lifts_no_bound_where_the_rest_is_unlikely(kind):
    divergence = make_divergence(kind, 0.4)
    logits = drawn(400, 20, 11, scale=1.0)
    logits[:, -1] = torch.linspace(-18, -10, 400, dtype=torch.float64)  # from 1e-9 to 1e-5 is not told
    teacher, student = torch.log_softmax(logits.float(), -1), torch.log_softmax(drawn(400, 20, 12), -1)
    known, ids = teacher.topk(19)
    found = divergence(*coarse(student.float(), ids, known)).double()
    assert (found <= divergence(student, teacher.double()) + 2e-6).all() and (found >= -1e-6).all()


def test_leaving_the_told_tokens_is_no_way_to_a_small_loss():
    teacher = logs(0.6, 0.3, 0.05, 0.05)
    known, ids = teacher.topk(2)
    near, away = logs(0.6, 0.3, 0.05, 0.05), logs(1e-6, 1e-6, 0.5, 0.5 - 2e-6)
    for divergence in (forward, reverse):
        assert divergence(*coarse(away, ids, known)) > divergence(*coarse(near, ids, known)) + 1
    # without the bucket the student does best by leaving: the failure that the bucket repairs
    bare = (away.gather(1, ids).exp() * (away.gather(1, ids) - known)).sum()
    assert bare.abs() < 1e-4


def test_a_bucket_survives_a_teacher_that_is_sure():
    teacher = torch.log_softmax(torch.tensor([[60.0, 0.0, 0.0, 0.0]]), -1)
    known, ids = teacher.topk(2)
    student = torch.log_softmax(torch.zeros(1, 4), -1).requires_grad_()
    for divergence in (forward, reverse):
        value = divergence(*coarse(student, ids, known)).sum()
        value.backward()
        assert torch.isfinite(value) and torch.isfinite(student.grad).all()


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="not over a vocabulary"):
        make_divergence("sampled")
    with pytest.raises(ConfigError, match="beta must be in"):
        make_divergence("jsd", 1.0)


def test_every_kind_has_its_direction_in_words():
    assert set(WORDS) == {"reverse", "forward", "jsd", "sampled"}
    assert "mode-seeking" in WORDS["reverse"] and "covering" in WORDS["forward"]


@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_chunks_change_neither_the_value_nor_the_gradient(kind, monkeypatch):
    texts = cipher(symbols=12, max_steps=4).tokenizer()
    model, teacher = (
        new_model(Shape(hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=24), texts, s) for s in (1, 2)
    )
    ids = torch.randint(3, len(texts), (6, 11), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(10)[None] < torch.tensor([10, 4, 0, 7, 1, 9])[:, None]
    with torch.no_grad():
        told = torch.log_softmax(teacher(input_ids=ids[:, :-1]).logits[mask], -1)
    divergence = make_divergence(kind, 0.3)

    def gradient(loss):
        model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    monkeypatch.setattr("train.update.logprobs._COMPARED", 5)
    scored = token_logprobs(model, ids, mask, lambda student, part: divergence(student, told[part]))
    plain = divergence(torch.log_softmax(model(input_ids=ids[:, :-1]).logits[mask], -1), told)
    assert torch.allclose(scored.compared[mask], plain, atol=1e-6)
    assert not scored.compared[~mask].any()
    assert torch.allclose(gradient(scored.compared.sum()), gradient(plain.sum()), atol=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: ttckit[train]")
@pytest.mark.filterwarnings("default")  # what TRL warns of is not ours
@pytest.mark.parametrize(("kind", "beta"), [("forward", 0.0), ("reverse", 1.0), ("jsd", 0.5), ("jsd", 0.2)])
def test_numbers_are_those_of_trls_distillation_trainer(kind, beta):
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    made = torch.Generator().manual_seed(11)
    hidden, other = torch.randn(3, 6, 8, generator=made).requires_grad_(), torch.randn(3, 6, 5, generator=made)
    heads = torch.randn(40, 8, generator=made), torch.randn(40, 5, generator=made)
    mask = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    theirs, entropy, number = _chunked_divergence_loss(hidden, other, *heads, mask, beta, int(mask.sum()))
    (gradient,) = torch.autograd.grad(theirs, hidden)
    student = torch.log_softmax(hidden @ heads[0].T, -1)
    teacher = torch.log_softmax(other @ heads[1].T, -1)
    divergence = make_divergence(kind, 0.5 if kind != "jsd" else beta)
    wanted = mask.bool()
    ours = divergence(student[wanted], teacher[wanted]).sum() / wanted.sum()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    assert torch.allclose(torch.autograd.grad(ours, hidden)[0], gradient, atol=1e-6)
