"""The loop end to end on a real model and engine: it learns, resumes bit for bit, and trusts no stale weights."""

import asyncio
import contextlib
import copy
import dataclasses
import json
import math

import pytest
import torch

from tests.train.cipher_base import Souring, gained, make_parts, ran
from tests.train.stages import metrics_of
from train.base.checkpoint import Checkpoints
from train.base.health import Health, configured
from train.base.optimiser import Optimiser, Schedule
from train.base.rollout import Collector, by_group, has_signal, read_rollouts
from train.base.weights import Sharded
from train.base.world import World
from train.rl.loop import LoopPlan, LoopState, evaluate, learn, outcome_of, referenced, resume, update_on
from train.update.batch import rollout_batch, shuffled
from train.update.logprobs import token_logprobs
from train.update.update import Updater, weighted
from ttc.core import Verdict
from ttc.errors import ConfigError, TrainingError
from ttc.records import LineFile

pytestmark = pytest.mark.numeric


@pytest.fixture
def new_parts(cipher_model):
    made = []

    def make(folder):
        made.append(make_parts(cipher_model, folder))
        return made[-1]

    yield make
    for parts in made:
        close(parts)


def close(parts):
    parts.metrics.close()
    parts.rollouts.close()
    asyncio.run(parts.collector.engine.close())


def run(plan, parts):
    return ran(learn(plan, parts), parts)


def weights(parts):
    return [parameter.detach().clone() for parameter in parts.updater.model.parameters()]


def test_reward_alone_makes_the_model_think_and_be_right(new_parts, tmp_path):
    parts = new_parts(tmp_path)
    run(LoopPlan(steps=24, prompts=12, eval_every=12), parts)
    rows = metrics_of(tmp_path)
    assert gained(rows, "accuracy") > 0.3 and gained(rows, "thinking_share") > 0.3
    assert [row["step"] for row in rows if "held_out" in row] == [12, 24]
    assert max(row["parity"] for row in rows) < 1e-4
    # a step in which every group had one reward makes no update, and measures none
    assert max(row["mismatch"] for row in rows if "mismatch" in row) < 1e-4


class Content:
    """A verifier that finds every answer right."""

    async def verify(self, target, submission):
        return Verdict("correct")


def test_tokens_of_an_update_are_those_that_it_learnt_from(new_parts, tmp_path):
    run(LoopPlan(steps=3, prompts=12, eval_every=9), new_parts(tmp_path))
    rows = metrics_of(tmp_path)
    assert sum(row["tokens_learnt"] for row in rows) < rows[-1]["tokens"]
    for row in rows:
        groups = by_group(list(read_rollouts(tmp_path / "rollouts.jsonl", row["step"] - 1))).values()
        num = sum(len(one.token_ids) for group in groups if has_signal(group) for one in group)
        assert row["tokens_learnt"] == num
        assert row["update_tok_s"] == pytest.approx(num / row["update_s"])


def test_a_run_ends_once_its_held_out_accuracy_is_what_was_asked_for(new_parts, tmp_path):
    parts = new_parts(tmp_path)
    parts = dataclasses.replace(parts, held_out=dataclasses.replace(parts.held_out, verifier=Content()))
    last = run(LoopPlan(steps=6, prompts=4, eval_every=2, until=1.0), parts)
    assert (last["step"], last["stopped"]) == (2, "held-out accuracy reached 1")
    (tmp_path / "metrics.jsonl").rename(tmp_path / "before.jsonl")
    again = new_parts(tmp_path)  # killed before its result was written down
    assert run(LoopPlan(steps=6, prompts=4, eval_every=2, until=1.0), again) == last
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_two_halves_with_a_resume_are_bit_for_bit_the_whole_run(new_parts, tmp_path):
    whole = new_parts(tmp_path / "whole")
    run(LoopPlan(steps=6, prompts=4, eval_every=3, save_every=3), whole)
    first = new_parts(tmp_path / "halves")
    run(LoopPlan(steps=3, prompts=4, eval_every=3, save_every=3), first)
    second = new_parts(tmp_path / "halves")
    run(LoopPlan(steps=6, prompts=4, eval_every=3, save_every=3), second)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))
    assert logged(tmp_path / "whole") == logged(tmp_path / "halves")


