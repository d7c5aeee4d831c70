"""Supervised fine-tuning and rejection sampling: rows become the right tokens, and a model learns what they show."""

import json
from pathlib import Path

import pytest
import torch

from evals.tasks.cipher import Cipher, question
from tests.train.cipher_base import STEPS, SYMBOLS, WALKS, secret
from tests.train.stages import make_stage, metrics_of, setting, write_rows
from train.base.models import load_model
from train.examples.examples import Corpus, Example, corpus_examples, held_apart, read_examples, right_rollouts
from train.examples.imitation import completion_sums, imitation_batch
from train.measure.measure import task_gains
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_task
from train.stages.sample import sample
from train.update.batch import rows_at
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"


@pytest.fixture
def base(cipher_model):
    return cipher_model


def walks(path, split="train"):
    """Every walk of a split, as a user would write it down."""
    cipher = Cipher(SYMBOLS, STEPS, 0)
    rows = []
    for start, steps in cipher.pairs(split):
        walk = cipher.walk(start, steps)
        left = range(steps - 1, -1, -1)
        thinking = "".join(f"s{symbol}n{n}" for symbol, n in zip(walk, left, strict=True))
        rows.append({"prompt": question(start, steps), "thinking": thinking, "completion": f"s{walk[-1]}"})
    return write_rows(path, rows)


def decoded(base, example):
    text = Text(base)
    return text.decode(example.prompt_ids), text.decode(example.token_ids)


def test_the_markers_stand_where_the_template_has_not_put_them(base, tmp_path):
    row = {"prompt": "s1n1=", "completion": "s2"}
    rows = [
        row,
        {**row, "thinking": "s2n0"},
        {**row, "thinking": "s2n0", "mode": "on"},
        {**row, "mode": "off"},
        {"messages": [{"role": "user", "content": "s1n1="}], "completion": "s2"},
    ]
    found = [decoded(base, e) for e in read_examples(write_rows(tmp_path / "rows.jsonl", rows), Text(base), 1)]
    assert found == [
        ("s1n1=", "s2<|end|>"),
        ("s1n1=", "<think>s2n0</think>s2<|end|>"),
        ("s1n1=<think>", "s2n0</think>s2<|end|>"),
        ("s1n1=<think></think>", "s2<|end|>"),
        ("s1n1=", "s2<|end|>"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "s1n1="}, "completion must be a text"),
        (
            {"prompt": "s1n1=", "completion": " ", "thinking": "s2n0"},
            "the answer is empty and would teach the model to say",
        ),
        ({"completion": "s1"}, "either prompt or messages"),
        ({"prompt": "s1n1=", "completion": "s1", "mode": "loud"}, "mode must be one of auto, on, off"),
        ({"prompt": "s1n1=", "completion": "s1", "mode": "off", "thinking": "s1n0"}, "mode off has closed"),
        ({"prompt": "s1n1=", "completion": "s1", "weight": 0}, "weight must be a number above 0"),
        ({"prompt": "s1n1=", "completion": "s1", "id": ["a"]}, r"id must be a text or a number, got \['a'\]"),
        ({"prompt": "s1n1=", "compleation": "s1"}, "unknown field 'compleation'"),
        ({"messages": [{"role": "user"}], "completion": "s1"}, "role and content"),
        ({"prompt": "", "completion": "s1"}, "the prompt has no token"),
    ],
)
def test_a_broken_row_is_refused_with_its_line_and_field(base, tmp_path, row, message):
    path = write_rows(tmp_path / "rows.jsonl", [{"prompt": "s1n1=", "completion": "s1"}, row])
    with pytest.raises(RecordError, match=f"line 2: .*{message}"):
        read_examples(path, Text(base), 1)


def test_a_field_that_stands_twice_in_a_row_is_refused(base, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "s1n1=", "completion": "s2", "completion": "s3"}')
    with pytest.raises(RecordError, match="line 1: 'completion' occurs twice in an object; keep one"):
        read_examples(path, Text(base), 1)


@pytest.mark.numeric
def test_only_completions_are_learnt_and_their_mean_is_over_tokens(base):
    examples = [Example("a", (5, 6, 7), (8, 1)), Example("b", (5,), (9, 10, 11, 1), weight=2.0)]
    batch = imitation_batch(examples, 0, "token", 8)
    assert batch.mask.tolist() == [[False, False, True, True], [True, True, True, True]]
    assert torch.allclose(batch.ce[0], torch.tensor([0, 0, 1 / 6, 1 / 6]))
    assert torch.allclose(batch.ce[1], torch.full((4,), 2 / 6))
    model = load_model(base, "cpu")
    alone = completion_sums(model, examples[:1], 0)
    assert completion_sums(model, examples, 0)[0][0] == pytest.approx(alone[0][0], abs=1e-5)


