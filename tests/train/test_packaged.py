"""A recipe may start from a packaged model; the folder it gets is that model in fp32."""

import pytest

from train.base.models import load_model, load_tokenizer
from train.base.stage import Setting
from train.stages.packaged import packaged
from ttc import nano
from ttc.errors import ConfigError, UnknownName


def test_the_folder_holds_the_packaged_weights_and_template(tmp_path):
    stage = packaged(name="student")
    stage.check(False)
    result = stage.run(Setting(tmp_path, None, 1, "cpu", 1, lambda text: None))
    first, second = load_model(nano.path("student"), "cpu"), load_model(tmp_path / "model", "cpu")
    assert result.model == str(tmp_path / "model")
    assert all(a.equal(b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert load_tokenizer(tmp_path / "model").chat_template == load_tokenizer(nano.path("student")).chat_template


def test_it_is_the_first_stage_and_knows_its_names():
    with pytest.raises(ConfigError, match="first stage"):
        packaged().check(True)
    with pytest.raises(UnknownName, match="teacher"):
        packaged(name="techer")
