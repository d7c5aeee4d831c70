"""The preference stage: pairs from files and rollouts, a reference kept on disk, updates that do what losses say."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.train.cipher_base import WALKS, rolled_out
from tests.train.stages import make_stage, metrics_of, setting, write_rows
from train.base.health import Health, configured
from train.base.models import load_model
from train.base.optimiser import Optimiser, Schedule
from train.base.rollout import RolloutFile
from train.examples.examples import Example, mismatched, right_rollouts
from train.examples.imitation import completion_sums, ranked_right
from train.examples.pairs import Preferred, Ranking, pairs_of_rollouts, read_pairs
from train.measure.measure import task_gains
from train.preferences.dpo import dpo
from train.preferences.ipo import ipo
from train.preferences.kto import kto
from train.preferences.orpo import orpo
from train.preferences.simpo import simpo
from train.registries import make_task
from train.stages.preference import PairUpdater, Reference, reference_sums
from train.stages.sample import sample
from train.update.update import Build
from ttc.core import Verdict
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError

pytestmark = pytest.mark.numeric

ROW = {"prompt": "s1n1=", "chosen": "s2", "rejected": "s3"}


@pytest.fixture(scope="module")
def run(cipher_model, tmp_path_factory):
    """A run folder with judged rollouts of the base."""
    root = tmp_path_factory.mktemp("run")
    sample(task=WALKS, n=8).run(setting(root / "1-sample", cipher_model))
    return root


def test_rows_become_pairs_through_the_chat_template(cipher_model, tmp_path):
    rows = [ROW, {**ROW, "chosen_thinking": "s2n0", "mode": "on", "weight": 2, "id": "mine"}]
    text = Text(cipher_model)
    plain, thinking = read_pairs(write_rows(tmp_path / "pairs.jsonl", rows), text, 1)
    assert text.decode(plain.chosen.token_ids) == "s2<|end|>" and plain.weight == 1.0
    assert text.decode(thinking.chosen.prompt_ids) == "s1n1=<think>"
    assert text.decode(thinking.chosen.token_ids) == "s2n0</think>s2<|end|>"
    assert text.decode(thinking.rejected.token_ids) == "</think>s3<|end|>"
    assert (thinking.key, thinking.weight) == (plain.key, 2.0)  # one prompt, whatever its id and mode


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": None}, "rejected must be a text"),
        ({"rejected": "s2"}, "chosen and rejected are the same"),
        ({"weight": -1}, "weight must be a number above 0"),
        ({"margin": 1}, "unknown field 'margin'"),
    ],
)
def test_a_broken_pair_is_refused_with_its_line_and_field(cipher_model, tmp_path, change, message):
    with pytest.raises(RecordError, match=f"line 1: .*{message}"):
        read_pairs(write_rows(tmp_path / "pairs.jsonl", [{**ROW, **change}]), Text(cipher_model), 1)


def rollout(problem, ids, reward, finish="stop"):
    verdict = Verdict("correct" if reward else "incorrect") if reward is not None else Verdict("timeout")
    drawn = {"path": (ids[0],), "prompt_ids": (5, 6), "token_ids": ids, "finish_reason": finish}
    return rolled_out(problem_id=problem, verdict=verdict, reward=reward, **drawn)


def test_rollouts_are_ranked_within_their_problem_and_share_one_unit_of_weight(tmp_path):
    file = RolloutFile(tmp_path / "rollouts.jsonl")
    file.append([
        rollout("a", (10, 1), 1.0), rollout("a", (11, 1), 0.5), rollout("a", (12, 1), 0.0),
        rollout("a", (13, 1), None), rollout("a", (14, 15), 1.0, "length"),
        rollout("b", (20, 1), 1.0), rollout("b", (21, 1), 1.0),
    ])  # fmt: skip
    file.close()
    pairs = pairs_of_rollouts(tmp_path / "rollouts.jsonl")
    seen = {(pair.chosen.token_ids[0], pair.rejected.token_ids[0]) for pair in pairs}
    assert seen == {(10, 11), (10, 12), (11, 12), (10, 14), (11, 14), (12, 14)}  # cut: worst; no verdict: nowhere
    assert sum(pair.weight for pair in pairs) == pytest.approx(1.0) and {pair.key for pair in pairs} == {"a"}
    (one,) = pairs_of_rollouts(tmp_path / "rollouts.jsonl", per_problem=1)
    assert (one.rejected.token_ids, one.weight) == ((14, 15), 1.0)


def test_rollouts_of_variants_of_a_problem_are_held_out_together(tmp_path):
    with RolloutFile(tmp_path / "rollouts.jsonl") as file:
        file.append(
            dataclasses.replace(rollout(name, (token, 1), float(token < 12)), cluster=cluster)
            for name, cluster in (("a", "sum"), ("b", "sum"), ("c", ""))
            for token in (10, 12)
        )
    pairs = pairs_of_rollouts(tmp_path / "rollouts.jsonl")
    assert [(pair.key, pair.chosen.key) for pair in pairs] == [("sum", "sum"), ("sum", "sum"), ("c", "c")]
    assert [row.key for row in right_rollouts(tmp_path / "rollouts.jsonl")] == ["sum", "sum", "c"]


def make_updater(model_folder, weights=(1.0, 2.0, 1.0), single=False, **more):
    sides = [
        (Example("a", (5, 6), (8, 9, 1)), Example("a", (5, 6), (10, 1))),
        (Example("b", (7,), (11, 1)), Example("b", (7,), (12, 13, 14, 1))),
        (Example("c", (5, 7, 6), (9, 1)), Example("c", (5, 7, 6), (8, 1))),
    ]
    pairs = [Preferred(one.key, one, other, weight) for (one, other), weight in zip(sides, weights, strict=True)]
    model = load_model(model_folder, "cpu")
    chosen = [pair.chosen for pair in pairs]
    rows = [*chosen, *(pair.rejected for pair in pairs), *mismatched(chosen)]
    sums = reference_sums(model_folder, rows, model_folder.parent, "cpu", 0, Build())
    reference = Reference(sums[:3], sums[3:6], sums[6:] if single else None)
    return PairUpdater(model, Optimiser(model, Schedule(1e-3, 10)), pairs, reference, 0, **more)


ROUNDING = 1e-5
"""Most that two ways to compute one gradient may differ, as a share of its norm.