def test_a_roll_back_after_a_resume_goes_to_no_weights_of_the_attempt_that_was_lost(new_parts, tmp_path):
    def with_best():
        parts = new_parts(tmp_path)
        return dataclasses.replace(parts, best=Checkpoints(tmp_path / "checkpoints" / "best", print, keep=1))

    def steps():
        return sorted(int(place.name[-6:]) for place in (tmp_path / "checkpoints" / "best").iterdir())

    first = with_best()
    run(LoopPlan(steps=2, prompts=2, eval_every=1, save_every=2), first)
    best = steps()[-1]
    lost = with_best()
    for step in (3, 4):  # better than ever, and killed before the next checkpoint
        asyncio.run(evaluate(LoopState(step), lost, LoopPlan(1, 1)))
    close(lost)
    assert steps() == [best, 4]
    again = with_best()
    assert resume(again).step == 2 and steps() == [best]
    close(again)


def test_what_is_measured_says_which_problems_are_variants_of_one(new_parts, tmp_path):
    parts = new_parts(tmp_path)
    items = [dataclasses.replace(item, cluster="one") for item in parts.held_out.items[:2]] + parts.held_out.items[2:]
    held_out = dataclasses.replace(parts.held_out, items=items)
    with contextlib.closing(LineFile(tmp_path / "held_out.jsonl")) as file:
        for measured in (parts.held_out, held_out):
            own = dataclasses.replace(parts, held_out=measured, held_out_file=file)
            asyncio.run(evaluate(LoopState(), own, LoopPlan(1, 1)))
    close(parts)
    plain, clustered = (json.loads(line) for line in (tmp_path / "held_out.jsonl").read_text().splitlines())
    assert "groups" not in plain and clustered["groups"] == [item.group for item in items]


def test_a_loss_that_is_not_finite_ends_the_run_with_an_error_that_names_step_and_metric(new_parts, tmp_path):
    async def broken(rollouts):
        return {"loss": math.nan, "grad_norm": math.nan, "updated": 1.0}

    parts = new_parts(tmp_path)
    with pytest.raises(TrainingError, match=r"step 1: loss is nan, grad_norm is nan.*lower lr"):
        asyncio.run(learn(LoopPlan(steps=2, prompts=2, save_every=1), parts, broken))
    assert not (tmp_path / "checkpoints").exists()


def logged(folder):
    rows = metrics_of(folder)
    return [(row["step"], row["accuracy"], row["loss"], row["grad_norm"]) for row in rows]


def test_recorded_rollouts_give_the_logged_update_again(new_parts, tmp_path):
    parts = new_parts(tmp_path)
    plan = LoopPlan(steps=2, prompts=4, eval_every=2)
    run(plan, parts)
    told = logged(tmp_path)
    fresh = new_parts(tmp_path / "again")
    for step in range(2):
        rollouts = list(read_rollouts(tmp_path / "rollouts.jsonl", step))
        found = update_on(rollouts, plan, fresh.updater, fresh.pad_id)
        assert (found["loss"], found["grad_norm"]) == told[step][2:]


def test_the_parity_probe_catches_a_stale_tied_head_and_a_perturbed_weight(new_parts, tmp_path):
    parts = new_parts(tmp_path)
    model, syncer = parts.updater.model, parts.syncer
    sequence = [list(range(3, 13))]

    async def go():
        await syncer.push()
        assert await syncer.probe(sequence) < 1e-5
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(1.05)  # tied: the engine's packed head is stale until a push
        with pytest.raises(TrainingError, match="parity probe"):
            await syncer.probe(sequence)
        await syncer.push()
        assert await syncer.probe(sequence) < 1e-5
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight[0].add_(0.5)
        with pytest.raises(TrainingError, match="parity probe"):
            await syncer.probe(sequence)

    asyncio.run(go())


def test_rounding_in_bf16_is_no_stale_weight_however_surprising_the_text(cipher_model):
    """Of random ids, which surprise by many nats, rounding moves log-probabilities by more than of sampled ones."""
    from train.base.models import load_model
    from train.rollouts.sync import LIMITS, Syncer
    from ttc.engines.embedded.engine import embedded

    limit = LIMITS["bfloat16"]
    model = load_model(cipher_model, "cpu", dtype=torch.bfloat16)
    engine = embedded(str(cipher_model), dtype="bfloat16", device="cpu")
    syncer = Syncer(engine, model, limit=limit, in_bf16=True)
    rng = torch.Generator().manual_seed(0)
    texts = torch.randint(3, model.config.vocab_size, (4, 20), generator=rng).tolist()

    async def go():
        await syncer.push()
        assert limit < await syncer.probe(texts)
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(1.05)
        with pytest.raises(TrainingError, match="parity probe"):
            await syncer.probe(texts)
        await engine.close()

    asyncio.run(go())