def test_every_row_is_taken_once_per_epoch_and_epochs_differ():
    first = [row for step in range(5) for row in rows_at(step, 4, 10, seed=1)]
    assert sorted(first[:10]) == sorted(first[10:]) == list(range(10))
    assert first[:10] != first[10:] and rows_at(3, 4, 10, seed=1) == first[12:16]


def test_whole_prompts_are_held_out_always_the_same_ones():
    keys = [f"p{i // 3}" for i in range(3000)]
    out = held_apart(keys, 0.1)
    assert 200 < sum(out) < 400
    assert all(len(set(out[i : i + 3])) == 1 for i in range(0, 3000, 3)) and out == held_apart(keys, 0.1)


def test_of_few_prompts_one_is_held_out_and_one_is_learnt():
    for num in range(2, 9):
        for share in (0.001, 0.1, 0.999):
            keys = [f"p{i % num}" for i in range(3 * num)]
            assert 0 < len({key for key, out in zip(keys, held_apart(keys, share), strict=True) if out}) < num
    assert held_apart(["p", "p"], 0.9) == [False, False]


def test_examples_of_walks_teach_walking(base, tmp_path):
    stage = make_stage(
        "sft",
        data=str(walks(tmp_path / "walks.jsonl")),
        steps=150,
        rows=24,
        lr=3e-3,
        eval_every=50,
        held_out=TASK,
        warmup=5,
    )
    stage.check(True)
    found = stage.run(setting(tmp_path / "1-sft", base)).metrics
    assert found["held_out_gain_low"] > 0
    assert found["likelihood_gain_low"] > 0 and found["held_out_loss"] < 0.3
    rows = metrics_of(tmp_path / "1-sft")
    assert [row["step"] for row in rows if "held_out_loss" in row] == [0, 50, 100, 150]


@pytest.mark.numeric
def test_a_killed_stage_goes_on_bit_for_bit(base, tmp_path):
    data = str(walks(tmp_path / "walks.jsonl"))

    def final(folder, *stops):
        for steps in stops:
            made = make_stage("sft", data=data, steps=steps, rows=8, lr=1e-3, save_every=4, decay=False)
            made.run(setting(tmp_path / folder, base))
        return list(load_model(tmp_path / folder / "model", "cpu").parameters())

    whole, halves = final("whole", 8), final("halves", 4, 8)
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))


def test_right_rollouts_are_what_was_sampled_without_copies_and_a_model_learns_from_them(base, tmp_path):
    drawn = sample(task=f"{TASK},split=train", n=6)
    drawn.check(True)
    one = drawn.run(setting(tmp_path / "1-sample", base))
    assert 0.05 < one.metrics["accuracy"] < 0.95
    path = tmp_path / "1-sample" / "rollouts.jsonl"
    examples = right_rollouts(path)
    assert len({(e.prompt_ids, e.token_ids) for e in examples}) == len(examples)
    assert all(example.token_ids[-1] == 1 for example in examples)
    text, cipher = Text(base), secret()
    for example in examples:
        start, steps = (int(n) for n in text.decode(example.prompt_ids)[1:-1].split("n"))
        assert text.decode(example.token_ids).endswith(f"s{cipher.walk(start, steps)[-1]}<|end|>")
    few = right_rollouts(path, most=1, shortest=True)
    assert len(few) == len({example.key for example in examples})
    stage = make_stage("sft", rollouts="1-sample", steps=40, rows=24, lr=3e-3)
    place = setting(tmp_path / "2-sft", base)
    found = task_gains(make_task(WALKS), 128, base, Path(stage.run(place).model), place)  # on what it has seen
    assert found["held_out_gain_low"] > 0.25
    assert (tmp_path / "1-sample" / "model" / "model.safetensors").is_file()


def test_sampling_again_gives_the_same_rollouts_and_another_round_others(base, tmp_path):
    def lines(folder, **more):
        sample(task=f"{TASK},split=train", n=2, limit=6, **more).run(setting(tmp_path / folder, base))
        return [json.loads(row)["token_ids"] for row in (tmp_path / folder / "rollouts.jsonl").read_text().splitlines()]

    first = lines("a")
    assert lines("b") == first and lines("a") == first
    assert lines("c", round=1) != first


def test_a_corpus_is_learnt_as_whole_texts(base, tmp_path):
    stage = make_stage("sft", corpus=f"cipher:symbols={SYMBOLS},max_steps={STEPS},thinking_share=1,noise=0",
                       corpus_rows=200, steps=40, lr=1e-3, warmup=5)  # fmt: skip
    assert stage.run(setting(tmp_path / "sft", base)).metrics["likelihood_gain_low"] > 0