The number of rows decides which kernel of the matrix library multiplies them, and each adds in its own order. In fp32,
whose unit is 1.2e-7, that makes 1e-7 (torch with AVX-512, AVX2 or neither) to 6e-7 (MKL held to AVX2 or to its
compatible mode). A pair that counts wrongly, in a weight, a reference or the reference point, makes 1e-3 to 2.
"""


def moved(updater):
    """The updater with its policy away from the reference, so that margins and KTO's reference point are not 0."""
    with torch.no_grad():
        for parameter in updater.model.parameters():
            parameter.mul_(0.9)
    return updater


def update(updater, rows):
    """The gradient that an update on these pairs accumulates, and what it tells; the optimiser takes no step.

    Weights after the step are no measure. Clipping and Adam undo a wrong factor, and blow rounding up: the first step
    is lr * g / (|g| + 1e-8), so where |g| is about 1e-8 itself, a difference of 1e-10 in it makes one of 1e-6 here.
    """
    kept = []

    def keep():
        kept.append(torch.cat([parameter.grad.flatten() for parameter in updater.model.parameters()]))
        return 0.0

    updater.optimiser.step = keep
    told = updater.step(rows)
    return kept[0], told


def close(gradient, other):
    return (gradient - other).norm() < ROUNDING * other.norm()


LOSSES = pytest.mark.parametrize("loss", [{"loss": dpo()}, {"loss": kto(), "single": True}], ids=["dpo", "kto"])


