"""Packed rows give the numbers of padded ones: none attends to another, and positions start anew."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.advantages.batch import batch as batch_advantage
from train.base.models import Shape, new_model
from train.base.optimiser import Optimiser, Schedule
from train.examples.examples import Example
from train.examples.imitation import imitation_batch
from train.losses.ppo import ppo
from train.update.packing import check_packing, packed_hidden, placed
from train.update.policy import token_logprobs
from train.update.update import Objective, Updater
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric


def examples(vocabulary, lengths):
    rng = torch.Generator().manual_seed(3)
    found = []
    for number, length in enumerate(lengths):
        ids = torch.randint(1, vocabulary, (length,), generator=rng).tolist()
        found.append(Example(str(number), tuple(ids[:2]), tuple(ids[2:])))
    return found


LENGTHS = (5, 31, 3, 12, 12, 7, 24, 4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("most", [31, 40, 64, 500])
def test_packed_log_probabilities_equal_padded_ones(nano, attention, most):
    model = new_model(Shape(hidden=32, layers=2, heads=2, kv_heads=1, mlp=64), nano, 0)
    model.set_attn_implementation(attention)
    batch = imitation_batch(examples(len(nano), LENGTHS), 0, "token", 1)
    padded = token_logprobs(model, batch.ids, batch.mask).logprobs
    packed = token_logprobs(model, batch.ids, batch.mask, packed=most).logprobs
    assert (padded - packed).abs().max() < 1e-6 * max(1.0, float(padded.detach().abs().max()))


def test_a_row_does_not_see_its_neighbours(nano):
    model = new_model(Shape(hidden=32, layers=2, heads=2, kv_heads=1, mlp=64), nano, 0)
    ids = torch.randint(1, len(nano), (3, 10), generator=torch.Generator().manual_seed(1))
    before = packed_hidden(model, ids, [10, 6, 8], 64)
    changed = ids.clone()
    changed[0] = 1
    after = packed_hidden(model, changed, [10, 6, 8], 64)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1:], after[1:])
    assert not before[1, 6:].any()


def test_an_update_on_packed_rows_is_the_update_on_padded_ones(nano):
    weights = []
    for packed in (0, 48):
        model = new_model(Shape(hidden=32, layers=1, heads=2, kv_heads=1, mlp=64), nano, 0)
        objective = Objective(ppo(), batch_advantage())
        updater = Updater(model, Optimiser(model, Schedule(1e-3, 10)), objective, packed=packed)
        told = updater.step(imitation_batch(examples(len(nano), LENGTHS), 0, "token", 1))
        weights.append((told["loss"], told["grad_norm"]))
    assert weights[0] == pytest.approx(weights[1], abs=1e-6, rel=1e-6)


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 40))
def test_every_row_has_one_place_and_no_packed_row_is_too_long(lengths, most):
    bins = placed(lengths, most)
    assert sorted(row for rows in bins for row in rows) == list(range(len(lengths)))
    for rows in bins:
        assert sum(lengths[row] for row in rows) <= most or len([row for row in rows if lengths[row]]) == 1


def test_models_with_sliding_windows_are_refused(nano):
    model = new_model(Shape(hidden=32, layers=1, heads=2, kv_heads=1, mlp=64), nano, 0)
    check_packing(model)
    model.config.layer_types = ["sliding_attention"]
    with pytest.raises(ConfigError, match="set packed = 0"):
        check_packing(model)