def test_sources_are_mixed_and_a_corpus_of_prompts_and_answers_is_learnt_by_its_answers(base):
    corpus = Corpus("mixed", lambda: None, lambda rng: "s1n1=s2", 9, lambda rng: ("s1n1=", "s2"))
    (row,) = set(corpus_examples(corpus, Text(base), 1, 3, 0))
    assert decoded(base, row) == ("s1n1=", "s2<|end|>") and row.key == "s1n1="
    whole = Corpus("whole", lambda: None, lambda rng: "s1n1=s2", 9)
    assert decoded(base, corpus_examples(whole, Text(base), 1, 3, 0)[2]) == ("s1", "n1=s2<|end|>")


def test_the_rate_of_every_update_is_logged(base, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"s{i}n1=", "completion": f"s{i + 1}"} for i in range(5)])
    make_stage("sft", data=str(data), steps=4, lr=1e-3, rows=2, warmup=2).run(setting(tmp_path / "1-sft", base))
    rows = metrics_of(tmp_path / "1-sft")
    assert [row.get("lr") for row in rows] == [None, 5e-4, 1e-3, 1e-3, 5e-4]


def test_an_update_of_more_rows_than_there_are_says_that_it_repeats_some(base, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"s{i}n1=", "completion": f"s{i + 1}"} for i in range(5)])
    for rows, says in ((4, False), (8, True)):
        lines = []
        stage = make_stage("sft", data=str(data), steps=1, lr=1e-3, rows=rows, held_out_share=0.2)
        stage.run(setting(tmp_path / str(rows), base, log=lines.append))
        assert (f"rows={rows}, but the data has only 4 rows: an update repeats some" in lines) is says


def test_a_share_of_0_trains_on_every_row_even_of_a_single_one_and_measures_none(base, tmp_path):
    lines, data = [], write_rows(tmp_path / "one.jsonl", [{"prompt": "s3n1=", "completion": "s4"}])
    fields = {"data": str(data), "lr": 3e-3, "rows": 1, "warmup": 1, "decay": False}
    with pytest.raises(ConfigError, match=r"1 example of one prompt: .*set held_out_share = 0"):
        make_stage("sft", steps=1, **fields).run(setting(tmp_path / "refused", base))
    stage = make_stage("sft", steps=12, held_out_share=0, **fields)
    result = stage.run(setting(tmp_path / "1-sft", base, log=lines.append))
    assert "1 example, none held out" in lines and not [name for name in result.metrics if "likelihood" in name]
    example = read_examples(data, Text(base), load_model(base, "cpu").config.eos_token_id)
    (before, _), (after, _) = (
        completion_sums(load_model(path, "cpu"), example, 0)[0] for path in (base, Path(result.model))
    )
    assert after > before + 1


def test_what_cannot_work_is_refused_by_field(base, tmp_path):
    for fields, message in [
        ({}, "at least one of data, corpus and rollouts"),
        ({"corpus": "cipher", "held_out_share": 1.0}, "held_out_share"),
        ({"corpus": "cipher", "rows": 0}, "rows must be at least 1"),
        ({"corpus": "cipher", "lr": -1.0}, "lr must be above 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_stage("sft", **{"steps": 2, "lr": 1e-3, **fields})
    with pytest.raises(ConfigError, match="does not exist"):
        make_stage("sft", data=str(tmp_path / "none.jsonl"), steps=1, lr=1e-3).check(True)
    with pytest.raises(ConfigError, match=r"sft: data .* is a folder; name a file of JSON lines"):
        make_stage("sft", data=str(tmp_path), steps=1, lr=1e-3).check(True)
    with pytest.raises(ConfigError, match="needs a model"):
        make_stage("sft", corpus="cipher", steps=1, lr=1e-3).check(False)
    with pytest.raises(ConfigError, match="neither"):
        make_stage("sft", rollouts="2-sample", steps=1, lr=1e-3).run(setting(tmp_path / "s", base))


def test_pretrain_sample_and_imitate_run_as_a_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(f"""
about = "x"
[[stage]]
kind = "pretrain"
corpus = "{TASK},thinking_share=0.4"
steps = 60
rows = 32
hidden = 32
heads = 2
kv_heads = 1
mlp = 64
[[stage]]
kind = "sample"
task = "{TASK},split=train"
n = 4
[[stage]]
kind = "sft"
rollouts = "2-sample"
steps = 6
rows = 8
lr = 1e-3
held_out_share = 0.2
""")
    results = run_recipe(read_recipe(str(path)), RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)
    assert len(results) == 3 and (tmp_path / "run" / "model" / "model.safetensors").is_file()
