from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from ttc import nano
from ttc.errors import ConfigError
from ttc.identity import digests
from ttc.identity.digests import ROLES, differing, digest_of, file_digest, model_digests, named, source_digests

LONG_AGO = 1_600_000_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of a packaged model, to be changed."""
    return Path(shutil.copytree(nano.path("student"), tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of remembered digests, in a cache folder of the test's own; every file counts as large and as settled.

    A file's attributes cannot be given an old time, so the two seconds are none here.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE", 1)
    monkeypatch.setattr(digests, "_SETTLED_NS", -(10**18))
    return tmp_path / "cache" / "ttc" / "digests.json"


def set_in(file: Path, key: str, value: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))


def test_a_packaged_model_has_every_role_in_order():
    assert list(model_digests(nano.path("teacher"))) == list(ROLES)


def test_two_models_of_one_family_differ_in_their_weights_and_not_in_their_tokenizer():
    student, teacher = model_digests(nano.path("student")), model_digests(nano.path("teacher"))
    assert student["weights"] != teacher["weights"]
    assert student["tokenizer"] == teacher["tokenizer"]


def test_a_copy_has_the_same_digests(model):
    assert model_digests(model) == model_digests(nano.path("student"))


@pytest.mark.parametrize(
    ("role", "file", "key"),
    [
        ("config", "config.json", "rms_norm_eps"),
        ("generation settings", "generation_config.json", "temperature"),
        ("tokenizer", "tokenizer.json", "version"),
        ("tokenizer", "tokenizer_config.json", "eos_token"),
        ("chat template", "tokenizer_config.json", "chat_template"),
    ],
)
def test_a_change_shows_in_its_role_alone(model, role, file, key):
    before = model_digests(model)
    set_in(model / file, key, "changed")
    assert differing(before, model_digests(model)) == [role]


def test_changed_weights_and_a_changed_template_show(model):
    before = model_digests(model)
    with (model / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, os.SEEK_END)
        last = weights.read(1)
        weights.seek(-1, os.SEEK_END)
        weights.write(bytes([last[0] ^ 1]))
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert differing(before, model_digests(model)) == ["weights", "chat template"]


def test_what_a_trainer_leaves_beside_the_weights_and_a_page_about_them_do_not_count(model):
    before = model_digests(model)
    (model / "training_args.bin").write_bytes(b"x")
    (model / "README.md").write_text("x")
    assert model_digests(model) == before


def test_a_touched_model_is_the_same(model):
    before = model_digests(model)
    for file in model.iterdir():
        os.utime(file)
    assert model_digests(model) == before


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a model folder"):
        model_digests(tmp_path / "nowhere")


def test_a_broken_tokenizer_config_is_named(model):
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json cannot be read"):
        model_digests(model)


@hypothesis.given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_an_iterator_has_the_digest_of_its_list(items):
    assert digest_of(iter(items)) == digest_of(items)


def test_the_order_of_keys_does_not_matter_and_that_of_lists_does():
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])
    assert digest_of("12") != digest_of(12) != digest_of([12])


def test_a_users_file_brings_the_modules_beside_it_that_it_imports(tmp_path):
    (tmp_path / "second.py").write_text("import json\nimport helper\n\ndef vote():\n    from parts.deep import x\n")
    (tmp_path / "helper.py").write_text("import further\n")
    (tmp_path / "further.py").write_text("import helper\n")
    (tmp_path / "stranger.py").write_text("")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "deep.py").write_text("x = 1\n")
    before = source_digests(tmp_path / "second.py")
    assert next(iter(before)) == "second.py"
    assert set(before) == {"second.py", "helper.py", "further.py", "parts/__init__.py", "parts/deep.py"}
    (tmp_path / "further.py").write_text("import helper  # changed\n")
    assert differing(before, source_digests(tmp_path / "second.py")) == ["further.py"]


def test_the_toolkit_is_not_a_users_module(tmp_path, repository):
    (tmp_path / "mine.py").write_text("import ttc\n")
    (tmp_path / "ttc").symlink_to(repository / "ttc")
    assert list(source_digests(tmp_path / "mine.py")) == ["mine.py"]


def test_a_file_that_is_not_python_is_named(tmp_path):
    (tmp_path / "bad.py").write_text("def (")
    with pytest.raises(ConfigError, match=r"bad\.py cannot be read as Python"):
        source_digests(tmp_path / "bad.py")


def test_what_differs_is_named_and_what_only_one_side_has_says_so():
    there = named({"weights": "1", "tokenizer": "2", "chat template": "3"}, after=" of model teacher")
    here = named({"weights": "1", "tokenizer": "4"}, after=" of model teacher")
    here |= named({"second.py": "5"}, before="strategy file ")
    assert differing(there, here) == [
        "tokenizer of model teacher",
        "chat template of model teacher (gone)",
        "strategy file second.py (new)",
    ]
    assert differing(here, here) == []


def test_a_large_file_is_read_once_while_nothing_changes(tmp_path, cache):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    digest = file_digest(file)
    assert json.loads(cache.read_text())[str(file)][-1] == digest
    set_in(cache, str(file), [*json.loads(cache.read_text())[str(file)][:-1], "remembered"])
    assert file_digest(file) == "remembered"


def test_a_changed_file_that_was_given_its_old_time_is_read_again(tmp_path, cache):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    os.utime(file, (LONG_AGO, LONG_AGO))
    before = file_digest(file)
    time.sleep(0.02)  # past the grain of the file system's clock
    file.write_bytes(b"two")
    os.utime(file, (LONG_AGO, LONG_AGO))
    assert file_digest(file) != before


def test_a_file_changed_within_two_seconds_is_not_remembered(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(digests, "_SETTLED_NS", 2_000_000_000)
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    os.utime(file, (LONG_AGO, LONG_AGO))  # its attributes have changed just now
    file_digest(file)
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"x": 1}', "\udc80"])
def test_a_damaged_cache_costs_nothing_but_time(tmp_path, cache, damage):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    digest = file_digest(file)
    cache.write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert file_digest(file) == digest
    cache.write_text(json.dumps({str(file): ["no", "stamp"]}))
    assert file_digest(file) == digest


def test_without_a_cache_folder_digests_are_computed(tmp_path, monkeypatch, cache):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    (tmp_path / "blocked").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    assert file_digest(file) == hashlib.sha256(b"one").hexdigest()
    assert not cache.exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone cannot be read: No such file"):
        file_digest(tmp_path / "gone")