def collect(new_parts, tmp_path, prompts=3):
    parts = new_parts(tmp_path)

    async def go():
        items = parts.sampler.draw(prompts, 0)
        judged = await parts.rewarder.judge(await parts.collector.collect(items, 0), 0)
        return judged

    return parts, asyncio.run(go())


def test_rollouts_hold_the_sampled_ids_with_their_end_and_the_engines_log_probabilities(new_parts, tmp_path):
    parts, rollouts = collect(new_parts, tmp_path)
    assert len(rollouts) == 18 and {rollout.group for rollout in rollouts} == {0, 1, 2}
    for rollout in rollouts:
        assert len(rollout.token_ids) == len(rollout.logprobs) == len(rollout.sampled)
        assert all(rollout.sampled) and all(value is not None and value <= 0 for value in rollout.logprobs)
        ended = rollout.token_ids[-1] == 1
        assert ended == (not rollout.truncated)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_the_reference_reads_every_rollout_where_it_pulls_and_an_eighth_where_it_is_watched(
    new_parts, tmp_path, weight
):
    parts, rollouts = collect(new_parts, tmp_path)
    objective = dataclasses.replace(parts.updater.objective, kl_weight=weight)
    model = parts.updater.model
    updater = Updater(model, parts.updater.optimiser, objective, reference=copy.deepcopy(model))
    told, metrics = referenced(rollouts, updater, parts.pad_id)
    assert [dataclasses.replace(rollout, reference_logprobs=()) for rollout in told] == rollouts
    read = [place for place, rollout in enumerate(told) if rollout.reference_logprobs]
    assert read == list(range(0, 18, 1 if weight else 8))
    assert abs(metrics["kl_reference"]) < 1e-6


def test_a_sampled_padding_id_is_trained_on_because_masks_come_from_lengths(new_parts, tmp_path):
    _, rollouts = collect(new_parts, tmp_path, prompts=1)
    odd = dataclasses.replace(rollouts[0], token_ids=(0, 0, 5), sampled=(True,) * 3, logprobs=(-1.0,) * 3, reward=1.0)
    batch = rollout_batch([odd, rollouts[1]], pad_id=0)
    assert int(batch.mask[0].sum()) == 3


def test_injected_tokens_and_rollouts_without_a_verdict_are_never_trained_on(new_parts, tmp_path):
    _, rollouts = collect(new_parts, tmp_path, prompts=1)
    first = rollouts[0]
    cut = tuple(i != 1 for i in range(len(first.token_ids)))
    injected = dataclasses.replace(first, sampled=cut)
    silent = dataclasses.replace(rollouts[1], reward=None, verdict=Verdict("timeout"))
    batch = rollout_batch([injected, silent], pad_id=0)
    assert int(batch.mask[0].sum()) == len(first.token_ids) - 1
    assert int(batch.mask[1].sum()) == 0


def test_groups_without_a_signal_change_nothing(new_parts, tmp_path):
    parts, rollouts = collect(new_parts, tmp_path)
    before = weights(parts)
    same = [dataclasses.replace(rollout, reward=1.0) for rollout in rollouts]
    assert update_on(same, LoopPlan(steps=1, prompts=3), parts.updater, 0) == {"updated": 0.0}
    assert all(torch.equal(a, b) for a, b in zip(before, weights(parts), strict=True))


@pytest.mark.parametrize(
    ("cap", "masks", "why"),
    [
        (
            1,
            True,
            "every rollout was cut, and cut ones are not learnt from: raise max_tokens, or mask_truncated = false",
        ),
        (1, False, "every rollout was cut before its end, and rewards did not differ: raise max_tokens"),
    ],
)
def test_a_run_that_never_learnt_says_so_and_why(new_parts, tmp_path, cap, masks, why):
    parts, texts = new_parts(tmp_path), []
    drawn = Collector.plain(parts.collector.engine, 2, cap, 0)
    plan = LoopPlan(steps=2, prompts=2, eval_every=9, mask_truncated=masks)
    run(plan, dataclasses.replace(parts, collector=drawn, log=texts.append))
    assert texts[-1].startswith(f"nothing was learnt in 2 steps: {why}")