@LOSSES
def test_an_update_raises_the_margin(cipher_model, loss):
    updater = make_updater(cipher_model, **loss)
    first = updater.step([0, 1, 2])
    assert first["margin"] == pytest.approx(0.0, abs=1e-4) and first["chosen_falls"] == pytest.approx(0.0, abs=1e-4)
    for _ in range(5):
        last = updater.step([0, 1, 2])
    assert last["margin"] > 1.0 and last["pair_accuracy"] > 0.5 and last["loss"] < first["loss"]


def averages(updater, over_reference):
    """Of the chosen and of the rejected completions: log-probability per token, less the reference's where it is so."""
    reference = updater.reference.chosen, updater.reference.rejected
    for side, known in zip(("chosen", "rejected"), reference, strict=True):
        sums = completion_sums(updater.model, [getattr(pair, side) for pair in updater.pairs], 0)
        yield [
            (total - float(base) * over_reference) / length for (total, length), base in zip(sums, known, strict=True)
        ]


@pytest.mark.parametrize(
    ("loss", "over_reference"),
    [(simpo(), False), (orpo(), False), (ipo(), True), (dpo(per_token=True), True)],
    ids=["simpo", "orpo", "ipo", "dpo-per-token"],
)
def test_margin_and_accuracy_are_of_what_the_loss_compares(cipher_model, loss, over_reference):
    updater = moved(make_updater(cipher_model, loss=loss))
    chosen, rejected = averages(updater, over_reference)
    gaps = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    _, told = update(updater, [0, 1, 2])
    assert told["margin"] == pytest.approx(sum(gaps) / 3, abs=1e-4)
    assert told["pair_accuracy"] == pytest.approx(sum(gap > 0 for gap in gaps) / 3)


