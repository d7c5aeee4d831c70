"""The training loop, the sampler, the roll-outs and the reward model, on tiny random models."""

import math
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from train.nano import loop, model, prm, report, rollouts, student, teacher, tokenizer
from train.nano.examples import Mixture
from train.nano.sample import Draw, Sampler
from train.nano.search import Search, search
from train.nano.traces import HANDOVER

TINY = model.Shape(hidden=32, layers=2, heads=1, kv_heads=1, mlp=32)


@pytest.fixture(scope="module")
def nano():
    return tokenizer.build()


@pytest.fixture(scope="module")
def tiny(nano):
    return model.build(TINY, nano, seed=3).eval()


@pytest.fixture(scope="module")
def scorer(nano, tiny):
    return prm.build(TINY, nano, 3, tiny).eval()


@pytest.fixture(scope="module")
def sampler(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model.save(tiny, folder)
    return Sampler(folder, "cpu")


def recipe(steps, save_every=1000):
    run = loop.Run(steps, lr=3e-3, save_every=save_every)
    return teacher.Recipe(TINY, Mixture(), seed=1, run=run, rows=4)


def test_the_loss_falls(nano, tmp_path):
    batch = [
        item
        for at in range(4)
        for item in teacher.examples.pool(nano, Mixture(), 9, at, 1, 8, 0.1)[0]
    ]
    trained = teacher.train(recipe(60), tmp_path / "a.pt", "cpu")
    fresh = model.build(TINY, nano, 1)
    with torch.no_grad():
        before, after = (
            teacher.causal_loss(network, batch, nano.pad_token_id, "cpu").item()
            for network in (fresh, trained)
        )
    assert after < before - 1.0


def test_an_interrupted_run_ends_at_the_same_weights(tmp_path, monkeypatch):
    whole = teacher.train(recipe(8), tmp_path / "whole.pt", "cpu").state_dict()
    real = teacher.causal_loss
    calls = []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(teacher, "causal_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        teacher.train(recipe(8, save_every=3), tmp_path / "cut.pt", "cpu")
    monkeypatch.setattr(teacher, "causal_loss", real)
    resumed = teacher.train(recipe(8, save_every=3), tmp_path / "cut.pt", "cpu").state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_saved_model_loads_unchanged_in_bf16(tmp_path, tiny, scorer, nano):
    ids = torch.tensor([nano.encode("Compute 1+1.", add_special_tokens=False)])
    for kind, network, name in (
        (AutoModelForCausalLM, tiny, "teacher"),
        (AutoModelForTokenClassification, scorer, "prm"),
    ):
        model.save(network, tmp_path / name)
        loaded, problems = kind.from_pretrained(
            tmp_path / name, dtype="auto", output_loading_info=True
        )
        assert not any(problems.values())
        assert loaded.dtype == torch.bfloat16
        close = torch.allclose(loaded(ids).logits.float(), network(ids).logits, atol=0.05)
        assert close


def test_sampling_ends_at_a_stop_id_and_repeats_by_seed(sampler, nano):
    prompts = [nano.encode("1+1", add_special_tokens=False)] * 20
    stops = tuple(range(0, 340, 4))
    draw = Draw(30, 1.0, 5, stops)
    found = sampler(prompts, draw)
    assert len({tuple(ids) for ids in found}) > 5
    assert found[:4] == sampler(prompts[:4], draw)
    for ids in found:
        assert not set(ids[:-1]) & set(stops)
        assert ids[-1] in {*stops, nano.eos_token_id} or len(ids) == 30


def attempts(sampler, nano, count=4):
    asked = rollouts.problems(1, count, (0.0, 1.0), "eval")
    return rollouts.think(sampler, nano, asked, Draw(20, 1.0, 2))


def test_problems_come_from_the_split_and_level_asked():
    for problem in rollouts.problems(4, 50, (0.0, 1.0), "eval"):
        assert problem.split == "eval"
        assert sum(problem.text.count(sign) for sign in "+-*") == 2


def test_lengthening_replaces_the_end_of_thinking_by_wait(sampler, nano):
    ids = nano.encode("1+1=2\n\n</think>\n\nThe answer", add_special_tokens=False)
    first = [
        rollouts.Rollout(item.problem, "think", item.prompt, ids)
        for item in attempts(sampler, nano)
    ]
    longer = rollouts.lengthen(sampler, nano, first, Draw(5, 1.0, 2))
    assert all(nano.decode(item.ids).startswith("1+1=2\n\nWait") for item in longer)


def test_a_cut_keeps_the_budget_and_adds_the_sentence(sampler, nano):
    sentence = nano.encode(HANDOVER, add_special_tokens=False)
    first = attempts(sampler, nano)
    for before, after in zip(
        first, rollouts.cut(sampler, nano, first, [3] * 4, Draw(5, 1.0, 2)), strict=True
    ):
        assert after.ids[: 3 + len(sentence)] == before.ids[:3] + sentence
        assert len(after.ids) <= 3 + len(sentence) + 5


def test_the_answer_is_read_after_thinking_only(sampler, nano):
    (item, *_) = attempts(sampler, nano)
    ids = nano.encode("\\boxed{1}\n\n</think>\n\nIt is \\boxed{2}.", add_special_tokens=False)
    assert rollouts.answer_of(nano, rollouts.Rollout(item.problem, "think", [], ids)) == "2"
    assert rollouts.answer_of(nano, rollouts.Rollout(item.problem, "think", [], ids[:3])) is None


def test_the_reward_model_starts_from_the_teachers_body(tiny, scorer):
    body = tiny.model.state_dict()
    assert all(
        torch.equal(body[name], weight) for name, weight in scorer.model.state_dict().items()
    )
    assert scorer.config.ttc_prm["step_delimiter"] == "\n\n"
    assert scorer.config.num_labels == 2


def test_scores_are_probabilities_that_do_not_depend_on_the_batch(scorer):
    rng = random.Random(0)
    sequences = [[rng.randrange(256) for _ in range(n)] for n in (3, 9, 5)]
    together = prm.scores(scorer, sequences)
    assert [len(found) for found in together] == [3, 9, 5]
    for sequence, found in zip(sequences, together, strict=True):
        assert found == pytest.approx(prm.scores(scorer, [sequence])[0], abs=1e-5)
        assert all(0.0 <= value <= 1.0 for value in found)


def test_collected_attempts_are_labelled_kept_and_trained_on(
    tiny, sampler, nano, tmp_path, monkeypatch
):
    monkeypatch.setattr(rollouts, "MAX_TOKENS", 8)
    monkeypatch.setattr(model, "TEACHER", TINY)
    settings = prm.Recipe(1, loop.Run(2, lr=1e-3), rows=8, attempts=30, procedural=0.9)
    rows = prm.collect(sampler, settings)
    assert len(rows) == 39
    prm.write(rows, tmp_path / "rows.pt")
    assert prm.read(tmp_path / "rows.pt") == rows
    trained = prm.train(settings, tiny, rows, tmp_path / "prm.pt", "cpu")
    assert not torch.equal(trained.score.weight, prm.build(TINY, nano, 1, tiny).score.weight)


def test_procedural_rows_hold_right_and_wrong_ends(nano):
    settings = prm.Recipe(1, loop.Run(1, lr=1e-3), rows=1, attempts=0)
    rows = [prm.procedural(nano, settings, i) for i in range(60)]
    ends = [v for row in rows for v, end in zip(row.values, row.ends, strict=True) if end]
    assert 0.2 < sum(ends) / len(ends) < 0.9


def test_search_returns_one_path_per_problem_and_counts_tokens(sampler, scorer, nano):
    asked = rollouts.problems(1, 2, (1.0,), "eval")
    draw = Draw(4, 1.0, 1)
    found = search(sampler, scorer, nano, asked, draw, Search(beams=2, children=2, depth=3))
    assert [item.rollout.problem for item in found] == asked
    assert all(0 < item.tokens <= 3 * 4 * 4 for item in found)


def test_the_student_is_asked_to_answer_at_once(nano):
    for i in range(50):
        text = nano.decode(teacher.examples.example(nano, student.MIXTURE, 1, i, 0.9).ids)
        assert "\n\n</think>" in text or "<think>\n</think>" in text


def brute_force_auc(scores, labels):
    pairs = [
        1.0 if up > down else 0.5 if up == down else 0.0
        for up, good in zip(scores, labels, strict=True)
        for down, bad in zip(scores, labels, strict=True)
        if good and not bad
    ]
    return sum(pairs) / len(pairs)


def test_auc_equals_its_definition():
    rng = random.Random(0)
    for _ in range(50):
        scores = [rng.randrange(5) / 4 for _ in range(12)]
        labels = [0, 1, *(rng.randrange(2) for _ in range(10))]
        assert report.auc(scores, labels) == pytest.approx(brute_force_auc(scores, labels))
    assert math.isnan(report.auc([0.5], [1]))


def test_an_interval_is_centred_and_shrinks_with_n():
    few, many = (report.mean("x", [0.0, 1.0] * half) for half in (10, 1000))
    assert few.value == many.value == 0.5
    assert many.high - many.low < few.high - few.low