def test_memory_is_in_gib_also_where_the_system_counts_bytes(new_parts, tmp_path, monkeypatch):
    peaks = []
    for system in ("linux", "darwin"):
        monkeypatch.setattr("train.rl.loop.sys.platform", system)
        monkeypatch.setattr("train.rl.loop.torch.cuda.is_available", lambda: False)
        run(LoopPlan(steps=1, prompts=2, eval_every=9), new_parts(tmp_path / system))
        peaks.append(json.loads((tmp_path / system / "metrics.jsonl").read_text())["memory_gb"])
    assert peaks[0] / peaks[1] == pytest.approx(1024, rel=0.1)


def test_a_run_that_is_rolled_back_to_its_start_has_learnt(new_parts, tmp_path):
    parts, texts = new_parts(tmp_path), []
    best = Checkpoints(tmp_path / "checkpoints" / "best", texts.append, keep=1)
    held_out = dataclasses.replace(parts.held_out, verifier=Souring(2 * len(parts.held_out.items)))
    parts = dataclasses.replace(parts, best=best, held_out=held_out, log=texts.append)
    health = Health(configured({"held_out_falls": {"patience": 1}}))
    run(LoopPlan(steps=1, prompts=4, eval_every=1), dataclasses.replace(parts, health=health))
    assert parts.updater.optimiser.taken == 0
    assert any("roll_back" in text for text in texts) and not any("nothing was learnt" in text for text in texts)


@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant", "rollout"])
def test_a_rollout_without_a_verdict_takes_no_part_in_the_mean(new_parts, tmp_path, normaliser):
    parts, rollouts = collect(new_parts, tmp_path)
    objective = dataclasses.replace(parts.updater.objective, normaliser=normaliser)
    judged = three_groups(rollouts, live=0)[:6]
    unjudged = [dataclasses.replace(rollout, group=1, reward=None) for rollout in judged]
    totals = []
    for some in (judged, [*judged, *unjudged]):
        batch = rollout_batch(some, 0)
        totals.append(float(weighted(batch, objective, outcome_of(some, batch.mask)).pg.sum()))
    assert totals[1] == pytest.approx(totals[0])


@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant", "rollout"])
def test_a_group_without_a_signal_keeps_its_place_in_the_normaliser(new_parts, tmp_path, normaliser):
    parts, rollouts = collect(new_parts, tmp_path)
    parts.updater.objective = dataclasses.replace(parts.updater.objective, normaliser=normaliser)
    alike = three_groups(rollouts, live=0)
    plan, norms = LoopPlan(steps=1, prompts=3), []
    for some in (alike[:6], alike):
        norms.append(update_on(some, plan, fresh_updater(parts), parts.pad_id)["grad_norm"])
    assert norms[0] / norms[1] == pytest.approx(3.0, rel=1e-4)


def test_a_pass_is_cut_into_as_many_minibatches_as_asked_of_like_size():
    for rows, parts in ((17, 16), (18, 4), (8, 4), (3, 5)):
        sizes = [len(part) for part in shuffled(rows, parts, 3)]
        assert len(sizes) == min(rows, parts) and max(sizes) - min(sizes) <= 1 and sum(sizes) == rows


def test_split_weights_get_a_row_for_every_process_where_few_teach_anything(new_parts, tmp_path):
    parts, rollouts = collect(new_parts, tmp_path)
    groups = three_groups(rollouts, live=1)
    batch = rollout_batch([*groups[:-1], dataclasses.replace(groups[-1], reward=None)], 0)
    updater = fresh_updater(parts, minibatches=2)
    teaching = torch.arange(6, 12)
    assert updater._enough(batch, teaching).tolist() == teaching.tolist()
    updater.model, updater._world = Sharded(updater.model, token_logprobs), World(0, 4)
    assert updater._enough(batch, teaching).tolist() == [0, 1, *teaching.tolist()]