def test_held_out_pairs_are_ranked_per_token_where_the_loss_compares_per_token(cipher_model):
    model = load_model(cipher_model, "cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # every token is as likely as any other
    short, long = Example("a", (5, 6), (8, 1)), Example("a", (5, 6), (8, 8, 8, 8, 8, 8, 8, 1))
    assert ranked_right(model, [short], [long], 0) == [1.0]
    assert ranked_right(model, [short], [long], 0, per_token=True) == [0.0]  # a tie is not right


@LOSSES
def test_an_update_does_not_depend_on_how_it_is_cut(cipher_model, loss):
    whole, told = update(moved(make_updater(cipher_model, **loss, likelihood=0.5)), [0, 1, 2])
    for micro_rows in (1, 2):  # two: the parts are not of one size
        build = Build(micro_tokens=micro_rows * 2 * 5)  # the longest side has 5 tokens
        updater = moved(make_updater(cipher_model, **loss, likelihood=0.5, build=build))
        gradient, again = update(updater, [0, 1, 2])
        assert close(gradient, whole)
        assert again == pytest.approx(told, rel=ROUNDING)


def test_the_gradient_of_an_update_is_the_weighted_mean_over_its_pairs(cipher_model):
    weighted = moved(make_updater(cipher_model, weights=(1.0, 2.0, 5.0), loss=dpo()))
    plain = moved(make_updater(cipher_model, weights=(1.0, 1.0, 1.0), loss=dpo()))
    alone = []
    for row in range(3):
        plain.model.zero_grad()
        alone.append(update(plain, [row])[0])
    assert close(update(weighted, [0, 1, 2])[0], (alone[0] + 2 * alone[1] + 5 * alone[2]) / 3)


def test_kto_measures_its_reference_point_on_mismatched_prompts(cipher_model):
    updater = make_updater(cipher_model, loss=kto(), single=True)
    assert updater._divergence([0, 1, 2]).item() == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        for parameter in updater.model.parameters():
            parameter.mul_(1.1)
    moved = updater._divergence([0, 1, 2]).item()
    by_hand = updater._sums(updater._others)[0] - updater.reference.mismatched
    assert moved == pytest.approx(by_hand.mean().item(), abs=1e-4) and abs(moved) > 1e-3


def test_mismatched_completions_are_of_other_prompts_though_rows_stand_by_prompt():
    rows = [Example(str(p), (p,), (p, i)) for p, count in enumerate((4, 1, 3, 4)) for i in range(count)]
    others = mismatched(rows)
    assert [one.prompt_ids for one in others] == [one.prompt_ids for one in rows]
    assert all(one.token_ids[0] != one.prompt_ids[0] for one in others)
    assert sorted(one.token_ids for one in others) == sorted(one.token_ids for one in rows), "each is read once"
    long_prompt, long_answer = Example("a", (1,) * 9, (2,)), Example("b", (3,), (4,) * 8)
    assert [len(one.token_ids) for one in mismatched([long_prompt, long_answer])] == [1, 1], "none is longer than a row"


def test_a_likelihood_term_counts_a_pair_as_the_loss_does(cipher_model):
    """Both are halved where a pair weighs half, so their sum is (Pang et al. 2024 add them pair by pair)."""
    settings = {"loss": dpo(), "likelihood": 0.5}
    whole, half = (moved(make_updater(cipher_model, weights=(weight,) * 3, **settings)) for weight in (1.0, 0.5))
    assert close(2 * update(half, [0, 1, 2])[0], update(whole, [0, 1, 2])[0])


def test_a_likelihood_term_holds_the_chosen_completion_up(cipher_model):
    bare = make_updater(cipher_model, loss=dpo())
    held = make_updater(cipher_model, loss=dpo(), likelihood=1.0)
    for updater in (bare, held):
        for _ in range(6):
            updater.step([0, 1, 2])
    assert held.step([0])["chosen_logprob"] > bare.step([0])["chosen_logprob"]


def test_the_reference_is_computed_once_and_never_taken_for_another_models(cipher_model, tmp_path):
    examples = [Example("a", (5, 6), (8, 9, 1)), Example("b", (7,), (11, 1))]
    other = tmp_path / "other"
    model = load_model(cipher_model, "cpu")
    with torch.no_grad():
        model.lm_head.weight.mul_(1.2)
    model.save_pretrained(other)

    def sums(source, rows):
        return reference_sums(source, rows, tmp_path, "cpu", 0, Build())

    def near(found, expected):
        # Computed anew in a batch of another shape, 36 nats come out in other bits (a unit of fp32 is 4e-6 there).
        return torch.allclose(found, torch.as_tensor(expected), rtol=0, atol=1e-4)

    def by_hand(source, rows):
        return [completion_sums(load_model(source, "cpu"), [row], 0)[0][0] for row in rows]

    first = sums(cipher_model, examples)
    assert near(first, by_hand(cipher_model, examples))
    (path,) = tmp_path.glob("reference-*.safetensors")
    save_file({"sums": first + 1}, str(path))  # whoever reads it from now on is a nat off
    assert torch.equal(sums(cipher_model, examples), first + 1)  # read, not computed
    turned = [Example("a", (6, 5), (8, 9, 1)), examples[1]]
    for source, rows in [(cipher_model, examples[:1]), (cipher_model, examples[::-1]), (cipher_model, turned),
                         (other, examples)]:  # fmt: skip
        assert near(sums(source, rows), by_hand(source, rows))
    assert not near(sums(other, examples), first)


def test_a_policy_that_has_not_moved_is_at_its_reference_in_bf16_too(cipher_model, tmp_path, monkeypatch):
    monkeypatch.setattr("train.update.update.pick_dtype", lambda *place: torch.bfloat16)  # also where it is emulated
    bare = make_updater(cipher_model, loss=dpo())
    sides = [*(pair.chosen for pair in bare.pairs), *(pair.rejected for pair in bare.pairs)]

    def apart(build):
        """How far the policy, computed in bf16, is from a reference computed as `build` says: nats."""
        sums = reference_sums(cipher_model, sides, tmp_path, "cpu", 0, build)
        reference, own = Reference(sums[:3], sums[3:]), Build(autocast=True)
        updater = PairUpdater(bare.model, bare.optimiser, bare.pairs, reference, 0, dpo(), build=own)
        with torch.no_grad():
            pairs = updater._scored([0, 1, 2])
        return max(float(ratios.abs().max()) for ratios in pairs.ranked("dpo", Ranking()))

    assert apart(Build(autocast=True)) < 0.2 * apart(Build())


def test_pairs_of_its_own_rollouts_make_the_model_better(cipher_model, run):
    stage = make_stage("preference", rollouts="1-sample", loss="dpo:beta=0.1", likelihood=0.2, steps=50, rows=24,
                       lr=1e-3, eval_every=25)  # fmt: skip
    stage.check(True)
    place = setting(run / "2-preference", cipher_model)
    result = stage.run(place)
    found = result.metrics
    gained = task_gains(make_task(WALKS), 128, cipher_model, Path(result.model), place)  # on what it has seen
    assert gained["held_out_gain_low"] > 0.1
    assert found["ranked_before"] > 0.8 and found["ranked_after"] > 0.8  # the base ranks nearly all
    rows = metrics_of(run / "2-preference")
    assert {"chosen_logprob", "rejected_logprob", "margin", "pair_accuracy", "chosen_falls"} <= rows[-1].keys()


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_a_killed_stage_goes_on_bit_for_bit(cipher_model, run, loss):
    def final(folder, *stops):
        for steps in stops:
            made = make_stage("preference", rollouts="1-sample", loss=loss, steps=steps, rows=8, lr=1e-3, save_every=3)
            made.run(setting(run / folder, cipher_model))
        return list(load_model(run / folder / "model", "cpu").parameters())

    whole, halves = final(f"3-{loss}-whole", 6), final(f"3-{loss}-halves", 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))


