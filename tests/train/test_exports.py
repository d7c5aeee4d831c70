"""What a saved model keeps of the one that it was trained from: how text becomes ids, and how it generates."""

import json

import pytest
from transformers import AutoTokenizer

from tests import qwen_like
from train.base.models import load_model, save_model, turn_tokenizer
from train.recipe.adapt import Adaptation, adapt
from ttc.engines.shared.text import Text

WORDS = "  Natalia sold\n\n 12345 été, e\u0301 <|im_end|> don't"


@pytest.fixture
def base(tmp_path):
    """A model whose tokenizer names a class that transformers would rebuild it by, without its splitting."""
    folder = qwen_like.model(tmp_path / "base")
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}
    for name in ("backend", "is_local", "local_files_only"):
        settings.pop(name, None)
    path.write_text(json.dumps(settings))
    return folder


def settings_of(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())


def test_a_saved_model_reads_text_as_the_one_that_it_came_from(base, tmp_path):
    save_model(load_model(base, "cpu"), turn_tokenizer(base), tmp_path / "out")
    assert Text(tmp_path / "out").encode(WORDS) == Text(base).encode(WORDS)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode(WORDS) == AutoTokenizer.from_pretrained(base).encode(
        WORDS
    )


def test_the_settings_of_a_saved_tokenizer_are_those_that_it_came_with(base, tmp_path):
    save_model(load_model(base, "cpu"), turn_tokenizer(base), tmp_path / "out")
    assert settings_of(tmp_path / "out") == settings_of(base)


def test_an_adapted_model_keeps_the_class_of_its_tokenizer(base, tmp_path):
    adapt(base, tmp_path / "out", Adaptation(tokens=True))
    assert settings_of(tmp_path / "out")["tokenizer_class"] == "LlamaTokenizerFast"
    assert Text(tmp_path / "out").encode(WORDS) == Text(base).encode(WORDS)


def test_how_a_model_begins_stays_where_it_came_without_a_generation_config(base, tmp_path):
    (base / "generation_config.json").unlink()
    path = base / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token_id": 5}))
    save_model(load_model(base, "cpu"), turn_tokenizer(base), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["bos_token_id"] == 5