def test_fewer_rows_than_processes_are_scored_whole_by_each(new_parts, tmp_path):
    parts, rollouts = collect(new_parts, tmp_path)
    batch = rollout_batch([dataclasses.replace(rollout, reward=0.0) for rollout in rollouts[:3]], 0)
    alone, one_of_four = fresh_updater(parts), fresh_updater(parts, world=World(1, 4))
    scores = [updater._without_gradient(updater.model, batch) for updater in (alone, one_of_four)]
    assert torch.equal(*scores) and (scores[0] != 0).any(1).all()


def test_dynamic_sampling_puts_a_live_group_in_the_place_of_one_without_a_signal(new_parts, tmp_path):
    parts, rollouts = collect(new_parts, tmp_path)
    alike = three_groups(rollouts, live=2)
    norms = []
    for refills, prompts in ((0, 3), (1, 2), (1, 1)):
        plan, fresh = LoopPlan(steps=1, prompts=prompts, refills=refills), fresh_updater(parts)
        norms.append(update_on(alike, plan, fresh, parts.pad_id)["grad_norm"])
    assert norms[1] / norms[0] == pytest.approx(1.5, rel=1e-4) and norms[2] / norms[0] == pytest.approx(3.0, rel=1e-4)


def three_groups(rollouts, live):
    """Three groups of the same two different rollouts; only in the group `live` is one of them right."""
    two = rollouts[0], next(rollout for rollout in rollouts if rollout.token_ids != rollouts[0].token_ids)
    return [dataclasses.replace(two[i % 2], group=i // 6, reward=float(i // 6 == live and i % 2)) for i in range(18)]


def fresh_updater(parts, **options):
    """An updater of the same weights that nothing was learnt by."""
    model = copy.deepcopy(parts.updater.model)
    return Updater(model, Optimiser(model, Schedule(1e-3, 1)), parts.updater.objective, **options)


def test_micro_batches_of_any_size_give_the_same_gradient(new_parts, tmp_path):
    parts, rollouts = collect(new_parts, tmp_path)
    mixed = [dataclasses.replace(rollout, reward=float(i % 2)) for i, rollout in enumerate(rollouts)]
    batch = rollout_batch(mixed, 0)
    ready = weighted(batch, parts.updater.objective, outcome_of(mixed, batch.mask))
    gradients = []
    for bound in (10**6, 40, 1):
        parts.updater._micro = bound
        parts.updater.model.zero_grad()
        for part in parts.updater._micro_batches(ready, torch.arange(len(ready))):
            from train.update.update import _Tally

            parts.updater._loss(ready.rows(part), None, _Tally()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in parts.updater.model.parameters()]))
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-6)


@pytest.mark.parametrize(("epochs", "minibatches"), [(3, 1), (1, 3), (2, 3)])
def test_the_loss_of_several_passes_is_their_mean(new_parts, tmp_path, epochs, minibatches):
    parts, rollouts = collect(new_parts, tmp_path)
    mixed = [dataclasses.replace(rollout, reward=float(i % 2)) for i, rollout in enumerate(rollouts)]
    batch, objective = rollout_batch(mixed, 0), dataclasses.replace(parts.updater.objective, normaliser="sequence")
    ready = weighted(batch, objective, outcome_of(mixed, batch.mask))
    ready = dataclasses.replace(ready, ce=ready.pg)  # a likelihood, which is far from 0

    def loss(epochs, minibatches):
        model = copy.deepcopy(parts.updater.model)
        still = Optimiser(model, Schedule(1e-12, 1))
        return Updater(model, still, objective, epochs=epochs, minibatches=minibatches).step(ready)["loss"]

    assert loss(epochs, minibatches) == pytest.approx(loss(1, 1), rel=1e-3) and loss(1, 1) > 0.1


def test_a_collector_refuses_sampling_under_which_log_probabilities_are_not_the_policys(new_parts, tmp_path):
    from functools import partial

    from train.base.rollout import Collector, group_draws
    from ttc.core import Sampling

    parts = new_parts(tmp_path)
    for sampling in (Sampling(temperature=0.7), Sampling(temperature=1.0, top_p=0.9)):
        with pytest.raises(ConfigError, match="temperature must be 1"):
            Collector(
                parts.collector.engine, strategy=partial(group_draws, n=2), sampling=sampling, thinking=None, seed=0
            )