def test_both_log_probabilities_falling_raises_its_alarm(cipher_model, run):
    """A rate far too high throws both completions down; the rule sees it and halves the rate."""
    told = []
    stage = make_stage(
        "preference",
        rollouts="1-sample", loss="dpo:beta=1", steps=12, rows=16, lr=1e-2,
        health={"gradient_spike": {"enabled": False}},
    )  # fmt: skip
    stage.run(dataclasses.replace(setting(run / "4-preference", cipher_model), log=told.append))
    alarms = [json.loads(line) for line in (run / "4-preference" / "alarms.jsonl").read_text().splitlines()]
    assert "both_fall" in {alarm["rule"] for alarm in alarms}
    assert any("health rule both_fall" in text for text in told)
    calm = Health(configured({}))
    assert not any(calm.check({"chosen_falls": -0.1}, step) for step in range(20))


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_a_share_of_0_prefers_by_every_row_and_measures_none(cipher_model, tmp_path, loss):
    marked = [{"prompt": f"s{number}n1=", "completion": f"s{number}", "label": number > 4} for number in range(3, 7)]
    data = write_rows(tmp_path / "rows.jsonl", [{**ROW, "id": "one"}] if loss == "dpo" else marked)
    stage = make_stage("preference", data=str(data), loss=loss, steps=2, rows=1, lr=1e-3, held_out_share=0)
    result = stage.run(setting(tmp_path / "1-preference", cipher_model))
    assert result.metrics["loss"] > 0
    assert not [name for name in result.metrics if name.startswith(("held_out", "ranked", "moved"))]


def test_what_cannot_work_is_refused_by_field(cipher_model, tmp_path):
    for fields, message in [
        ({}, "exactly one of data, rollouts"),
        ({"rollouts": "x", "loss": "dppo"}, "dpo"),
        ({"rollouts": "x", "loss": "dpo:beta=0"}, "dpo.beta"),
        ({"rollouts": "x", "likelihood": -1}, "likelihood"),
        ({"rollouts": "x", "per_problem": 0}, "per_problem"),
        ({"rollouts": "x", "held_out_share": -0.1}, "held_out_share"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_stage("preference", **{"steps": 2, "lr": 1e-3, **fields})
    same = write_rows(tmp_path / "pairs.jsonl", [{**ROW, "id": "one"}] * 4)
    with pytest.raises(ConfigError, match="4 examples of one prompt"):
        make_stage("preference", data=str(same), steps=1, lr=1e-3).run(setting(tmp_path / "p", cipher_model))
