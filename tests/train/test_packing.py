"""Packed rows, and rows behind one copy of their beginning, give the numbers of padded ones: none sees another."""

from itertools import combinations, pairwise

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
from train.update.batch import _cheapest, micro_batches
from train.update.logprobs import (
    Family,
    check_packing,
    families,
    kindred,
    laid_hidden,
    placed,
    split,
    token_logprobs,
    worth_sharing,
)
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
    wanted = torch.ones(3, 9, dtype=torch.bool)
    wanted[1, 6:] = False

    def hidden(ids):
        return laid_hidden(model, ids, wanted, families(ids, wanted), 64).split([9, 6, 9])

    changed = ids.clone()
    changed[0] = 1
    before, after = hidden(ids), hidden(changed)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1]) and torch.equal(before[2], after[2])


def rollouts(vocabulary, prompts, answers):
    """Examples that begin alike: `prompts` lengths of beginnings, `answers` lengths of what follows each."""
    rng = torch.Generator().manual_seed(4)

    def text(length):
        return tuple(torch.randint(1, vocabulary, (length,), generator=rng).tolist())

    return [
        Example(f"{p}-{a}", prompt, text(answers[(p + a) % len(answers)]))
        for p, prompt in enumerate(map(text, prompts))
        for a in range(4)
    ]


def sharing_model(nano, attention="sdpa"):
    """Wide enough that attention over a longer line costs little beside the rest."""
    model = new_model(Shape(hidden=128, layers=2, heads=2, kv_heads=1, mlp=64), nano, 0)
    model.set_attn_implementation(attention)
    return model


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("packed", [0, 30, 64, 500])
def test_a_beginning_that_is_computed_once_gives_the_numbers_and_the_gradient_of_padded_rows(nano, attention, packed):
    model = sharing_model(nano, attention)
    batch = imitation_batch(rollouts(len(nano), (40, 25), (5, 9, 3)), 0, "token", 1)
    weights = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(5))
    shared = [family.common for family in worth_sharing(model, batch.ids, batch.mask)]
    assert shared == ([39, 24] if attention == "sdpa" else [])
    numbers, gradients = [], []
    for rows in ([slice(0, 8)], [slice(row, row + 1) for row in range(8)]):
        model.zero_grad()
        scored = torch.cat([token_logprobs(model, batch.ids[r], batch.mask[r], packed=packed).logprobs for r in rows])
        (scored * weights).sum().backward()
        numbers.append(scored.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert (numbers[0] - numbers[1]).abs().max() < 1e-5
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[1].norm()


def test_beginnings_are_shared_only_where_that_saves_a_tenth(nano):
    model = sharing_model(nano)
    long, short = (imitation_batch(rollouts(len(nano), (length,), (9,)), 0, "token", 1) for length in (40, 2))
    assert worth_sharing(model, long.ids, long.mask) and not worth_sharing(model, short.ids, short.mask)
    assert kindred(model, long.ids, long.mask) is not None and kindred(model, short.ids, short.mask) is None
    apart = imitation_batch(examples(len(nano), LENGTHS), 0, "token", 1)
    assert not worth_sharing(model, apart.ids, apart.mask) and kindred(model, apart.ids, apart.mask) is None
    model.config.layer_types = ["sliding_attention"]
    assert not worth_sharing(model, long.ids, long.mask)


def test_micro_batches_keep_families_together_and_lose_no_row(nano):
    batch = imitation_batch(rollouts(len(nano), (40, 25, 30), (5, 9, 3)), 0, "token", 1)
    kin = kindred(sharing_model(nano), batch.ids, batch.mask)
    parts = list(micro_batches(batch.mask, torch.arange(12), 4 * 49, 1, kin))
    assert sorted(torch.cat(parts).tolist()) == list(range(12))
    assert [sorted({row // 4 for row in part.tolist()}) for part in parts] == [[1], [2], [0]]


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=9), st.integers(1, 1500), st.integers(1, 3), st.integers(0, 300)
)
def test_no_other_cut_of_sorted_rows_costs_less(lengths, most, least, each):
    lengths = sorted(lengths)
    num = len(lengths)

    def cost(ends):
        parts = [lengths[start:end] for start, end in pairwise((0, *ends, num))]
        if min(map(len, parts)) < min(least, num):
            return float("inf")
        sizes = [len(part) * part[-1] for part in parts]
        return len(parts) * each + sum(sizes) + 10**6 * sum(max(size - most, 0) for size in sizes)

    cuts = list(_cheapest(lengths, [False] * num, most, least, each))
    assert [start for start, _ in cuts] == [0, *(end for _, end in cuts[:-1])] and cuts[-1][1] == num
    every = (ends for k in range(num) for ends in combinations(range(1, num), k))
    assert cost([end for _, end in cuts[:-1]]) == min(map(cost, every))


def test_rows_of_unlike_length_are_apart_where_padding_costs_more_than_a_pass():
    def parts(lengths):
        mask = torch.arange(300)[None] < torch.tensor(lengths)[:, None]
        return [part.tolist() for part in micro_batches(mask, torch.arange(len(lengths)), 2048)]

    assert parts([280, 60, 62, 58, 61]) == [[3, 1, 4, 2], [0]]
    assert parts([70, 60, 62, 58, 61]) == [[3, 1, 4, 2, 0]]


def test_an_update_that_shares_beginnings_is_the_update_of_a_row_at_a_time(nano):
    told = []
    for micro in (1, 400):
        model = sharing_model(nano)
        updater = Updater(
            model, Optimiser(model, Schedule(1e-3, 10)), Objective(ppo(), batch_advantage()), micro_tokens=micro
        )
        told.append(updater.step(imitation_batch(rollouts(len(nano), (40, 25), (5, 9, 3)), 0, "token", 1)))
    for name in ("loss", "grad_norm", "entropy"):
        assert told[0][name] == pytest.approx(told[1][name], rel=1e-5)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 60))
def test_a_family_that_is_split_keeps_every_row_and_its_beginning(own, common, most):
    parts = list(split(Family(tuple(range(len(own))), common, tuple(own)), most))
    assert [row for part in parts for row in part.rows] == list(range(len(own)))
    assert [size for part in parts for size in part.own] == own
    assert all(part.common == common and (part.size <= most or len(part.rows) == 1) for part in parts)


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
