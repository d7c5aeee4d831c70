"""Model folders as people have them: without an end of text or padding, damaged, with tokens that have no embedding."""

import json

import pytest

from tests import qwen_like
from tests.train.stages import make_stage
from train.base.models import load_model, load_tokenizer, turn_tokenizer
from train.base.stage import Setting
from train.examples.examples import Example, within_context
from ttc.errors import ConfigError, RecordError


def change(folder, name, **fields):
    """Set fields of a JSON file of the folder; None takes one out."""
    path = folder / name
    values = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({field: value for field, value in values.items() if value is not None}))


@pytest.fixture
def folder(tmp_path):
    return qwen_like.model(tmp_path / "base")


def test_a_tokenizer_without_an_end_of_text_takes_that_of_its_model(folder):
    change(folder, "tokenizer_config.json", eos_token=None, pad_token=None)
    for tokenizer in (load_tokenizer(folder), turn_tokenizer(folder)):
        assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


def test_a_folder_where_nothing_ends_a_text_is_refused_by_name(folder):
    change(folder, "tokenizer_config.json", eos_token=None, pad_token=None)
    change(folder, "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    with pytest.raises(ConfigError, match=r"base names no end-of-text token.*set eos_token"):
        turn_tokenizer(folder)


@pytest.mark.parametrize("left", [0, 5000])
def test_weights_that_are_missing_or_damaged_are_an_error_that_names_the_folder(folder, left):
    path = folder / "model.safetensors"
    content = path.read_bytes()[:left]
    path.unlink()
    if left:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"base holds no model that transformers can read: \w*Error: "):
        load_model(folder, "cpu")


def test_a_row_with_a_token_that_the_model_has_no_embedding_for_is_refused_before_an_update(folder):
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    within_context("sft", [Example("", (0,), (rows - 1,), where="file, line 1")], folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["<think>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(RecordError, match=rf"line 2: token {rows} \('<think>'\) .* embeddings for {rows} tokens only"):
        within_context("sft", [Example("", (0,), (rows,), where="file, line 2")], folder)


def test_a_solution_that_is_longer_than_the_model_reads_is_refused_before_a_step_model_learns(folder, tmp_path):
    rows = [{"problem": word, "steps": [f"{word} " * 9], "labels": [1]} for word in ("one", "two")]
    rows += [{"problem": "three", "steps": ["a " * 3000], "labels": [0]}]
    data = tmp_path / "steps.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = Setting(tmp_path / "run", folder, 1, "cpu", 1, lambda text: None)
    place.folder.mkdir()
    with pytest.raises(RecordError, match=r"a solution of .*: \d{4} tokens, but the model of prm reads at most 2048"):
        make_stage("prm", data=str(data), steps=1, lr=1e-3).run(place)
