"""Preference losses against closed forms."""

import math

import pytest
import torch

from train.examples.pairs import Labelled, Pairs, ranked_pairs
from train.preferences.dpo import dpo
from train.preferences.ipo import ipo
from train.preferences.kto import kto
from train.preferences.orpo import orpo
from train.preferences.simpo import simpo
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric


def pair(**more):
    one = lambda value: torch.tensor([float(value)])  # noqa: E731
    values = {
        "chosen": one(-4), "rejected": one(-9), "chosen_length": one(2), "rejected_length": one(3),
        "reference_chosen": one(-5), "reference_rejected": one(-8),
    }  # fmt: skip
    return Pairs(**{**values, **more})


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def test_dpo_is_the_log_sigmoid_of_the_difference_of_log_ratios():
    assert dpo(beta=0.5)(pair()).item() == pytest.approx(-log_sigmoid(0.5 * (1 - -1)))
    assert dpo(beta=0.5, per_token=True)(pair()).item() == pytest.approx(-log_sigmoid(0.5 * (1 / 2 + 1 / 3)))
    smooth = dpo(beta=0.5, label_smoothing=0.1)(pair()).item()
    assert smooth == pytest.approx(-0.9 * log_sigmoid(1.0) - 0.1 * log_sigmoid(-1.0))


def test_at_the_reference_every_dpo_loss_is_log_two_and_ipo_the_square_of_its_margin():
    same = pair(reference_chosen=torch.tensor([-4.0]), reference_rejected=torch.tensor([-9.0]))
    assert dpo()(same).item() == pytest.approx(math.log(2))
    assert ipo(beta=0.1)(same).item() == pytest.approx(25.0)


def test_simpo_and_orpo_need_no_reference():
    free = pair(reference_chosen=None, reference_rejected=None)
    assert simpo(beta=2.0, gamma=1.0)(free).item() == pytest.approx(-log_sigmoid(2 * (-2 + 3) - 1))
    odds = lambda logp: logp - math.log(1 - math.exp(logp))  # noqa: E731
    expected = 2 - 0.1 * log_sigmoid(odds(-2) - odds(-3))
    assert orpo(beta=0.1)(free).item() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match="dpo needs reference"):
        dpo()(free)


def test_orpo_stays_finite_for_certain_and_for_hopeless_answers():
    sure = pair(chosen=torch.tensor([-1e-9]), rejected=torch.tensor([-3000.0]))
    leaf = sure.chosen.requires_grad_()
    loss = orpo()(sure)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(leaf.grad).all()


def test_kto_weighs_gains_and_losses_against_the_reference_point():
    labelled = Labelled(
        torch.tensor([-3.0, -3.0]), torch.tensor([-4.0, -4.0]), torch.tensor([True, False]), torch.tensor(0.4)
    )
    good, bad = kto(beta=0.5, good_weight=1.0, bad_weight=2.0)(labelled).tolist()
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    assert good == pytest.approx(1 - sigmoid(0.5 * 0.6)) and bad == pytest.approx(2 * (1 - sigmoid(-0.5 * 0.6)))


def test_a_ranking_gives_all_its_pairs_and_one_unit_of_weight_without_ties():
    pairs = ranked_pairs([3.0, 1.0, 2.0, 1.0])
    assert {(i, j) for i, j, _ in pairs} == {(0, 1), (0, 2), (0, 3), (2, 1), (2, 3)}
    assert sum(weight for _, _, weight in pairs) == pytest.approx(1.0)
    assert ranked_pairs([1.0, 1.0]) == []


def test_pair_weights_scale_the_loss():
    heavy = pair(weight=torch.tensor([3.0]))
    for make in (dpo(), ipo(), simpo(), orpo()):
        assert make(heavy).item() == pytest.approx(3 * make(pair()).item(), rel=1e-5)


def test_betas_out_of_range_are_refused_by_name():
    for make in (dpo, ipo, simpo, kto):
        with pytest.raises(ConfigError, match=f"{make.__name__}.beta"):
            make(beta=0.0)
